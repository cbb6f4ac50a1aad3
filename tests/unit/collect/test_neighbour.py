import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.base.units import Better, Unit
from labctl.collect.neighbour import hog_command, neighbour_readings
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
    return trial(folder, neighbour_json=json.dumps({"hogs": hogs}))


def _hog(change: Callable[[dict[str, Any]], object] = lambda hog: None) -> dict[str, Any]:
    hog: dict[str, Any] = json.loads(recorded(HOG))
    change(hog)
    return hog


def test_throughput_is_operations_per_cpu_second_times_the_share_in_the_window(
    tmp_path: Path,
) -> None:
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


def test_hogs_that_used_no_cpu_time_are_an_error_and_not_a_division(tmp_path: Path) -> None:
    idle = "metrics: [{bogo-ops: 0, user-time: 0.0, system-time: 0.0}]"
    with pytest.raises(BrokenError, match="no CPU time"):
        list(neighbour_readings(_raw(tmp_path, [{"hog.yaml": idle}]), [_cpu(1.0)]))


def test_a_hog_is_one_process_with_one_method_and_an_end() -> None:
    command = hog_command()
    assert command.argv[1:5] == ("--cpu", "1", "--cpu-method", "int64")
    assert "--timeout" in command.argv
    assert command.files == ("hog.yaml",)
