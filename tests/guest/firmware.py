"""Guests that are nothing but firmware of a few bytes: they run wherever /dev/kvm opens, even where
KVM runs guests in software and no kernel boots."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labctl.base.tuning import Kind
from labctl.collect.collector import Target, ThreadRef
from labctl.run.guests.bench import Bench
from labctl.store.trial import TrialFolder
from tests.unit.collect.targets import target

VCPUS = 2

# mov dx, 0x80; mov al, 'A'; here: out dx, al; jmp here
PORT_IO = bytes.fromhex("ba8000 b041 ee ebfd")
"""Writes to the port of POST codes, which QEMU handles, for ever."""

# mov dx, 0x80; mov ax, 0xf000; mov ds, ax; here: out dx, al; mov [0], al; jmp here
PORT_AND_MEMORY_IO = bytes.fromhex("ba8000 b800f0 8ed8 ee a20000 ebfa")
"""In turns with writes to its own ROM, which QEMU handles too."""


@dataclass(frozen=True)
class Firmware:
    """A running guest, and QEMU's monitor of it."""

    pid: int
    vcpu_tids: tuple[int, ...]
    monitor: Any

    def ask(self, command: str, **arguments: str) -> Any:
        self.monitor.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.monitor.flush()
        while "return" not in (answer := json.loads(self.monitor.readline())):
            assert "error" not in answer, answer
        return answer["return"]

    def counters(self) -> dict[str, Any]:
        return {"query_stats": [self.ask("query-stats", target=of) for of in ("vcpu", "vm")]}

    @property
    def bench(self) -> Bench:
        made = SimpleNamespace(
            kind=Kind.GUEST,
            vcpu_tids=self.vcpu_tids,
            tuning=None,
            threads=lambda: [ThreadRef(pid=self.pid, tid=self.pid, role="emulator", index=0)],
            counters=self.counters,
        )
        return cast(Bench, made)

    def target(self, folder: TrialFolder) -> Target:
        bench = self.bench
        return target(
            folder,
            accelerator="kvm",
            vcpu_tids=bench.vcpu_tids,
            threads=bench.threads,
            counters=bench.counters,
        )


def _rom(code: bytes) -> bytes:
    """64 KiB that begin with that code, in real mode."""
    rom = bytearray(0x10000)
    rom[0xFF00 : 0xFF00 + len(code)] = code
    # A CPU begins 16 bytes before the end: jmp 0xff00.
    rom[0xFFF0:0xFFF3] = b"\xe9" + ((0xFF00 - 0xFFF3) & 0xFFFF).to_bytes(2, "little")
    return bytes(rom)


@contextmanager
def started(folder: Path, code: bytes, *options: str) -> Iterator[Firmware]:
    """A guest under KVM that runs `code`; skips the test where /dev/kvm doesn't open."""
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"/dev/kvm does not open: {error.strerror}")
    (folder / "firmware").write_bytes(_rom(code))
    ours, theirs = socket.socketpair()
    argv = [
        *("qemu-system-x86_64", "-accel", "kvm", "-machine", "pc", "-m", "64"),
        *("-smp", str(VCPUS), "-bios", str(folder / "firmware")),
        *("-nodefaults", "-display", "none", "-name", "firmware,debug-threads=on"),
        *("-chardev", f"socket,id=monitor,fd={theirs.fileno()}"),
        *("-mon", "chardev=monitor,mode=control"),
        *options,
    ]
    with (
        theirs,
        ours,
        ours.makefile("rw") as monitor,
        subprocess.Popen(argv, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL) as qemu,
    ):
        theirs.close()
        try:
            monitor.readline()
            guest = Firmware(qemu.pid, (), monitor)
            guest.ask("qmp_capabilities")
            tids = tuple(cpu["thread-id"] for cpu in guest.ask("query-cpus-fast"))
            yield Firmware(qemu.pid, tids, monitor)
        finally:
            qemu.kill()
