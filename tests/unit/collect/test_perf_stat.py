import json
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.counters import perf_stat
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from tests.unit.collect.trials import reasons, recorded, values

AMD = "perf-stat-amd-json-user-6.x.jsonl"
CSV = "perf-stat-csv-all-cpus.csv"
INTEL = "perf-stat-intel-json-system-wide.jsonl"
THREADS = "perf-stat-json-per-thread.jsonl"
NO_PMU = ("perf-stat-6.1-no-pmu.jsonl", "perf-stat-6.12-no-pmu.jsonl")


GUEST_EVENTS = "cycles:uG,instructions:uG"


def _parse(folder: Path, text: str, kind: str = "native") -> list[Reading]:
    raw = TrialFolder(folder)
    raw.write_raw("perf-stat.txt", text)
    return list(perf_stat.parse(raw, kind=kind))


def _line(event: str, value: object, percent: float = 100.0) -> str:
    return json.dumps({"counter-value": str(value), "event": event, "pcnt-running": percent}) + "\n"


GUEST = (
    _line("cycles:uG", 1000.0)
    + _line("instructions:uG", 1500.0)
    + _line("cycles:kG", 500.0)
    + _line("instructions:kG", 100.0)
    + _line("cycles:H", 500.0)
)


def test_user_ipc_of_a_recorded_process(tmp_path: Path) -> None:
    readings = _parse(tmp_path, recorded(AMD))
    assert values(readings)["ipc{source=pmu}"] == pytest.approx(1.048156, abs=1e-6)
    assert values(readings)["user_cycles"] == 143761


def test_what_was_not_among_the_events_is_unavailable(tmp_path: Path) -> None:
    readings = _parse(tmp_path, recorded(AMD))
    assert "no count of instructions:k" in reasons(readings)["ipc{level=kernel,source=pmu}"]


def test_threads_are_added_up(tmp_path: Path) -> None:
    def of(tid: int) -> str:
        one = "".join(_line(f"{e}:uG", tid * n) for e, n in (("cycles", 2), ("instructions", 1)))
        return one.replace('{"', f'{{"thread": "CPU {tid}/KVM-{tid}", "', 1)

    found = values(_parse(tmp_path, of(10) + of(30), "guest"))
    assert found["ipc{source=pmu}"] == 0.5
    assert found["user_cycles"] == 80


def test_a_guest_is_counted_apart_from_the_host_that_carries_it(tmp_path: Path) -> None:
    found = values(_parse(tmp_path, GUEST, "guest"))
    assert found == {
        "ipc{source=pmu}": 1.5,
        "ipc{level=kernel,source=pmu}": 0.2,
        "host_share": 0.25,
        "user_cycles": 1000,
    }


@pytest.mark.parametrize("name", NO_PMU)
def test_without_a_pmu_everything_is_unavailable_in_perf_s_words(tmp_path: Path, name: str) -> None:
    readings = _parse(tmp_path, recorded(name), "guest")
    assert values(readings) == {}
    assert "<not supported>" in reasons(readings)["ipc{source=pmu}"]


def test_an_event_that_was_not_counted_is_no_zero(tmp_path: Path) -> None:
    text = GUEST.replace('"1000.0"', '"<not counted>"')
    readings = _parse(tmp_path, text, "guest")
    assert "<not counted>" in reasons(readings)["ipc{source=pmu}"]
    assert values(readings)["ipc{level=kernel,source=pmu}"] == 0.2


def test_a_counter_that_was_shared_makes_its_ratio_unavailable(tmp_path: Path) -> None:
    text = GUEST.replace(_line("instructions:uG", 1500.0), _line("instructions:uG", 1500.0, 66.7))
    readings = _parse(tmp_path, text, "guest")
    assert "66.7 %" in reasons(readings)["ipc{source=pmu}"]


def test_one_thread_s_shared_counter_spoils_the_sum(tmp_path: Path) -> None:
    readings = _parse(tmp_path, GUEST + _line("cycles:uG", 5.0, 50.0), "guest")
    spoilt = {"ipc{source=pmu}", "host_share", "user_cycles"}
    assert spoilt < reasons(readings).keys()
    assert values(readings).keys() == {"ipc{level=kernel,source=pmu}"}


