import time
import tracemalloc

import numpy as np
import pytest

from labctl.base.errors import BrokenError
from labctl.workloads.metric_file import read_run
from labctl.workloads.readers.columns import LONGEST_ROW
from tests.unit.workloads.readers.outputs import Left, metric, numbers, read, reasons

REDIS = (
    '"test","rps","avg_latency_ms","p99_latency_ms"\n"SET","1.00","0.5","0.9"\n'
    '"GET","52083.33","0.488","0.743"\n'
)
"""As redis-benchmark 7.0.15 --csv prints it, columns left out."""


def test_a_cell_is_found_by_its_column_and_its_row() -> None:
    declared = metric(csv={"column": "rps", "where": {"test": "GET"}})
    assert read(declared, REDIS) == {"it": 52083.33}


def test_every_row_must_be_meant_or_one_be_named() -> None:
    with pytest.raises(BrokenError, match=r"expected one match, got 2 \(1, 52083.33\)"):
        read(metric(csv={"column": "rps"}), REDIS)
    assert read(metric(csv={"column": "rps"}, which="last"), REDIS) == {"it": 52083.33}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no row"),
        ("\n\n", "no row"),
        ("a,b\n", "no row; stdout ends"),
        ("a,b\n1,2\n3\n", "Expected 2 columns, got 1"),
        ("a,b\n1,2\n3,4,5\n", "Expected 2 columns, got 3"),
        ("a,b\n1,2\n3,4", "may be truncated"),
        ("a,c\n1,2\n", "no column 'b'"),
        ("b,b\n1,2\n", "has a column twice"),
        ("a,b\n1,x\n", "'x' is not a number"),
        ("a,b\n1,\n", "'' is not a number"),
        ('a,b\n1,"2,5"\n', "has a comma"),
        ("a,b\n1,0x10\n", "'0x10' is not a number"),
        ("," * 5000 + "\n", "more than 1000 columns"),
        ("a,b\0\n1,2\n", "not text|no column"),
        ('a,b\n1,"2\n', "has an unclosed quote"),
    ],
)
def test_a_table_that_is_not_whole_is_an_error(text: str, said: str) -> None:
    with pytest.raises(BrokenError, match=said):
        read(metric(csv={"column": "b"}, which="last"), text)


def test_no_row_of_that_value_is_no_zero() -> None:
    declared = metric(csv={"column": "rps", "where": {"test": "get"}}, as_="count")
    with pytest.raises(BrokenError, match="no row in which test is get"):
        read(declared, REDIS)


@pytest.mark.parametrize("text", ["+5", "5.", "5e0", " 5 ", "+5.0"])
def test_a_number_is_read_as_programs_print_it(text: str) -> None:
    assert read(metric(csv={"column": "b"}), f"a,b\n1,{text}\n") == {"it": 5}


@pytest.mark.parametrize("text", ["nan", "inf", "1e999"])
def test_a_cell_that_is_no_finite_number_is_unavailable(text: str) -> None:
    values = read_run(metric(csv={"column": "b"}), Left(stdout=f"a,b\n1,{text}\n"))
    assert not numbers(values)
    assert reasons(values)


def test_nanoseconds_of_a_clock_stay_whole_until_they_are_subtracted() -> None:
    begin = 1_700_000_000_000_000_001
    declared = metric(
        from_="t.csv", csv={"column": "end", "minus": "due"}, unit="ns", better="lower"
    )
    assert read(declared, t_csv=f"due,end\n{begin},{begin + 7}\n") == {
        "it": pytest.approx(7e-9, abs=1e-15)
    }


