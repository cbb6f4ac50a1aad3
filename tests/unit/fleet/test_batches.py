from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.base.errors import UsageError
from labctl.fleet.ansible import batches_of

TEN = [f"h{n}" for n in range(10)]


@pytest.mark.parametrize(
    ("serial", "sizes"),
    [
        ("100%", [10]),
        ("10%", [1] * 10),
        ("1,10%", [1] * 10),
        ("1,100%", [1, 9]),
        ("1, 3, 50%", [1, 3, 5, 1]),
        ("20", [10]),
        ("1%", [1] * 10),
    ],
)
def test_sizes_are_those_of_ansibles_serial(serial: str, sizes: list[int]) -> None:
    assert [len(batch) for batch in batches_of(TEN, serial)] == sizes


@given(st.integers(0, 200), st.lists(st.integers(1, 100), min_size=1, max_size=4))
def test_each_host_is_in_one_batch_in_its_order(hosts: int, sizes: list[int]) -> None:
    names = [str(n) for n in range(hosts)]
    batches = batches_of(names, ",".join(f"{size}%" for size in sizes))
    assert [host for batch in batches for host in batch] == names


@pytest.mark.parametrize("serial", ["", "0", "0%", "101%", "1,", "-1", "10 %", "x", "1.5"])
def test_what_is_no_size_is_refused_by_name(serial: str) -> None:
    with pytest.raises(UsageError, match="--serial"):
        batches_of(TEN, serial)
