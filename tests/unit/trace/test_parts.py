"""A trial's trace is reduced part by part; where parts end makes no difference. Recorded traces."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import pytest

from labctl.store.trial import TrialFolder
from labctl.trace import files, preemption, records, sched
from labctl.trace.model import Trace
from labctl.trace.perf import chain, perfdata
from labctl.trace.sched import schedule
from labctl.trace.timeline.recordings import Traces

FIXTURES = Path(__file__).parent / "fixtures"
COLLECTED = Path(__file__).parents[1] / "collect" / "fixtures"
RECORDED = (
    FIXTURES / "switches-perf-6.1.data",
    FIXTURES / "lost-perf-6.1.data",
    COLLECTED / "hog-perf-6.1.data",
    COLLECTED / "perf-6.1-native-cyclictest" / "trace" / "host.perf.data.xz",
)


def told(folder: TrialFolder) -> list[Any]:
    """All that is known of each thread."""
    trace = Traces(folder).host
    assert isinstance(trace, Trace)
    columns = [
        [one.time_ns, one.cpu, one.tid, *one.fields.values()] for one in trace.events.values()
    ]
    threads = [
        (
            thread.tid,
            thread.on_cpu_ns,
            thread.unknown_ns,
            thread.may_have_run_ns,
            thread.migrations,
            thread.delays.start_ns.tolist(),
            thread.delays.length_ns.tolist(),
            thread.delays.was_preempted.tolist(),
            sorted(thread.preempted_by_ns.items()),
        )
        for thread in schedule(trace).threads.values()
    ]
    return [[column.tolist() for own in columns for column in own], threads]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
def test_small_parts_tell_the_same_as_one(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = recorded.read_bytes()
    folder = TrialFolder(tmp_path)
    folder.write_raw(files.HOST, lzma.decompress(data) if recorded.suffix == ".xz" else data)
    whole = told(folder)
    monkeypatch.setattr(chain, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(perfdata, "_PART", 100)
    monkeypatch.setattr(perfdata, "_FEW", 10)
    monkeypatch.setattr(records, "BATCH", 50)
    monkeypatch.setattr(preemption, "_PART", 7)
    monkeypatch.setattr(preemption, "_MOST_ASIDE", 5)
    monkeypatch.setattr(sched, "_PART", 30)
    monkeypatch.setattr(preemption, "_CELLS", 3)
    monkeypatch.setattr(preemption, "_MOST", 10)
    assert told(folder) == whole