def test_guest_only_events_that_count_nothing_are_unavailable(tmp_path: Path) -> None:
    text = "".join(
        _line(e, 0.0)
        for e in ("cycles:uG", "instructions:uG", "cycles:kG", "instructions:kG", "cycles:H")
    )
    readings = _parse(tmp_path, text, "guest")
    assert values(readings) == {}
    assert "without KVM" in reasons(readings)["ipc{source=pmu}"]


def test_the_probe_s_sentence_is_the_reason_where_nothing_was_run(tmp_path: Path) -> None:
    raw = TrialFolder(tmp_path)
    raw.write_raw(perf_stat.PROBLEM, "no PMU: so.")
    readings = list(perf_stat.parse(raw, kind="guest"))
    said = reasons(readings)
    assert {"ipc{source=pmu}", "user_cycles", "llc_misses", "branch_misses"} == said.keys()
    assert set(said.values()) == {"no PMU: so."}


def test_the_guest_s_threads_are_counted_by_number_and_natively_a_process() -> None:
    guest = perf_stat.command("guest", [11, 12], perf_stat.user_events("guest"), ["-x,"])
    assert guest == ("perf", "stat", "-x,", "--event", GUEST_EVENTS, "--tid", "11,12")
    native = perf_stat.command("native", [7], ["cycles:u"], ["--json-output"])
    assert native[-4:] == ("--event", "cycles:u", "--pid", "7")


def test_native_events_are_those_of_the_guest_without_guest_and_host() -> None:
    def flat(kind: str) -> set[str]:
        groups = perf_stat.wanted_events(kind)
        return {event for choices in groups for choice in choices for event in choice}

    assert {event.removesuffix("G") for event in flat("guest")} - flat("native") == {"cycles:H"}
    assert not any(event.endswith("G") for event in flat("native"))


MISSES = (
    _line("LLC-load-misses:uG", 3.0)
    + _line("LLC-loads:uG", 60.0)
    + _line("branch-misses:uG", 6.0)
    + _line("branches:uG", 120.0)
    + _line("stalled-cycles-frontend:uG", 250.0)
)


def test_misses_are_told_per_instruction_and_of_all_tries(tmp_path: Path) -> None:
    found = values(_parse(tmp_path, GUEST + MISSES, "guest"))
    assert found["llc_misses{event=LLC-load-misses}"] == 3
    assert found["llc_miss_share{event=LLC-load-misses}"] == 0.05
    assert found["llc_mpki{event=LLC-load-misses}"] == 2
    assert found["branch_misses{event=branch-misses}"] == 6
    assert found["branch_mpki{event=branch-misses}"] == 4
    assert found["stalled_cycles{where=frontend}"] == 0.25


def test_the_generic_event_of_misses_is_never_taken_for_the_other(tmp_path: Path) -> None:
    text = GUEST + MISSES.replace("LLC-load-misses", "cache-misses").replace(
        "LLC-loads", "cache-references"
    )
    found = values(_parse(tmp_path, text, "guest"))
    assert found["llc_mpki{event=cache-misses}"] == 2
    assert not any("LLC-load-misses" in key for key in found)


def test_no_miss_at_all_is_a_count_of_none(tmp_path: Path) -> None:
    text = GUEST + MISSES.replace('"3.0"', '"0.0"')
    assert values(_parse(tmp_path, text, "guest"))["llc_mpki{event=LLC-load-misses}"] == 0


def test_a_recorded_event_without_a_counter_costs_only_its_own_metrics(tmp_path: Path) -> None:
    readings = _parse(tmp_path, recorded(AMD))
    assert values(readings)["stalled_cycles{where=backend}"] == pytest.approx(0.08096076)
    assert "<not counted>" in reasons(readings)["branch_mpki{event=branch-misses}"]


def test_what_was_left_out_says_why(tmp_path: Path) -> None:
    why = "the PMU has no counter left."
    left_out = {"LLC-load-misses:uG": why, "LLC-loads:uG": why}
    TrialFolder(tmp_path).write_raw_json("perf-stat-left-out.json", left_out)
    found = reasons(_parse(tmp_path, GUEST, "guest"))
    assert found["llc_misses"] == why
    assert found["llc_mpki"] == why
    assert "no count of branch-misses:uG" in found["branch_misses"]


def test_reasons_that_are_none_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    TrialFolder(tmp_path).write_raw_json("perf-stat-left-out.json", ["cycles:k"])
    with pytest.raises(BrokenError, match=r"perf-stat-left-out\.json"):
        _parse(tmp_path, GUEST, "guest")
