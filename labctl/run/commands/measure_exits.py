"""Measure the cost of a VM exit: a guest of our own makes one kind of exit over and over.

The guest is benchmarks/exit-prices.S, its firmware included: it needs no kernel that boots. It
times its rounds by the time-stamp counter; KVM's own count of exits shows whether each instruction
made exactly one exit.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qemu.qmp import QMPError
from qemu.qmp.legacy import QEMUMonitorProtocol

from labctl.base.errors import BrokenError, HostError
from labctl.base.paths import data_folders
from labctl.base.process import Deadline, dies_with_labctl, run, running
from labctl.host.accelerator import FEATURE_SETS
from labctl.host.facts import QEMU

SOURCE = "exit-prices.S"
ROUNDS = 31
_ROUND_S = 0.01
"""Duration of a round: long against a read of the counter, short against the host's timer."""
_FEW, _MOST = 200, 50_000
"""Iterations of a round: of the first try of a kind, and the maximum."""
_FOR_EVER = 2**32 - 1
_DEADLINE_S = 5.0
_ADDRESS = 0xF0000
_DEBUG_PORT = 0xE9
_MEMORY_MIB = 256
_PAGES = 40_000
"""Pages of 4 KiB for first touches: those above the guest's first 16 MiB."""
_IN_SMALL_PAGES = (
    *(sys.executable, "-I", "-c"),
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n",
)
"""Command prefix for a program without transparent huge pages, though QEMU asks for them: one fault
would serve 512 first touches."""


@dataclass(frozen=True, slots=True)
class ExitKind:
    """Describe a kind of exit. `number`: the program's. `vmx`, `svm`: the reason of the exit on
    Intel and AMD."""

    number: int
    name: str
    what: str
    vmx: str
    svm: str
    to_qemu: bool = False


