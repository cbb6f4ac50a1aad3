import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from tests.unit.workloads.trials import recorded, trial, values

OSLAT = workload("oslat")

NATIVE = "oslat-2.40-native.json"
GUEST = "oslat-2.40-tcg-guest.json"


def _parse(folder: Path, text: str) -> dict[str, float]:
    return values(list(OSLAT.parse(trial(folder, files__oslat_json=text))))


def _altered(change: Callable[[dict[str, Any]], object]) -> str:
    report = json.loads(recorded(GUEST))
    change(report)
    return json.dumps(report)


def _with(histogram: dict[str, int], **more: float) -> str:
    """The recorded report with another histogram of one second; `more`: avg and max."""
    rounds = sum(histogram.values())
    told = sum(int(us) * count for us, count in histogram.items())
    entry = {"avg": told / rounds, "max": max(map(int, histogram)), "duration": 1.0, **more}
    return _altered(lambda r: r["thread"]["0"].update(histogram=histogram, **entry))


@pytest.mark.parametrize("name", [NATIVE, GUEST])
def test_a_recorded_run_tells_how_much_of_the_time_the_loop_did_not_run(
    tmp_path: Path, name: str
) -> None:
    (thread,) = json.loads(recorded(name))["thread"].values()
    found = _parse(tmp_path, recorded(name))
    assert 0 < found["noise"] < 1
    assert found["latency_max"] == pytest.approx(thread["max"] / 1e6)
    assert found["stalls"] == sum(n for us, n in thread["histogram"].items() if int(us) > 5)
    # What oslat takes for the length of all rounds of more than one bucket is an upper bound.
    rounds = sum(thread["histogram"].values())
    longer_us = thread["avg"] * rounds - thread["histogram"]["1"]
    assert found["noise"] < longer_us / 1e6 / thread["duration"]
    assert found["noise"] > 0.9 * longer_us / 1e6 / thread["duration"] - 0.02


def test_rounds_of_five_microseconds_and_less_are_no_noise(tmp_path: Path) -> None:
    found = _parse(tmp_path, _with({"1": 1_000_000, "5": 1000}))
    assert (found["noise"], found["stalls"]) == (0, 0)


def test_a_round_has_the_middle_of_its_bucket_as_its_length(tmp_path: Path) -> None:
    # Bucket 100 holds 99 to 100 us.
    found = _parse(tmp_path, _with({"1": 1_000_000, "100": 10}))
    assert found["noise"] == pytest.approx(995e-6)
    assert found["stalls"] == 10


def test_what_is_longer_than_the_last_bucket_is_known_by_the_average(tmp_path: Path) -> None:
    histogram = {"1": 1_000_000, "1024": 2}
    average = (1_000_000 + 30_000 + 70_000) / 1_000_002
    found = _parse(tmp_path, _with(histogram, avg=average, max=70_000))
    assert found["noise"] == pytest.approx(0.1, rel=1e-4)
    assert found["latency_max"] == pytest.approx(0.07)


def test_the_noise_of_two_cpus_adds_up(tmp_path: Path) -> None:
    one = json.loads(_with({"1": 1_000_000, "100": 10}))
    both = {**one, "thread": {"0": one["thread"]["0"], "1": one["thread"]["0"]}}
    assert _parse(tmp_path, json.dumps(both))["noise"] == pytest.approx(2 * 995e-6)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        recorded(GUEST)[:1500],
        _altered(lambda r: r.update(return_code=1)),
        _altered(lambda r: r.update(thread={})),
        _altered(lambda r: r["thread"]["0"].pop("avg")),
        _altered(lambda r: r["thread"]["0"].update(duration=0)),
        _altered(lambda r: r["thread"]["0"].update(histogram={})),
        _altered(lambda r: r["thread"]["0"].update(histogram={"1": -4})),
        _altered(lambda r: r["thread"]["0"].update(histogram={"one": 4})),
    ],
)
def test_output_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(BrokenError, match=r"files/oslat\.json"):
        _parse(tmp_path, text)


def _setting(cpus: frozenset[int] | None = None, **parameters: object) -> Setting:
    checked = OSLAT.check_parameters(parameters)
    return Setting(parameters=checked, vcpus=2, duration_s=30, cpus=cpus)


@pytest.mark.parametrize(
    ("cpus", "expected", "first"),
    [(None, "0-1", "0"), (frozenset({3, 5}), "3,5", "3"), (frozenset({2, 3, 4}), "2-3", "2")],
)
def test_its_loops_run_on_as_many_of_the_trial_s_cpus_as_there_are_vcpus(
    cpus: frozenset[int] | None, expected: str, first: str
) -> None:
    argv = OSLAT.command(_setting(cpus)).argv
    assert {f"--cpu-list={expected}", f"--cpu-main-thread={first}", "--duration=30"} <= set(argv)


def test_it_asks_for_no_policy_of_its_own_unless_told_to() -> None:
    assert not any("rtprio" in word for word in OSLAT.command(_setting()).argv)
    assert "--rtprio=10" in OSLAT.command(_setting(priority=10)).argv
