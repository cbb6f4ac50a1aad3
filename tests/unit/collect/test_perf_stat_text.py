import json

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.counters.perf import Counter, counts, read_counters, totals
from tests.unit.collect.trials import recorded

AMD = "perf-stat-amd-json-user-6.x.jsonl"
CSV = "perf-stat-csv-all-cpus.csv"
INTEL = "perf-stat-intel-json-system-wide.jsonl"
HYBRID = "perf-stat-6.8-csv-hybrid-topdown.csv"
"""Of a host with two kinds of cores, posted on a public kernel list in 2024."""
THREADS = "perf-stat-json-per-thread.jsonl"


def _only(text: str) -> Counter:
    (counter,) = read_counters(text, "a file")
    return counter


@pytest.mark.parametrize(
    ("name", "events", "first"),
    [
        (AMD, 7, ("page-faults:u", 45.0)),
        (CSV, 2, ("instructions", 6721924.0)),
        (INTEL, 7, ("context-switches", 986.0)),
        (THREADS, 6, ("cycles", 41498.0)),
        (HYBRID, 7, ("task-clock:u", 0.65)),
    ],
)
def test_lines_of_every_recorded_format_are_read(
    name: str, events: int, first: tuple[str, float]
) -> None:
    counters = read_counters(recorded(name), name)
    assert len(counters) == events
    assert (counters[0].event, counters[0].value) == first


def test_a_decimal_comma_changes_nothing() -> None:
    text = recorded(AMD)
    german = text.replace(".", ",")
    assert german != text
    assert read_counters(german, AMD) == read_counters(text, AMD)


def test_numbers_may_be_strings_or_not() -> None:
    plain = '{"counter-value" : 143761.0, "event" : "cycles:u", "pcnt-running" : "66,67"}'
    assert _only(plain) == Counter(event="cycles:u", value=143761, running_percent=66.67)


@pytest.mark.parametrize(
    "line",
    [
        "1.37,msec,task-clock,1373200,100.00,1.018,CPUs utilized",
        "CPU0,1.37,msec,task-clock,1373200,100.00,1.018,CPUs utilized",
        "S0-D0-C0,2,1.37,msec,task-clock,1373200,100.00,1.018,CPUs utilized",
        "     0.010091892,1.37,msec,task-clock,1373200,100.00,1.018,CPUs utilized",
        "perf-62294,1.37,msec,task-clock,1373200,100.00",
        "1,37;msec;task-clock;1373200;100,00;1,018;CPUs utilized",
    ],
)
def test_csv_is_read_whatever_stands_before_the_count(line: str) -> None:
    assert _only(line) == Counter(event="task-clock", value=1.37, running_percent=100)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("<not supported>,,cycles:u,0,100.00,,", "<not supported>"),
        ("CPU0,<not counted>,,cycles:u,0,100.00,,", "<not counted>"),
        (",,cycles:u,0,100.00,,", "nothing"),
        ('{"counter-value" : "", "event" : "cycles:u", "pcnt-running" : 100.00}', "nothing"),
    ],
)
def test_what_was_not_counted_is_no_zero(line: str, problem: str) -> None:
    counter = _only(line)
    assert counter.value is None
    assert counter.problem == problem
    assert not counter.is_whole


def test_one_of_many_threads_that_was_not_counted_spoils_their_sum() -> None:
    lines = "a-1,5,,cycles,7,100.00\nb-2,<not counted>,,cycles,0,0.00\n"
    summed = totals(read_counters(lines, "a file"))
    assert counts(summed, ["cycles"]) == "perf says <not counted> for cycles."


def _hybrid(*lines: str) -> list[float] | str:
    return counts(totals(read_counters("\n".join(lines), "a file")), ["cycles:u"])


def test_on_several_kinds_of_cores_a_thread_s_counts_add_up_without_perf_s_scaling() -> None:
    # perf scales each up to the whole time: 1.89 % and 98.11 % of it are what was counted.
    found = _hybrid(
        "12640094118,,cpu_atom/cycles/u,175,1.89,,",
        "25549986034,,cpu_core/cycles/u,9111,98.11,,",
        "<not counted>,,cpu_lowpower/cycles/u,0,0.00,,",
    )
    assert found == [pytest.approx(0.0189 * 12640094118 + 0.9811 * 25549986034)]


@pytest.mark.parametrize(
    "name", ["cpu_core/cycles:u/", "cpu_core/cycles/u", "armv8_pmuv3_0/cycles/u"]
)
def test_one_kind_of_cores_that_counted_all_of_the_time_is_enough(name: str) -> None:
    other = (
        '{"counter-value" : "<not counted>", "event" : "cpu_atom/cycles/u", "pcnt-running" : 0.00}'
    )
    assert _hybrid(f"81947837,,{name},5,100.00,,", other) == [81947837]


