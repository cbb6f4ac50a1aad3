import pytest
from pydantic import TypeAdapter, ValidationError

from labctl.base.errors import BrokenError, UsageError
from labctl.base.units import Better, Unit
from labctl.workloads.metric_file import (
    combine,
    metric_names,
    needed_for,
    operations_of,
    read_runs,
    total_operations,
    windows_in,
)
from labctl.workloads.readers.declaration import MetricFile, ReadingFile
from labctl.workloads.windows import RateWindow
from tests.unit.workloads.readers.outputs import Left, metric, metrics, numbers, reasons
from tests.unit.workloads.trials import recorded

RATE = {"regex": r"rate=(\S+)", "unit": "1/s", "better": "higher"}


def _runs(*texts: str) -> list[Left]:
    return [Left(stdout=text) for text in texts]


def _reading(**keys: object) -> ReadingFile:
    return TypeAdapter(ReadingFile).validate_python(keys)


def test_a_rate_over_runs_of_equal_work_is_all_work_over_all_time() -> None:
    declared = metrics(
        rate=RATE,
        time={"regex": r"time=(\S+)", "unit": "s", "better": "lower"},
        lost={"regex": r"lost=(\S+)", "unit": "1/s", "better": "lower"},
    )
    # 100 operations in 1 s, then 100 in 4 s.
    texts = _runs("rate=100 time=1 lost=2\n", "rate=25 time=4 lost=4\n")
    found = numbers(combine(declared, read_runs(declared, texts)))
    assert found == pytest.approx({"rate": 200 / 5, "time": 2.5, "lost": 3})


def test_what_one_run_lacks_the_trial_lacks() -> None:
    declared = metrics(rate=RATE)
    combined = combine(declared, read_runs(declared, _runs("rate=1\n", "rate=nan\n")))
    assert "'nan'" in reasons(combined)["rate"]


def test_what_one_metric_takes_to_be_read_is_known() -> None:
    declared = metrics(
        rate=RATE,
        other=RATE,
        twice={"formula": "rate * 2", "unit": "1/s", "better": "higher"},
        report={"reader": "sysbench"},
    )
    assert set(needed_for(declared, "twice")) == {"twice", "rate"}
    assert set(needed_for(declared, "events_per_s")) == {"report"}
    assert needed_for(declared, "elapsed") == {}


def test_several_runs_have_no_error_of_one() -> None:
    declared = metrics(report={"reader": "sysbench"})
    text = recorded("sysbench-1.0.20-windows-tcg-guest.txt")
    one = combine(declared, read_runs(declared, _runs(text)))
    two = combine(declared, read_runs(declared, _runs(text, text)))
    errors = {key for key in one if key.startswith("batch_error")}
    assert errors
    assert set(two) == set(one) - errors
    assert numbers(two)["operations"] == 2 * numbers(one)["operations"]
    assert numbers(two)["events_per_s"] == pytest.approx(numbers(one)["events_per_s"])


def test_a_run_that_did_nothing_makes_no_rate_of_the_others() -> None:
    declared = metrics(rate=RATE)
    combined = combine(declared, read_runs(declared, _runs("rate=0\n", "rate=9\n")))
    assert numbers(combined) == {"rate": 0}


def test_operations_of_all_runs_are_added_up() -> None:
    assert total_operations(None, []) is None
    file = _reading(regex=r"^(\d+) requests")
    runs = _runs("5 requests\n", "7 requests\n8 requests\n")
    assert operations_of(file, runs) == [5, 15]
    assert total_operations(file, runs) == 20
    with pytest.raises(BrokenError, match="operations: the pattern"):
        total_operations(file, _runs("no server\n"))
    by_path = _reading(json="jobs[*].n")
    assert total_operations(by_path, _runs('{"jobs": [{"n": 2}, {"n": 3}]}')) == 5
    by_column = _reading(csv={"column": "n"})
    assert total_operations(by_column, _runs("n\n4\n5\n")) == 9


def test_iperf3_s_windows_are_its_intervals() -> None:
    file = _reading(json="intervals[*].sum", seconds="seconds", operations="bytes")
    left = Left(stdout=recorded("iperf3-3.12-windows.json"))
    windows = windows_in(file, left)
    assert [window.operations > 0 for window in windows] == [True] * 7
    later = windows_in(file, left, skip_s=0.15)
    assert 0 < len(later) < 7


def test_windows_are_a_regex_s_groups_or_columns() -> None:
    text = "[ 1s ] eps: 10\n[ 2s ] eps: 0\n"
    by_regex = _reading(regex=r"eps: (?P<operations>\d+)", seconds=1.0)
    assert windows_in(by_regex, Left(stdout=text)) == [RateWindow(1, 10), RateWindow(1, 0)]
    by_column = _reading(csv={"column": "n"}, seconds="s", operations="n")
    assert windows_in(by_column, Left(stdout="s,n\n0.5,3\n")) == [RateWindow(0.5, 3)]
    with pytest.raises(BrokenError, match="window of 0 s"):
        windows_in(by_column, Left(stdout="s,n\n0,3\n"))


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("ipc", {}, "'ipc' is labctl's own metric"),
        ("exits", {}, "labctl's own"),
        ("elapsed", {"unit": "s", "better": "lower"}, "labctl's own"),
        ("latency_p95", {}, "of unit 's', better lower"),
        ("iops", {"better": "lower"}, "better higher"),
    ],
)
def test_labctl_s_own_names_are_refused(name: str, keys: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        metrics(**{name: RATE | keys})


def test_a_name_of_labctl_s_that_means_the_same_is_taken() -> None:
    assert metrics(iops=RATE)
    latency = {"csv": {"column": "us"}, "as": "percentiles", "unit": "us", "better": "lower"}
    known = metric_names(metrics(latency=latency))
    assert known["latency_p95"].unit is Unit.SECONDS
    assert known["latency_p95"].better is Better.LOWER


def test_two_declarations_never_make_one_metric() -> None:
    percentiles = {"csv": {"column": "us"}, "as": "percentiles", "unit": "us", "better": "lower"}
    with pytest.raises(ValidationError, match="both make the metric 'wait_p95'"):
        metrics(wait=percentiles, wait_p95=RATE | {"unit": "s", "better": "lower"})


@pytest.mark.parametrize(
    ("formula", "said"), [("rat * 2", "Did you mean 'rate'"), ("twice", "use each other")]
)
def test_a_formula_is_over_metrics_that_are_there(formula: str, said: str) -> None:
    twice = {"formula": formula, "unit": "1/s", "better": "higher"}
    with pytest.raises(ValidationError, match=said):
        metrics(rate=RATE, twice=twice)
    unchecked = {"twice": TypeAdapter(MetricFile).validate_python(twice)}
    with pytest.raises(UsageError):
        metric_names(unchecked)


def test_a_formula_over_what_is_unavailable_is_so_too() -> None:
    declared = metrics(rate=RATE, twice={"formula": "rate * 2", "unit": "1/s", "better": "higher"})
    (values,) = read_runs(declared, _runs("rate=nan\n"))
    assert "'rate' is unavailable" in reasons(values)["twice"]


@pytest.mark.parametrize("text", ["", "\0" * 1000, "\x1b[31m", "é\ufeff\u2028", "9" * 100_000])
def test_any_text_is_read_or_an_error(text: str) -> None:
    for declared in (
        metric(regex=r"(\d+)"),
        metric(json="a.b"),
        metric(yaml="a.b"),
        metric(csv={"column": "a"}),
    ):
        with pytest.raises(BrokenError):
            read_runs(declared, _runs(text))
