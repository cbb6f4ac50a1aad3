"""VM exits of a guest that is nothing but firmware: even where no kernel boots under KVM."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labctl.base.kernel import with_tracefs
from labctl.base.tuning import Kind
from labctl.collect.exits import bpf_exits, exits, kvm_stats
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder
from tests.guest.conftest import DISTURBED
from tests.guest.firmware import PORT_AND_MEMORY_IO, PORT_IO, VCPUS, Firmware, started
from tests.unit.collect.targets import target

pytestmark = [DISTURBED, pytest.mark.kvm]

CPUS = frozenset(os.sched_getaffinity(0))

_OF_A_REASON = r"exits\{reason=[^,]*\}"
"""Not of a vCPU's alone."""


@pytest.fixture
def firmware(tmp_path: Path) -> Iterator[Firmware]:
    with started(tmp_path, PORT_IO) as guest:
        yield guest


@contextmanager
def _perf_counts(event: str, pid: int, *filters: str) -> Iterator[list[int]]:
    """How often perf saw the event in all of the block, or of each filter; known afterwards."""
    asked, asking = os.pipe()
    answers, answering = os.pipe()
    argv = with_tracefs(
        ("perf", "stat", "-x,", "-D", "-1", "--control", f"fd:{asked},{answering}")
        + tuple(word for text in filters for word in ("-e", event, "--filter", text))
        + (() if filters else ("-e", event))
        + ("-p", str(pid))
    )
    counts: list[int] = []
    with subprocess.Popen(
        argv, pass_fds=(asked, answering), stderr=subprocess.PIPE, text=True
    ) as perf:
        os.close(asked)
        os.close(answering)
        try:
            os.write(asking, b"enable\n")
            assert os.read(answers, 64).startswith(b"ack")
            yield counts
            os.write(asking, b"disable\n")
            os.read(answers, 64)
            perf.send_signal(2)
            _, said = perf.communicate(timeout=20)
        finally:
            perf.kill()
    os.close(asking)
    os.close(answers)
    counts += [int(line.split(",")[0]) for line in said.splitlines() if event in line]


def _values(readings: list[Reading]) -> dict[str, float]:
    return {reading.key: reading.value for reading in readings if isinstance(reading, Sample)}


def _reasons(readings: list[Reading]) -> dict[str, str]:
    return {r.metric: r.reason for r in readings if isinstance(r, Unavailable)}


def _taken(firmware: Firmware) -> dict[str, Any]:
    """As a snapshot of the host's has it."""
    return {"monotonic_ns": time.monotonic_ns(), **firmware.counters()}


def _exits(snapshot: Mapping[str, Any]) -> int:
    counted = kvm_stats.exits_by_vcpu(snapshot)
    assert counted is not None
    return sum(counted.values())


def test_kvms_own_statistics_tell_what_a_guest_without_a_kernel_does(
    firmware: Firmware, tmp_path: Path
) -> None:
    first = last = _taken(firmware)
    until = time.monotonic() + 60
    while _exits(last) < _exits(first) + 100 and time.monotonic() < until:
        time.sleep(0.1)
        last = _taken(firmware)
    raw = TrialFolder(tmp_path)
    raw.write_raw_json(
        "host.json",
        {
            "kind": "guest",
            "clk_tck": 100,
            "trial_cpus": "0",
            "before": first,
            "after": last,
        },
    )
    found = _values(list(kvm_stats.parse(raw, accelerator="kvm")))
    assert found["exits"] > 0
    assert found["exits"] == pytest.approx(found["exits{vcpu=0}"] + found["exits{vcpu=1}"])
    # The other vCPU waits to be started by the first one, which it never is.
    assert found["exits{vcpu=0}"] > found["exits{vcpu=1}"]
    assert found["kvm_stat{name=preemption_other}"] >= 0