def test_whole_cpus_of_several_kinds_add_up() -> None:
    assert _hybrid("5,,cpu_atom/cycles/u,5,100.00,,", "7,,cpu_core/cycles/u,5,100.00,,") == [12]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("5,,cpu_atom/cycles/u,5,42.00,,", "<not counted>,,cpu_core/cycles/u,0,0.00,,"), "42 %"),
        (("5,,cpu_atom/cycles/u,5,60.00,,", "5,,cpu_core/cycles/u,5,70.00,,"), "60 %"),
        (("<not counted>,,cpu_core/cycles/u,0,0.00,,",), "<not counted>"),
        (
            ("5,,cpu_core/cycles/u,5,100.00,,", "<not supported>,,cpu_atom/cycles/u,0,100.00,,"),
            "<not supported>",
        ),
    ],
)
def test_kinds_of_cores_that_counted_too_little_tell_no_count(
    lines: tuple[str, ...], said: str
) -> None:
    found = _hybrid(*lines)
    assert isinstance(found, str)
    assert said in found


def test_events_of_other_pmus_keep_their_names() -> None:
    summed = totals(read_counters("5,,msr/aperf/,7,100.00,,", "a file"))
    assert set(summed) == {"msr/aperf/"}


def test_what_several_runs_differ_by_is_no_event() -> None:
    line = "8847212,,bp_l1_tlb_miss_l2_tlb_hit:u,2.29%,756066504,49.00,0.4,per_1k_instr"
    expected = Counter(event="bp_l1_tlb_miss_l2_tlb_hit:u", value=8847212, running_percent=49)
    assert _only(line) == expected


def test_perf_6_14_s_comma_before_the_brace_is_read_over() -> None:
    line = '{"counter-value" : "3112.000000", "event" : "cycles:u", "pcnt-running" : 100.00, }'
    assert _only(line).value == 3112


@pytest.mark.parametrize("metric", ["nan", "-nan", "inf", '"nan"'])
def test_a_metric_that_is_no_number_leaves_its_counter_as_it_is(metric: str) -> None:
    counter = '"counter-value" : "5", "event" : "cycles:u", "pcnt-running" : 100.00'
    line = f'{{{counter}, "metric-value" : {metric}}}'
    assert _only(line).value == 5
    assert counts(totals([_only(line)]), ["cycles:u"]) == [5]


def test_a_counter_that_is_no_number_is_an_error() -> None:
    with pytest.raises(BrokenError, match="a file"):
        _only('{"counter-value" : nan, "event" : "cycles:u", "pcnt-running" : 100.00}')


def test_lines_of_a_metric_alone_are_no_counters() -> None:
    metrics = [line for line in recorded(INTEL).splitlines() if "counter-value" not in line]
    assert metrics
    assert read_counters("\n".join(metrics), INTEL) == []
    assert read_counters(",,,,,0.00,stalled cycles per insn", CSV) == []


def test_every_prefix_of_a_recorded_file_is_read_or_refused() -> None:
    text = recorded(CSV)
    whole = [(c.event, c.value) for c in read_counters(text, CSV)]
    for end in range(len(text)):
        try:
            found = read_counters(text[:end], CSV)
        except BrokenError:
            continue
        assert [(c.event, c.value) for c in found] == whole[: len(found)]


def _entry(**changes: object) -> str:
    entry = {"counter-value": "5", "event": "cycles:u", "pcnt-running": 100} | {
        key.replace("_", "-"): value for key, value in changes.items()
    }
    return json.dumps(entry)


@pytest.mark.parametrize(
    "text",
    [
        "perf: Segmentation fault",
        recorded(AMD)[:300],
        '{"counter-value": "1"}',
        _entry(pcnt_running="x"),
        _entry(pcnt_running=900),
        _entry(pcnt_running=float("nan")),
        _entry(counter_value="nan"),
        _entry(counter_value="inf"),
        _entry(counter_value="-5"),
        _entry(counter_value="143,761"),
        _entry(counter_value="143,761.000000"),
        _entry(counter_value=None),
        _entry(counter_value=[1]),
        _entry(event=""),
        "1,2",
        "<not counted>,,cycles",
        "<not counted>,,cycles,,,,",
        "1,,cycles,5,many",
        "1,,cycles,much,100.00",
        "[]",
        "{" * 100_000,
    ],
)
def test_what_is_not_perf_s_is_an_error_that_names_the_file(text: str) -> None:
    with pytest.raises(BrokenError, match="a file"):
        read_counters(text, "a file")
