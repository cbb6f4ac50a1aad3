"""Shares of late wake-ups, from what real recorders left."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.collect import nested
from labctl.collect.nested import SHARES
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.recordings import Traces

FIXTURES = Path(__file__).parent / "fixtures"
GUEST = FIXTURES / "perf-6.1-guest-cyclictest"
HOST = FIXTURES.parents[1] / "trace" / "fixtures" / "sched-perf-6.1.data"


@pytest.fixture
def raw(tmp_path: Path) -> TrialFolder:
    """A guest's trial, without a record yet, of which only the guest's own trace was recorded."""
    folder = TrialFolder(shutil.copytree(GUEST, tmp_path / "0001"))
    packed = folder.path / f"{files.GUEST}.xz"
    (folder.path / files.GUEST).write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


def parse(raw: TrialFolder, kind: str, accelerator: str) -> Iterator[Reading]:
    return nested.parse(Traces(raw), program="cyclictest", kind=kind, accelerator=accelerator)


def reasons(raw: TrialFolder, kind: str, accelerator: str) -> dict[str, str]:
    found = list(parse(raw, kind=kind, accelerator=accelerator))
    assert not any(isinstance(reading, Sample) for reading in found)
    return {one.metric: one.reason for one in found if isinstance(one, Unavailable)}


def test_without_the_hosts_side_no_share_is_told(raw: TrialFolder) -> None:
    found = reasons(raw, "guest", "tcg")
    assert found.keys() == set(SHARES)
    assert found["late_exit_share"] == "emulated: no VM exits."
    assert "it can't be told what late wake-ups waited for" in found["late_host_share"]


def test_a_trial_without_a_trace_has_none_of_it(tmp_path: Path) -> None:
    assert not list(parse(TrialFolder(tmp_path), kind="guest", accelerator="kvm"))


def test_traces_that_cannot_be_read_are_reasons(raw: TrialFolder) -> None:
    (raw.path / files.GUEST).write_bytes(b"no trace")
    found = reasons(raw, "guest", "kvm")
    assert all("has no trace to show" in reason for reason in found.values())


def test_few_late_wake_ups_have_no_shares(raw: TrialFolder) -> None:
    side = raw.read_json("side.json")
    raw.write_raw_json("side.json", {**side, "duration_s": side["duration_s"] / 4})
    found = reasons(raw, "guest", "kvm")
    assert all("are fewer than 20" in reason for reason in found.values())


def test_natively_only_waiting_for_other_tasks_has_a_share(raw: TrialFolder) -> None:
    (raw.path / files.GUEST).rename(raw.path / files.HOST)
    raw.write_raw_json(files.THREADS, [])
    found = {reading.metric: reading for reading in parse(raw, kind="native", accelerator="kvm")}
    assert isinstance(found["late_queue_share"], Sample)
    assert 0 < found["late_queue_share"].value < 1
    assert isinstance(found["late_host_share"], Unavailable)
    assert isinstance(found["late_exit_share"], Unavailable)