def _latencies(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(100, 5000, count)


def test_percentiles_are_those_of_the_sorted_samples_by_nearest_rank() -> None:
    samples = _latencies(2500)
    text = "us\n" + "".join(f"{one}\n" for one in samples)
    declared = metric(csv={"column": "us"}, unit="us", better="lower", as_="percentiles")
    values = read_run(declared, Left(stdout=text))
    found = numbers(values)
    for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        expected = np.percentile(samples, q * 100, method="inverted_cdf")
        assert found[f"it_{name}"] == pytest.approx(expected * 1e-6)
        assert found[f"bin_width{{of=it_{name}}}"] == pytest.approx(1 / expected)
    assert found["it_max"] == pytest.approx(samples.max() * 1e-6)
    # METHOD 16: 20 samples beyond it.
    assert "2500 samples, but p999 needs 20000" in reasons(values)["it_p999"]


def test_the_printed_step_is_the_bin_s_width() -> None:
    text = "s\n" + "0.0003\n0.0004\n0.001\n" * 400
    declared = metric(csv={"column": "s"}, unit="s", better="lower", as_="percentiles")
    assert read(declared, text)["bin_width{of=it_p50}"] == pytest.approx(0.25)
    wider = metric(
        csv={"column": "s"}, unit="s", better="lower", as_="percentiles", bin_width="200us"
    )
    assert read(wider, text)["bin_width{of=it_p50}"] == pytest.approx(0.5)


def test_the_share_above_a_limit_needs_no_p_value_of_a_tail() -> None:
    text = "due,end\n" + "0,50000000\n" * 97 + "0,60000000\n" * 3
    declared = metric(
        csv={"column": "end", "minus": "due"}, as_="share", over="55ms", unit="ns", better="lower"
    )
    assert read(declared, text) == {"it": pytest.approx(0.03)}


@pytest.mark.parametrize(("as_", "value"), [("count", 3), ("mean", 2), ("sum", 6), ("max", 3)])
def test_a_column_is_made_one_number_of(as_: str, value: float) -> None:
    assert read(metric(csv={"column": "n"}, as_=as_), "n\n1\n2\n3\n") == {"it": value}


def test_files_of_a_glob_without_a_head_are_one_table() -> None:
    declared = metric(
        from_="tx.*",
        csv={
            "column": "us",
            "separator": " ",
            "names": ["client", "nr", "us", "script", "s", "s_us"],
            "time": ["s", "s_us"],
            "after": "1s",
        },
        unit="us",
        better="lower",
        as_="max",
    )
    files = {
        "tx.17": b"0 1 9000 0 1700000000 500000\n0 2 100 0 1700000001 600000\n",
        "tx.18": b"1 1 8000 0 1700000000 900000\n1 2 300 0 1700000002 000000\n",
    }
    # A file's own first row is its time 0.
    assert numbers(read_run(declared, Left(files=files))) == {"it": pytest.approx(300e-6)}


def test_rows_of_the_first_seconds_are_left_out() -> None:
    declared = metric(
        csv={"column": "ms", "time": "at", "time_unit": "s"}, unit="ms", better="lower", as_="max"
    )
    text = "at,ms\n10,99\n11,50\n12,7\n"
    assert read(declared, text) == {"it": pytest.approx(0.099)}
    later = read_run(declared, Left(stdout=text), skip_s=2)
    assert numbers(later) == {"it": pytest.approx(0.007)}
    with pytest.raises(BrokenError, match="all rows are excluded"):
        read_run(declared, Left(stdout=text), skip_s=20)


def test_a_file_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(BrokenError, match="no file 'a.csv'; the run left b.csv"):
        read(metric(from_="a.csv", csv={"column": "n"}), b_csv="n\n1\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a,b\n"x\ny",2\n', [2]),
        ('a,b\n"x\n\ny","2"\n\n3,4\n', [2, 4]),
        ('a,b\n""",""",2\n', [2]),
        ('a,b\n"1"x"y",2\n', [2]),
        ('a,b\n1,"2\n"\n', [2]),
        ("\n\na, b \n1,\u00a02\n", [2]),
        ("a,b\n1,2\u2028\n", [2]),
    ],
)
def test_cells_in_quotes_and_blank_lines_are_read(text: str, expected: list[float]) -> None:
    declared = metric(csv={"column": "b"}, as_="mean")
    assert read(declared, text) == {"it": pytest.approx(np.mean(expected))}


def test_a_number_does_not_go_on_over_a_line_s_end() -> None:
    with pytest.raises(BrokenError, match=r"'1\\n2' is not a number"):
        read(metric(csv={"column": "b"}), 'a,b\nq,"1\n2"\n')


def test_a_column_is_whole_only_if_all_of_it_is() -> None:
    """A table is read a part at a time: whole numbers in the first, a float in the last."""
    begin = 1_700_000_000_000_000_001
    rows = [f"{begin + n},{begin}\n" for n in range(200_000)]
    declared = metric(csv={"column": "a", "minus": "b"}, unit="ns", better="lower", as_="max")
    assert read(declared, f"a,b\n{''.join(rows)}") == {"it": pytest.approx(199_999e-9, rel=1e-12)}
    rows[-1] = f"{begin}.5,{begin}\n"
    assert read(declared, f"a,b\n{''.join(rows)}") == {"it": pytest.approx(2e-4, rel=0.01)}


def test_what_is_wrong_with_the_table_comes_before_what_is_wrong_with_a_number() -> None:
    text = "a,b\n" + "1,x\n" * 200_000 + "1,2,3\n"
    with pytest.raises(BrokenError, match="Row #200002: Expected 2 columns, got 3: 1,2,3"):
        read(metric(csv={"column": "b"}, which="last"), text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{'x,' * LONGEST_ROW}2\n", "has a row of more than 1048576 characters"),
        ('"\n",' * LONGEST_ROW, "has a row of more than 1048576 characters"),
        (f'"{"x" * 500_000}",2\n', "field larger than field limit"),
        (f"{'x,' * 1000}2\n", "Expected 2 columns, got 1001: x,x"),
        ('5" disk,"2\n', "has an unclosed quote"),
        (f"1,{'1' * 100_000}x\n", "a number of 100001 characters"),
    ],
)
def test_a_hostile_row_is_an_error_soon_and_in_little_memory(text: str, said: str) -> None:
    declared = metric(csv={"column": "b"}, which="last")
    whole = f"a,b\n{text}1,2\n"
    begin_s = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(BrokenError, match=said):
            read(declared, whole)
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()
    assert time.process_time() - begin_s < 5


def test_a_separator_that_cannot_separate_is_an_error_of_the_declaration() -> None:
    for separator in ('"', "\n", "\r"):
        with pytest.raises(ValueError, match="'separator' is a quote or a line end"):
            metric(csv={"column": "b", "separator": separator})