@pytest.fixture(params=["BPF", "perf"])
def counter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What counts: BPF, or what there is without it."""
    name: str = request.param
    if name == "perf":
        monkeypatch.setattr(exits, "why_no_bpf", lambda: "BPF can't be used: a test.")
    elif problem := exits.why_no_bpf():
        pytest.skip(problem)
    return name


def _skip_if_perf_lost_some(counter: str, readings: list[Reading]) -> None:
    """Nothing is told then, as perf records each exit; whatever else is not told is a fault."""
    said = _reasons(readings).get("userspace_exits", "")
    if counter == "perf" and re.fullmatch(r"perf lost \d+ events: .*", said):
        pytest.skip(said)


def test_returns_to_qemu_are_of_each_reason_as_many_as_perf_counts_beside(
    counter: str, tmp_path: Path
) -> None:
    mounts = Path("/proc/mounts").read_text()
    raw = TrialFolder(tmp_path / "trial")
    event = "kvm:kvm_userspace_exit"
    # Any, and KVM_EXIT_IO and KVM_EXIT_MMIO of linux/kvm.h; a return for a signal may keep the
    # reason of the one before.
    filters = ("reason>=0", "reason==2&&errno>=0", "reason==6&&errno>=0")
    with started(tmp_path, PORT_AND_MEMORY_IO) as guest:
        began = time.monotonic()
        with (
            _perf_counts(event, guest.pid, *filters) as around,
            exits.exit_counting(guest.target(raw)),
        ):
            opened = time.monotonic()
            with _perf_counts(event, guest.pid, *filters) as within:
                time.sleep(1)
            closed = time.monotonic()
        ended = time.monotonic()
    readings = list(exits.parse(raw))
    _skip_if_perf_lost_some(counter, readings)
    found = _values(readings)
    counts = {
        key: round(value * found["exits_window"])
        for key, value in found.items()
        if key.startswith("userspace_exits")
    }
    io, mmio, restart = (f"userspace_exits{{reason={name}}}" for name in ("IO", "MMIO", "restart"))
    for key, inner, outer in zip(("userspace_exits", io, mmio), within, around, strict=True):
        assert 0 < inner <= counts[key] <= outer, key
    # It does one after the other, and nothing else: QEMU may ask a vCPU to come back.
    assert abs(counts[io] - counts[mmio]) <= 1
    assert counts[io] + counts[mmio] + counts.get(restart, 0) == counts["userspace_exits"]
    assert closed - opened <= found["exits_window"] <= ended - began
    assert Path("/proc/mounts").read_text() == mounts


def test_reasons_add_up_to_kvms_total_or_are_unavailable_where_kvm_tells_none(
    firmware: Firmware, counter: str, tmp_path: Path
) -> None:
    raw = TrialFolder(tmp_path / "trial")
    with (
        _perf_counts("kvm:kvm_exit", firmware.pid) as around,
        exits.exit_counting(firmware.target(raw)),
        _perf_counts("kvm:kvm_exit", firmware.pid) as within,
    ):
        time.sleep(1)
    readings = list(exits.parse(raw))
    _skip_if_perf_lost_some(counter, readings)
    found, reasons = _values(readings), _reasons(readings)
    if around == [0]:
        assert "never fired" in reasons["exits{reason}"]
        assert "never fired" in reasons["exit_time"]
        assert not [key for key in found if key.startswith(("exits{", "exit_time"))]
        return
    assert "exits_agreement" in found, reasons
    by_reason = {key: value for key, value in found.items() if re.fullmatch(_OF_A_REASON, key)}
    (inner,), (outer,) = within, around
    assert 0 < inner <= round(sum(by_reason.values()) * found["exits_window"]) <= outer
    assert any(key in by_reason for key in ("exits{reason=IO_INSTRUCTION}", "exits{reason=io}"))
    assert 0 < found["exit_time"] <= VCPUS
    for label in ("reason", "vcpu"):
        parts = [found[key] for key in found if re.fullmatch(rf"exit_time{{{label}=[^,]*}}", key)]
        assert sum(parts) == pytest.approx(found["exit_time"]), label
    # The other vCPU waits to be started.
    assert found["exit_time{vcpu=0}"] > found.get("exit_time{vcpu=1}", 0)


def test_emulated_there_are_none_and_natively_they_take_no_time(tmp_path: Path) -> None:
    emulated, native = TrialFolder(tmp_path / "emulated"), TrialFolder(tmp_path / "native")
    for folder in (emulated, native):
        folder.path.mkdir()
    with exits.exit_counting(target(emulated)):
        pass
    with exits.exit_counting(target(native, kind=Kind.NATIVE)):
        pass
    assert "emulated" in _reasons(list(exits.parse(emulated)))["exits{reason}"]
    assert _values(list(exits.parse(native)))["exit_time"] == 0


def test_the_program_adds_up_counts_and_times_by_thread_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With system calls for exits, as KVM in software has none that a tracepoint tells."""
    if problem := exits.why_no_bpf():
        pytest.skip(problem)
    script = bpf_exits._SCRIPT
    for was, now in (
        ("kvm:kvm_exit", "raw_syscalls:sys_enter"),
        ("kvm:kvm_entry", "raw_syscalls:sys_exit"),
        ("args->isa", "1"),
        ("args->exit_reason", "args->id"),
    ):
        assert was in script
        script = script.replace(was, now)
    monkeypatch.setattr(bpf_exits, "_SCRIPT", script)
    output = tmp_path / "counted.jsonl"
    with subprocess.Popen(["perl", "-e", "select undef, undef, undef, 0.01 while 1"]) as sleeper:
        try:
            with bpf_exits.bpf_counting(sleeper.pid, output, cpus=CPUS) as window:
                window.mark()
                time.sleep(1)
                window.mark()
        finally:
            sleeper.kill()
    counted = bpf_exits.read_counts(output.read_text(), str(output))
    (key,) = counted.exits
    thread, isa, _ = key
    assert (thread, isa) == (sleeper.pid, 1)
    assert 0 < counted.exits[key] <= counted.seconds / 0.01 + 1
    # Each of them slept for its 10 ms; the last one's end may be outside.
    assert counted.ns[key] >= 10e6 * (counted.exits[key] - 1)
    assert counted.ns[key] <= 1e9 * counted.seconds


def test_bpftrace_keeps_to_the_size_that_its_maps_are_given() -> None:
    if problem := exits.why_no_bpf():
        pytest.skip(problem)
    program = "BEGIN { @a[1] = 1; @a[2] = 1; @a[3] = 1; @a[4] = 1; exit(); }"
    kept = {}
    for keys in (3, bpf_exits.KEYS_MAX):
        done = subprocess.run(
            ("bpftrace", "-f", "json", "-e", program),
            env=os.environ | bpf_exits.environment(keys),
            capture_output=True,
            check=True,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
        (told,) = (line["data"]["@a"] for line in lines if line["type"] == "map")
        kept[keys] = len(told)
    assert kept == {3: 3, bpf_exits.KEYS_MAX: 4}
