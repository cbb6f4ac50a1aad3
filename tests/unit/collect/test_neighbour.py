import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.base.units import Better, Unit
from labctl.collect.collector import NeighbourWork
from labctl.collect.neighbour import neighbour_readings
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder
from tests.unit.workloads.trials import reasons, recorded, trial, values

HOG = "stress-ng-0.15.06-hog.json"


def _cpu(value: float) -> Reading:
    return Sample(
        metric="host_cpu",
        value=value,
        unit=Unit.CPUS,
        better=Better.NEITHER,
        labels={"thread": "neighbour"},
        source="host.json",
    )


def _raw(folder: Path, hogs: object) -> TrialFolder:
    """A trial of a labctl that knew no neighbours but hogs."""
    return trial(folder, neighbour_json=json.dumps({"hogs": hogs}))


def _now(folder: Path, *used: tuple[str, float]) -> TrialFolder:
    """A trial whose window lasted two seconds. `used`: by workload, CPU seconds in it."""

    def at(second: int) -> dict[str, Any]:
        rows = [
            {"workload": name, "cpus": "0-1", "cpu_ns": 7 + round(cpu_s * second / 2 * 1e9)}
            for name, cpu_s in used
        ]
        return {"monotonic_ns": second * 10**9, "proc_stat": "", "threads": [], "neighbours": rows}

    host = {"kind": "guest", "clk_tck": 100, "trial_cpus": "0-1", "siblings": ""}
    return trial(
        folder,
        host_json=json.dumps({**host, "before": at(0), "after": at(2)}),
        neighbour_json=json.dumps({"neighbours": []}),
    )


def _work(workload: str, operations: float | None, cpu_s: float = 2.0) -> NeighbourWork:
    return NeighbourWork(
        workload=workload, cpu_s=cpu_s, operations=operations, problem="" if operations else "why."
    )


def _hog(change: Callable[[dict[str, Any]], object] = lambda hog: None) -> dict[str, Any]:
    hog: dict[str, Any] = json.loads(recorded(HOG))
    change(hog)
    return hog


def test_throughput_is_operations_per_cpu_second_times_the_share_in_the_window(
    tmp_path: Path,
) -> None:
    work = [_work("cpu-hog", 3000.0), _work("cpu-hog", 1000.0)]
    found = values(list(neighbour_readings(_now(tmp_path), [_cpu(1.2)], work)))
    assert found == {"neighbour_cpu": 1.2, "neighbour_ops_per_s": 4000 / 4 * 1.2}


def test_each_of_several_workloads_has_a_share_and_a_throughput_of_its_own(tmp_path: Path) -> None:
    raw = _now(tmp_path, ("cpu-hog", 1.0), ("hackbench", 3.0), ("cpu-hog", 0.5))
    work = [_work("cpu-hog", 2000.0), _work("hackbench", 50.0), _work("cpu-hog", 4000.0)]
    assert values(list(neighbour_readings(raw, [_cpu(2.25)], work))) == {
        "neighbour_cpu{workload=cpu-hog}": 0.75,
        "neighbour_ops_per_s{workload=cpu-hog}": 6000 / 4 * 0.75,
        "neighbour_cpu{workload=hackbench}": 1.5,
        "neighbour_ops_per_s{workload=hackbench}": 50 / 2 * 1.5,
    }


def test_several_workloads_that_no_cgroup_tells_apart_have_neither(tmp_path: Path) -> None:
    raw = trial(tmp_path, neighbour_json="{}")
    raw.write_raw_json(
        "host.json",
        {
            "kind": "guest",
            "clk_tck": 100,
            "trial_cpus": "0",
            "before": {"monotonic_ns": 0},
            "after": {"monotonic_ns": 10**9},
        },
    )
    readings = list(neighbour_readings(raw, [_cpu(1.0)], [_work("a", 1.0), _work("b", 1.0)]))
    assert values(readings) == {}
    assert len(reasons(readings)) == 4


def test_a_neighbour_whose_output_does_not_tell_still_has_its_cpu_time(tmp_path: Path) -> None:
    readings = list(neighbour_readings(_now(tmp_path), [_cpu(0.5)], [_work("cpu-hog", None)]))
    assert values(readings) == {"neighbour_cpu": 0.5}
    assert reasons(readings) == {"neighbour_ops_per_s": "why."}


def test_an_older_labctl_s_hogs_are_read_as_ever(tmp_path: Path) -> None:
    found = values(list(neighbour_readings(_raw(tmp_path, [_hog(), _hog()]), [_cpu(1.2)])))
    assert found["neighbour_cpu"] == 1.2
    # As recorded: 3039 operations in 1.968657 CPU seconds, twice.
    assert found["neighbour_ops_per_s"] == pytest.approx(3039 / 1.968657 * 1.2)


def test_without_a_neighbour_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert list(neighbour_readings(TrialFolder(tmp_path), [])) == []


def test_a_share_that_is_not_known_makes_the_throughput_unavailable(tmp_path: Path) -> None:
    gone = Unavailable(metric="host_cpu{thread=neighbour}", reason="it ended.")
    readings = list(neighbour_readings(_raw(tmp_path, [_hog()]), [gone]))
    assert reasons(readings).keys() == {"neighbour_cpu", "neighbour_ops_per_s"}


@pytest.mark.parametrize(
    "hogs",
    [
        None,
        [],
        ["hog"],
        [{}],
        [_hog(lambda h: h.update({"hog.yaml": ""}))],
        [_hog(lambda h: h.update({"hog.yaml": h["hog.yaml"][:200]}))],
        [_hog(lambda h: h.update({"hog.yaml": "metrics: [{bogo-ops: many}]"}))],
        [_hog(lambda h: h.update({"hog.yaml": "metrics: [{bogo-ops: .nan, user-time: 1}]"}))],
        [_hog(lambda h: h.update({"hog.yaml": "a: &a [*a, !!python/object:os.system {}]"}))],
    ],
)
def test_a_report_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, hogs: object
) -> None:
    with pytest.raises(BrokenError, match=r"neighbour\.json"):
        list(neighbour_readings(_raw(tmp_path, hogs), [_cpu(1.0)]))


def test_the_error_repeats_what_stress_ng_said(tmp_path: Path) -> None:
    hog = {"stderr.txt": "stress-ng: error: cannot fork", "hog.yaml": "---\n"}
    with pytest.raises(BrokenError, match="cannot fork"):
        list(neighbour_readings(_raw(tmp_path, [hog]), [_cpu(1.0)]))


@pytest.mark.parametrize("is_old", [True, False])
def test_neighbours_that_used_no_cpu_time_are_an_error_and_not_a_division(
    tmp_path: Path, is_old: bool
) -> None:
    idle = "metrics: [{bogo-ops: 0, user-time: 0.0, system-time: 0.0}]"
    raw = _raw(tmp_path, [{"hog.yaml": idle}]) if is_old else _now(tmp_path)
    with pytest.raises(BrokenError, match="no CPU time"):
        list(neighbour_readings(raw, [_cpu(1.0)], [_work("cpu-hog", 5.0, 0.0)]))
