from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.base.cpus import MOST_CPUS, format_cpus, parse_cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        ("0", {0}),
        ("0-3", {0, 1, 2, 3}),
        ("0-1,5,7-8\n", {0, 1, 5, 7, 8}),
        (" 3 , 4 ", {3, 4}),
        ("2,1-2", {1, 2}),
    ],
)
def test_the_kernels_list_format_is_read(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1-2-3", "0x1", "1.5", "²"])
def test_what_is_no_cpu_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a CPU list"):
        parse_cpus(text)


@pytest.mark.parametrize(
    "text", ["0-99999999999", "99999999999", f"{MOST_CPUS}", "0-" + "9" * 5000, "1,0-999999"]
)
def test_a_number_beyond_all_cpus_is_refused_and_the_highest_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"is above the limit of {MOST_CPUS - 1}"):
        parse_cpus(text)


def test_ranges_that_overlap_are_counted_once() -> None:
    every = f"0-{MOST_CPUS - 1}"
    assert parse_cpus(",".join([every] * 100_000)) == frozenset(range(MOST_CPUS))


@pytest.mark.parametrize(
    ("cpus", "text"), [([], ""), ([5], "5"), ([2, 0, 1, 5, 1], "0-2,5"), ([0, 2, 4], "0,2,4")]
)
def test_a_set_is_written_in_its_shortest_form(cpus: list[int], text: str) -> None:
    assert format_cpus(cpus) == text


@given(st.frozensets(st.integers(min_value=0, max_value=300)))
def test_what_was_written_is_read_back(cpus: frozenset[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus
