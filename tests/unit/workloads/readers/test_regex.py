import time
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from labctl.base import process
from labctl.base.errors import BrokenError
from labctl.workloads.metric_file import explain_run, matches_in, read_run, read_runs
from labctl.workloads.readers import matching
from tests.unit.workloads.readers.outputs import Left, metric, metrics, numbers, read, reasons

WRK = r"""Running 2s test @ http://127.0.0.1:8080/
  Latency Distribution
     50%  163.00us
     99%    2.50ms
  50220 requests in 2.00s, 7.9MB read
Requests/sec:  25110.50
"""


def test_a_number_and_its_printed_unit_are_read_by_lines() -> None:
    declared = metrics(
        requests={
            "regex": r"^Requests/sec:\s+(?P<value>[\d.]+)$",
            "unit": "1/s",
            "better": "higher",
        },
        p99={"regex": r"^\s+99%\s+(?P<value>[\d.]+)(?P<unit>us|ms|s|m)$", "better": "lower"},
    )
    assert read(declared, WRK) == pytest.approx({"requests": 25110.5, "p99": 0.0025})


def test_progress_that_is_written_over_becomes_lines_without_colours() -> None:
    printed = "\x1b[1mGET: rps=1.0\r\x1b[2KGET: 5.5 requests per second\r\n"
    declared = metric(regex=r"^GET: (?P<value>[\d.]+) requests per second$")
    assert read(declared, printed) == {"it": 5.5}


def test_several_matches_name_all_of_them() -> None:
    printed = "GET 0.0\nGET 50220.0\nGET 46838.41\n"
    with pytest.raises(
        BrokenError, match=r"expected one match, got 3 \(0.0, 50220.0, 46838.41\)"
    ) as said:
        read(metric(regex=r"^GET (?P<value>[\d.]+)"), printed)
    assert "which" in str(said.value.hint)


def test_no_match_is_an_error_that_shows_the_pattern_and_the_output_s_end() -> None:
    with pytest.raises(BrokenError, match="metric 'it': the pattern 'x=") as said:
        read(metric(regex=r"x=(?P<value>\d+)"), "no server\nConnection refused\n")
    assert "Connection refused" in said.value.message


@pytest.mark.parametrize(
    ("which", "value"),
    [("first", 1), ("last", 6), ("sum", 9), ("mean", 3), ("min", 1), ("max", 6)],
)
def test_which_says_what_counts_of_several(which: str, value: float) -> None:
    assert read(metric(regex=r"^n=(\d+)", which=which), "n=1\nn=2\nn=6\n") == {"it": value}


def test_a_formula_is_over_the_groups() -> None:
    declared = metric(
        regex=r"(?P<groups>\d+) groups.*\nTime: (?P<s>[\d.]+)", formula="groups * 40 / s"
    )
    assert read(declared, "10 groups of 40\nTime: 0.5\n") == {"it": 800}


def test_a_formula_is_over_other_metrics_whatever_their_order() -> None:
    declared = metrics(
        rate={"formula": "done / took", "unit": "1/s", "better": "higher"},
        done={"regex": r"done (\d+)", "unit": "count", "better": "neither"},
        took={"regex": r"took (\d+)", "unit": "ms", "better": "lower"},
    )
    assert read(declared, "done 10\ntook 500\n")["rate"] == 20


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("9 ** (9 ** 9) + a", "would exceed the limit"),
        ("'a' * 10 ** 8 ~ a", "would exceed the limit"),
        ("a / 0", "division"),
        ("a ~ 'x'", "text"),
    ],
)
def test_a_formula_that_goes_too_far_is_an_error(formula: str, said: str) -> None:
    with pytest.raises(BrokenError, match=said):
        read(metric(regex=r"(?P<a>\d+)", formula=formula), "5\n")


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "NaN", "1e9999"])
def test_what_is_no_finite_number_is_unavailable(text: str) -> None:
    values = read_run(metric(regex=r"=(\S+)"), Left(stdout=f"r={text}\n"))
    assert "the program printed" in reasons(values)["it"]
    assert not numbers(values)


@pytest.mark.parametrize("text", ["1,5", "1.2.3", "12abc", "0x10", "٣", "1" * 150])
def test_what_is_no_number_is_an_error(text: str) -> None:
    with pytest.raises(BrokenError, match="metric 'it'"):
        read(metric(regex=r"=(\S+)"), f"r={text}\n")


def test_thousands_are_parted_on_request() -> None:
    assert read(metric(regex=r"=(\S+)", thousands=","), "r=1,234,567.5\n") == {"it": 1234567.5}
    with pytest.raises(BrokenError, match="groups of three"):
        read(metric(regex=r"=(\S+)", thousands=","), "r=1,5\n")


def test_a_text_without_its_end_is_cut() -> None:
    declared = metric(regex=r"=(\d+)", whole=r"^done$")
    assert read(declared, "r=5123\ndone\n") == {"it": 5123}
    with pytest.raises(BrokenError, match="stdout is truncated"):
        read(declared, "r=512")


def test_a_pattern_that_takes_for_ever_is_ended_and_keeps_no_other_from_being_read() -> None:
    declared = metrics(
        slow={"regex": r"(a+)+$(?P<value>x)", "unit": "1/s", "better": "higher"},
        fine={"regex": r"b=(\d)", "unit": "1/s", "better": "higher"},
    )
    begun = time.monotonic()
    explained = explain_run(declared, Left(stdout="a" * 40 + "\nb=7"))
    assert time.monotonic() - begun < 50
    assert "more than 5 s of CPU time" in str(explained["slow"].error)
    assert numbers(explained["fine"].values) == {"fine": 7}
    assert explained["fine"].shown == ("b=7",)


def test_patterns_that_take_long_together_are_no_fault_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = Left(stdout="n=5\n" + "x" * 1000)
    slow = {
        f"m{number}": {"regex": rf"n=(?P<value>{number})", "unit": "1/s", "better": "higher"}
        for number in range(4, 7)
    }
    # A child that ends after each answer stands for one whose time is over.
    run = process.run

    def ended(argv: list[str], **options: Any) -> process.Completed:
        done = run(argv, **options)
        return replace(done, stdout=done.stdout.splitlines(keepends=True)[0], returncode=-24)

    monkeypatch.setattr(process, "run", ended)
    explained = explain_run(metrics(**slow), left)
    assert numbers(explained["m5"].values) == {"m5": 5}
    assert "matches nothing" in str(explained["m6"].error)


def test_texts_beyond_one_child_s_memory_are_read_by_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matching, "_MOST_CHARACTERS", 10)
    runs = [Left(stdout=f"n={number}" + "x" * 8) for number in range(4)]
    found = read_runs(metric(regex=r"n=(\d)"), runs)
    assert [numbers(values)["it"] for values in found] == [0, 1, 2, 3]


def test_so_many_lines_are_read_that_a_p999_has_its_samples() -> None:
    declared = metric(regex=r"^t=(\d+)$", unit="us", better="lower", as_="percentiles")
    found = read(declared, "".join(f"t={n}\n" for n in range(1, 20_001)))
    assert found["it_p999"] == pytest.approx(19_980e-6)


def test_millions_of_matches_are_an_error() -> None:
    with pytest.raises(BrokenError, match="more than 200000 matches"):
        read(metric(regex=r"(?P<value>\d)", which="sum"), "1" * 300_000)


def test_an_unknown_printed_unit_is_an_error() -> None:
    declared = metric(regex=r"(?P<value>\d+) (?P<unit>\w+)", unit="ms", better="lower")
    assert read(declared, "5 s\n") == {"it": 5}
    assert read(declared, "5 msec\n") == {"it": pytest.approx(0.005)}
    with pytest.raises(BrokenError, match="unit 'Mops'"):
        read(declared, "5 Mops\n")
    with pytest.raises(BrokenError, match="expected a unit of 's', got"):
        read(declared, "5 count\n")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"regex": "("}, "not a regular expression"),
        ({"regex": r"\d+"}, "no group around the number"),
        ({"regex": r"(\d+)", "json": "a"}, "exactly one"),
        ({}, "exactly one"),
        ({"regex": r"(\d+)", "unit": "a\tb"}, "printable characters"),
        ({"regex": r"(\d+)", "unit": "u" * 41}, "40 characters, got"),
        ({"regex": r"(\d+)", "unit": None}, "'unit' is missing"),
        ({"regex": r"(\d+)", "as": "share"}, "needs 'over'"),
        ({"regex": r"(\d+)", "as": "share", "over": "5ms"}, "a different kind of unit"),
        ({"regex": r"(?P<a>\d+)", "formula": "b + 1"}, "the formula uses 'b'"),
        ({"regex": r"(?P<a>\d+)", "formula": "range(a)"}, "the formula uses 'range'"),
        ({"regex": r"(?P<a>\d+)", "formula": "a +"}, "not an expression"),
        ({"regex": r"(\d+)", "from": "../x"}, "match pattern"),
        ({"regex": r"(\d+)", "between": [2.0, 1.0]}, "larger number"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        metric(**keys)


def test_a_unit_of_the_program_s_own_stays_as_it_is() -> None:
    declared = metric(regex=r"(\d+) Mops", unit="Mops/s", better=None)
    (value,) = read_run(declared, Left("5 Mops\n")).values()
    assert not isinstance(value, str)
    assert (value.value, str(value.unit), value.better) == (5, "Mops/s", "higher")
    printed = metric(regex=r"(?P<value>\d+) (?P<unit>\S+)", unit="Mops/s")
    assert read(printed, "5 Mops/s\n") == {"it": 5}


def test_a_direction_that_nothing_tells_is_asked_for() -> None:
    with pytest.raises(ValidationError, match="'better' of 'it' is missing"):
        metric(regex=r"(\d+)", unit="count", better=None)


def test_what_a_whole_run_has_is_checked() -> None:
    declared = metric(regex=r"=(\d+)", unit="ms", better="lower", must_be=90.0)
    assert read(declared, "r=90\n") == {"it": pytest.approx(0.09)}
    with pytest.raises(BrokenError, match="it: expected 90, got 89"):
        read(declared, "r=89\n")
    with pytest.raises(BrokenError, match="expected a value from 1 to 5, got"):
        read(metric(regex=r"=(\d+)", between=[1.0, 5.0]), "r=6\n")


def test_patterns_of_what_must_be_absent_are_found_with_their_line() -> None:
    left = Left(stdout="ok\n  Socket errors: 5\n", stderr="warning\n")
    found = matches_in([r"^\s*Socket errors", r"^error", "warn"], left)
    assert found == {r"^\s*Socket errors": "  Socket errors: 5", "warn": "warning"}
    assert matches_in(["^error"], left, Left(stdout="error: x\n")) == {"^error": "error: x"}
    assert matches_in([], left) == {}
