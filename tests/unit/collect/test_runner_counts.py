import json
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.collect import runner_counts
from labctl.store.samples import Sample
from tests.unit.collect.trials import (
    RUNNER,
    Change,
    altered,
    reasons,
    recorded,
    same,
    trial,
    values,
)


def _steal_a_tenth(data: Any) -> None:
    data["before"]["stat"] = "cpu 0 0 0 0 0 0 0 5 0 0\n"
    data["after"]["stat"] = "cpu 50 0 10 30 0 0 0 15 40 0\n"


def test_switches_are_per_second_of_the_workload(tmp_path: Path) -> None:
    raw = trial(tmp_path, runner=altered(RUNNER, same))
    found = values(list(runner_counts.parse(raw, kind="native", accelerator="kvm")))
    data = json.loads(recorded(RUNNER))
    expected = data["rusage"]["nivcsw"] / data["duration_s"]
    assert found["ctx_switches{kind=involuntary,of=workload}"] == pytest.approx(expected)
    assert found["duration"] == data["duration_s"]


def test_steal_is_a_share_of_all_cpu_time_with_guest_time_counted_once(tmp_path: Path) -> None:
    raw = trial(tmp_path, runner=altered(RUNNER, _steal_a_tenth))
    assert values(list(runner_counts.parse(raw, kind="guest", accelerator="kvm")))["steal"] == 0.1


@pytest.mark.parametrize(
    ("kind", "accelerator", "word"),
    [("guest", "tcg", "emulated"), ("native", "kvm", "no guest"), ("native", "tcg", "no guest")],
)
def test_where_no_steal_can_be_told_it_is_unavailable_and_not_zero(
    tmp_path: Path, kind: str, accelerator: str, word: str
) -> None:
    readings = list(
        runner_counts.parse(
            trial(tmp_path, runner=altered(RUNNER, _steal_a_tenth)),
            kind=kind,
            accelerator=accelerator,
        )
    )
    assert "steal" not in values(readings)
    assert word in reasons(readings)["steal"]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.clear(),
        lambda d: d.pop("rusage"),
        lambda d: d["rusage"].update(nvcsw="many"),
        lambda d: d["rusage"].update(utime_s=-5),
        lambda d: d.update(duration_s=0),
        lambda d: d.update(duration_s=float("nan")),
        lambda d: d.pop("before"),
        lambda d: d["after"].update(stat="cpu 1 2"),
        lambda d: d["after"].update(stat="cpu a b c d e f g h"),
        lambda d: d["after"].update(stat=d["before"]["stat"]),
    ],
)
def test_what_is_not_the_runner_s_is_an_error_that_names_the_file(
    tmp_path: Path, change: Change
) -> None:
    raw = trial(tmp_path, runner=altered(RUNNER, change))
    with pytest.raises(BrokenError, match=r"runner\.json"):
        list(runner_counts.parse(raw, kind="guest", accelerator="kvm"))


def test_a_run_from_before_the_file_had_its_name_is_read(tmp_path: Path) -> None:
    raw = trial(tmp_path, side=altered(RUNNER, same))
    found = list(runner_counts.parse(raw, kind="native", accelerator="kvm"))
    assert values(found)["duration"] > 0
    assert {r.source for r in found if isinstance(r, Sample)} == {"side.json"}
    raw.write_raw_json("runner.json", altered(RUNNER, _steal_a_tenth))
    assert runner_counts.read_counts(raw).source == "runner.json"
