import json
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.collect import perf_stat
from labctl.collect.perf_stat import read_counters
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from tests.unit.collect.trials import reasons, recorded, values

AMD = "perf-stat-amd-json-user-6.x.jsonl"
CSV = "perf-stat-csv-all-cpus.csv"
INTEL = "perf-stat-intel-json-system-wide.jsonl"
THREADS = "perf-stat-json-per-thread.jsonl"
NO_PMU = "perf-stat-6.1-no-pmu.jsonl"


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


@pytest.mark.parametrize(
    ("name", "events", "first"),
    [
        (AMD, 7, ("page-faults:u", 45.0)),
        (CSV, 2, ("instructions", 6721924.0)),
        (INTEL, 7, ("context-switches", 986.0)),
        (THREADS, 6, ("cycles", 41498.0)),
    ],
)
def test_lines_of_every_recorded_format_are_read(
    name: str, events: int, first: tuple[str, float]
) -> None:
    counters = read_counters(recorded(name), name)
    assert len(counters) == events
    assert (counters[0].event, counters[0].value) == first


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


def test_without_a_pmu_everything_is_unavailable_in_perf_s_words(tmp_path: Path) -> None:
    readings = _parse(tmp_path, recorded(NO_PMU), "guest")
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
    assert {"ipc{source=pmu}", "host_share", "user_cycles"} == reasons(readings).keys()


def test_guest_only_events_that_count_nothing_are_unavailable(tmp_path: Path) -> None:
    text = "".join(
        _line(e, 0.0)
        for e in ("cycles:uG", "instructions:uG", "cycles:kG", "instructions:kG", "cycles:H")
    )
    readings = _parse(tmp_path, text, "guest")
    assert values(readings) == {}
    assert "without KVM" in reasons(readings)["ipc{source=pmu}"]


def test_the_probe_s_sentence_is_the_reason_where_nothing_was_run(tmp_path: Path) -> None:
    readings = list(perf_stat.parse(TrialFolder(tmp_path), kind="guest", problem="no PMU: so."))
    assert reasons(readings) == {"ipc{source=pmu}": "no PMU: so.", "user_cycles": "no PMU: so."}


@pytest.mark.parametrize(
    "text",
    [
        "perf: Segmentation fault",
        recorded(AMD)[:300],
        '{"counter-value": "1"}',
        '{"counter-value": "1", "event": "cycles:u", "pcnt-running": "x"}',
        '{"counter-value": "nan", "event": "cycles:u", "pcnt-running": 100}',
        '{"counter-value": "-5", "event": "cycles:u", "pcnt-running": 100}',
        '{"counter-value": "5", "event": "", "pcnt-running": 100}',
        '{"counter-value": "5", "event": "cycles:u", "pcnt-running": 900}',
        "1,2",
        "1,,cycles,5,many",
        "[]",
    ],
)
def test_what_is_not_perf_s_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(BrokenError, match=r"perf-stat\.txt"):
        _parse(tmp_path, text)


def test_the_guest_s_threads_are_counted_by_number_and_natively_a_process() -> None:
    guest = perf_stat.command("guest", [11, 12])
    assert guest[-2:] == ("--tid", "11,12")
    assert "cycles:uG" in guest[guest.index("--event") + 1]
    native = perf_stat.command("native", [7])
    assert native[-2:] == ("--pid", "7")
    assert "G" not in native[native.index("--event") + 1]


def _fake_perf(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "perf"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (f"cat >&2 <<'END'\n{recorded(NO_PMU)}END", "no PMU"),
        ("true", "every event"),
        ("echo 'Access to performance monitoring is limited' >&2; exit 255", "Access"),
        ("echo garbage >&2", "garbage"),
    ],
)
def test_why_perf_cannot_count_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, word: str
) -> None:
    _fake_perf(tmp_path, body, monkeypatch)
    reason = perf_stat.why_unavailable("guest")
    assert reason is not None
    assert word in reason


def test_a_host_without_perf_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = perf_stat.why_unavailable("native")
    assert reason is not None
    assert "not installed" in reason


def test_a_pmu_that_counts_needs_no_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_perf(tmp_path, f"cat >&2 <<'END'\n{GUEST}END", monkeypatch)
    assert perf_stat.why_unavailable("guest") is None