NOTHING = ExitKind(0, "the loop alone", "", "", "")
KINDS = (
    ExitKind(1, "cpuid", "cpuid", "CPUID", "cpuid"),
    ExitKind(2, "msr-read", "rdmsr of IA32_APIC_BASE", "MSR_READ", "msr"),
    ExitKind(3, "msr-write", "wrmsr of IA32_TSC_DEADLINE: a timer is set", "MSR_WRITE", "msr"),
    ExitKind(4, "io-kvm", "in from the PIC, which is in KVM", "IO_INSTRUCTION", "io"),
    ExitKind(5, "io-qemu", "out to a port of QEMU", "IO_INSTRUCTION", "io", to_qemu=True),
    ExitKind(6, "mmio-kvm", "read of the I/O APIC, which is in KVM", "EPT_MISCONFIG", "npf"),
    ExitKind(7, "mmio-qemu", "read of the HPET, in QEMU", "EPT_MISCONFIG", "npf", to_qemu=True),
    ExitKind(8, "hypercall", "vmcall", "VMCALL", "hypercall"),
    ExitKind(9, "hypercall", "vmmcall", "VMCALL", "hypercall"),
    ExitKind(10, "first-touch", "first write to a page of 4 KiB", "EPT_VIOLATION", "npf"),
    ExitKind(11, "apic-eoi", "end of interrupt, to the local APIC", "APIC_WRITE", "npf"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Hold cycles of the time-stamp counter per instruction, a value a round; VM exits per
    instruction over all of them. `problem`: why there are no values, a sentence."""

    kind: ExitKind
    cycles: tuple[float, ...] = ()
    exits_per_op: float | None = None
    problem: str = ""


def vendor(cpuinfo: str) -> str:
    """Return "vmx" or "svm"; raises HostError for a host that has neither."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "").split()
    for name in ("svm", "vmx"):
        if name in flags:
            return name
    if "GenuineIntel" in cpuinfo:
        return "vmx"
    if "AuthenticAMD" in cpuinfo:
        return "svm"
    raise HostError("the exit price list supports only x86 processors from Intel and AMD")


def kinds_of(which: str) -> tuple[ExitKind, ...]:
    """Return the kinds for a host's `vendor`: each has a hypercall of its own."""
    other = 9 if which == "vmx" else 8
    return tuple(kind for kind in KINDS if kind.number != other)


def measure(
    kinds: Sequence[ExitKind], cpu: int | None, tell: Callable[[str], None]
) -> Iterator[Measured]:
    """Yield the rounds of the empty loop, then those of each kind. `cpu`: where the vCPU runs, None
    for anywhere; `tell` gets the name of the next measurement.

    Raises HostError if the program cannot be assembled or no guest starts under KVM here.
    """
    with tempfile.TemporaryDirectory(prefix="labctl-exits-") as name:
        folder = Path(name)
        program = _assembled(folder)
        guest = _Guest(folder, program, _cpu_model(folder, program), cpu)
        for kind in (NOTHING, *kinds):
            tell(kind.name)
            yield _measured(guest, kind)


@contextmanager
def exiting(kind: ExitKind, cpu: int | None) -> Iterator[ExitingGuest]:
    """Run a guest that makes only this exit, for ever. `cpu`: as for `measure`.

    Raises HostError as `measure` does.
    """
    with tempfile.TemporaryDirectory(prefix="labctl-exits-") as name:
        folder = Path(name)
        program = _assembled(folder)
        guest = _Guest(folder, program, _cpu_model(folder, program), cpu)
        with guest.stopped(kind, _FOR_EVER, _FOR_EVER) as running_guest:
            _command(running_guest.monitor, "cont")
            yield running_guest


def _assembled(folder: Path) -> bytes:
    source = next((f / SOURCE for f in data_folders("benchmarks") if (f / SOURCE).is_file()), None)
    if source is None:
        raise HostError(f"labctl's own file benchmarks/{SOURCE} is missing")
    linked, image = folder / "exit-prices.o", folder / "exit-prices.bin"
    deadline = Deadline.after(30, "assembling the guest program")
    run(["as", "--32", "-o", linked, source], deadline=deadline)
    words = ["-m", "elf_i386", f"-Ttext={_ADDRESS:#x}", "--oformat", "binary"]
    run(["ld", *words, "-o", image, linked], deadline=deadline)
    return image.read_bytes()


def _cpu_model(folder: Path, program: bytes) -> str:
    """Return the CPU model for a guest on this host; raises HostError if no guest starts under
    KVM."""
    problem = ""
    for features in FEATURE_SETS:
        model = ",".join(["host", *(f"{feature}=off" for feature in features)])
        try:
            with _Guest(folder, program, model, None).stopped(NOTHING, 1, 1):
                return model
        except BrokenError as error:
            problem = error.message
    raise HostError(
        f"no guest starts under KVM here: {problem}",
        hint="Exit prices need KVM: 'labctl host accel' shows why it does not work.",
    )


def _measured(guest: _Guest, kind: ExitKind) -> Measured:
    try:
        few = guest.rounds(kind, _FEW)
        many = guest.rounds(kind, _iterations(kind, few))
    except BrokenError as error:
        return Measured(kind=kind, problem=f"{error.message}.")
    exits = None
    if few.exits is not None and many.exits is not None and many.iterations > few.iterations:
        # Work of the program before, between and after its rounds is in both.
        more = ROUNDS * (many.iterations - few.iterations)
        exits = (many.exits - few.exits) / more
    # The first round runs with cold caches.
    cycles = tuple(cycles / many.iterations for cycles in many.cycles[1:])
    return Measured(kind=kind, cycles=cycles, exits_per_op=exits)


def _iterations(kind: ExitKind, few: _Rounds) -> int:
    wanted = round(_FEW * _ROUND_S / (few.seconds / ROUNDS))
    most = _PAGES // ROUNDS if kind.name == "first-touch" else _MOST
    return max(2 * _FEW, min(most, wanted))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounds:
    """Count rounds. `seconds`: their total time, by the host's clock; `exits` None if KVM does not
    count them."""

    iterations: int
    cycles: tuple[int, ...]
    seconds: float
    exits: int | None


@dataclass(frozen=True, slots=True)
class ExitingGuest:
    """Control a guest that makes exits, one per instruction. `pid`: QEMU's; `vcpu`: its only vCPU's
    thread."""

    pid: int
    vcpu: int
    monitor: QEMUMonitorProtocol

    def exits(self) -> int | None:
        """Return the VM exits so far by KVM's own count, None if its kernel reports none (Linux
        before 5.14)."""
        answer = _command(self.monitor, "query-stats", target="vcpu")
        counts = [
            stat["value"] for entry in answer for stat in entry["stats"] if stat["name"] == "exits"
        ]
        return int(counts[0]) if counts else None


@dataclass(frozen=True, slots=True)
class _Guest:
    folder: Path
    program: bytes
    cpu_model: str
    cpu: int | None

    def rounds(self, kind: ExitKind, iterations: int) -> _Rounds:
        """Run rounds; raises BrokenError if the guest does not complete them."""
        with self.stopped(kind, iterations, ROUNDS) as guest:
            before, started = guest.exits(), time.monotonic()
            _command(guest.monitor, "cont")
            cycles = self._told(kind)
            seconds = time.monotonic() - started
            after = guest.exits()
        counted = None if before is None or after is None else after - before
        return _Rounds(iterations=iterations, cycles=cycles, seconds=seconds, exits=counted)

    @contextmanager
    def stopped(self, kind: ExitKind, iterations: int, rounds: int) -> Iterator[ExitingGuest]:
        """Start QEMU with a guest that waits for its start signal; raises BrokenError if it does
        not start."""
        image, said = self.folder / "program.bin", self.folder / "qemu.txt"
        image.write_bytes(struct.pack("<III", kind.number, iterations, rounds) + self.program[12:])
        self._output.unlink(missing_ok=True)
        ours, qemus = socket.socketpair()
        argv: list[str | Path] = [
            *dies_with_labctl(),
            *_IN_SMALL_PAGES,
            *(QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-S"),
            *("-machine", "pc", "-accel", "kvm", "-cpu", self.cpu_model, "-m", str(_MEMORY_MIB)),
            *("-bios", image, "-mon", "chardev=qmp,mode=control"),
            *("-chardev", f"socket,id=qmp,fd={qemus.fileno()}"),
            *("-chardev", f"file,id=output,path={self._output}"),
            *("-device", f"isa-debugcon,iobase={_DEBUG_PORT:#x},chardev=output"),
        ]
        with (
            ours,
            qemus,
            said.open("wb") as errors,
            running(argv, stderr=errors, pass_fds=[qemus.fileno()], grace_s=1.0) as process,
        ):
            qemus.close()
            with QEMUMonitorProtocol(ours) as monitor:
                monitor.settimeout(_DEADLINE_S)
                try:
                    monitor.connect()
                except (QMPError, OSError) as error:
                    lines = said.read_text(errors="replace").strip().splitlines()
                    why = lines[-1] if lines else str(error)
                    raise BrokenError(f"QEMU does not start: {why}") from error
                (vcpu,) = _command(monitor, "query-cpus-fast")
                if self.cpu is not None:
                    os.sched_setaffinity(vcpu["thread-id"], {self.cpu})
                # setpriv has become Python by exec, and that QEMU.
                yield ExitingGuest(process.pid, vcpu["thread-id"], monitor)

    @property
    def _output(self) -> Path:
        return self.folder / "output"

    def _told(self, kind: ExitKind) -> tuple[int, ...]:
        deadline = Deadline.after(_DEADLINE_S, f"the guest's work at '{kind.name}'")
        while not (text := self._output.read_text()).endswith("."):
            if deadline.expired:
                raise deadline.error()
            time.sleep(0.005)
        lines = text.split()[:-1]
        if len(lines) != ROUNDS:
            raise BrokenError(
                f"the guest reported {len(lines)} rounds of '{kind.name}', not {ROUNDS}"
            )
        return tuple(int(line, 16) for line in lines)


def _command(monitor: QEMUMonitorProtocol, name: str, **arguments: object) -> Any:
    try:
        return monitor.cmd(name, **arguments)
    except (QMPError, TimeoutError, OSError) as error:
        raise BrokenError(f"QEMU does not answer '{name}': {error}") from error
