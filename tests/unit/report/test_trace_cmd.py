"""A trial's traces for trace-cmd and KernelShark: which files are written, and what is said."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from labctl.base.errors import HostError
from labctl.report.timeline.exports import GUEST, HOST, write_trace_dat
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.perf.perfdata import read_trace
from tests.unit.trace.test_perfdata_recorded import FIXTURES
from tests.unit.trace.tracedat_reader import TraceDat, parsed

RECORDED = FIXTURES / "sched-perf-6.1.data"
TRACEID, HOSTS_GUEST = 11, 13
AHEAD_NS = 7 * 10**9
"""Of the guest's clock."""


@pytest.fixture
def trial(tmp_path: Path) -> TrialFolder:
    """Of a guest with two vCPUs, which was booted before its host."""
    folder = TrialFolder(tmp_path / "0001")
    (folder.path / files.HOST).parent.mkdir(parents=True)
    for name in (files.HOST, files.GUEST):
        shutil.copy(RECORDED, folder.path / name)
    threads = [
        {"tid": tid, "pid": 500, "role": role, "index": index, "name": role}
        for tid, role, index in ((500, "emulator", 0), (501, "vcpu", 0), (502, "vcpu", 1))
    ]
    folder.write_raw_json(files.THREADS, threads)
    trace = read_trace(RECORDED, {})
    readings = [
        {"asked_ns": at - AHEAD_NS - 1000, "machine_ns": at, "answered_ns": at - AHEAD_NS + 1000}
        for at in (trace.start_ns - 10**6, trace.end_ns + 10**6)
    ]
    folder.write_raw_json(files.CLOCKS, readings)
    return folder


def read(path: Path) -> TraceDat:
    return parsed(path.read_bytes())


def test_both_sides_are_at_the_hosts_times_and_know_each_other(
    trial: TrialFolder, tmp_path: Path
) -> None:
    folder = tmp_path / "dat"
    said = write_trace_dat(trial, folder)
    assert said == [
        f"Wrote {folder / GUEST}, in the host's times (error ± 1.00 µs)",
        f"Wrote {folder / HOST}",
    ]
    host, guest = read(folder / HOST), read(folder / GUEST)
    assert [entry.time_ns for entry in guest.entries] == [
        entry.time_ns - AHEAD_NS for entry in host.entries
    ]
    (guest_id,) = guest.options[TRACEID]
    assert host.options[TRACEID] != [guest_id]
    vcpus = struct.pack("<5I", 2, 0, 501, 1, 502)
    assert host.options[HOSTS_GUEST] == [b"guest\0" + guest_id + vcpus]
    assert sorted(path.name for path in folder.iterdir()) == [GUEST, HOST]


def test_a_native_trial_has_a_host_alone(trial: TrialFolder, tmp_path: Path) -> None:
    for name in (files.GUEST, files.CLOCKS):
        (trial.path / name).unlink()
    assert write_trace_dat(trial, tmp_path) == [f"Wrote {tmp_path / HOST}"]
    assert HOSTS_GUEST not in read(tmp_path / HOST).options


def test_a_guest_without_a_host_is_at_the_hosts_times_too(
    trial: TrialFolder, tmp_path: Path
) -> None:
    (trial.path / files.HOST).unlink()
    (said,) = write_trace_dat(trial, tmp_path)
    assert said.startswith(f"Wrote {tmp_path / GUEST}, in the host's times")
    first = min(entry.time_ns for entry in read(tmp_path / GUEST).entries)
    assert first == read_trace(RECORDED, {}).start_ns - AHEAD_NS


def test_a_guest_whose_clock_is_unknown_is_left_out_with_the_reason(
    trial: TrialFolder, tmp_path: Path
) -> None:
    (trial.path / files.CLOCKS).unlink()
    said = write_trace_dat(trial, tmp_path)
    assert said[0].startswith(f"No {GUEST}: its times cannot be mapped to the host's clock: ")
    assert said[1] == f"Wrote {tmp_path / HOST}"
    assert not (tmp_path / GUEST).exists()
    assert HOSTS_GUEST not in read(tmp_path / HOST).options


@pytest.mark.parametrize(("spoilt", "name"), [(files.HOST, HOST), (files.GUEST, GUEST)])
def test_a_recording_that_cannot_be_read_leaves_the_other_one(
    trial: TrialFolder, tmp_path: Path, spoilt: str, name: str
) -> None:
    (trial.path / spoilt).write_bytes(b"PERFILE2")
    said = write_trace_dat(trial, tmp_path)
    (reason,) = (text for text in said if text.startswith(f"No {name}: "))
    assert spoilt in reason
    assert [path.name for path in tmp_path.glob("*.dat")] == [GUEST if name == HOST else HOST]


def test_a_folder_that_cannot_be_made_is_named(trial: TrialFolder, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(HostError, match="cannot make the folder .*taken: File exists"):
        write_trace_dat(trial, tmp_path / "taken")
