from __future__ import annotations

import math
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.base.notation import (
    NOT_ESTIMABLE,
    Shown,
    change,
    changes,
    difference,
    differences,
    quantities,
    quantity,
    share,
    shares,
    size,
    ticks,
)
from labctl.base.units import Unit


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.77, "−23 %"),
        (2.73, "×2.73"),
        (1.0, "±0 %"),
        (1.0004, "±0 %"),
        (0.9996, "±0 %"),
        (1.042, "+4.2 %"),
        (1.0996, "+10 %"),
        (0.1, "−90 %"),
        (0.09, "−91.0 %"),
        (0.0874, "−91.3 %"),
        (0.01, "−99.0 %"),
        (0.009, "×0.0090"),
        (2.0, "+100 %"),
        (2.01, "×2.01"),
        (9.996, "×10.0"),
        (15.26, "×15.3"),
        (152.6, "×153"),
        (12345.0, "×12,300"),
        (1e7, "not estimable"),
        (1e-9, "not estimable"),
        (0.0, "not estimable"),
        (math.inf, "not estimable"),
        (None, "n/a"),
        (math.nan, "n/a"),
        (-1.0, "n/a"),
    ],
)
def test_a_ratio_is_a_percentage_near_one_and_a_factor_beyond(
    ratio: float | None, text: str
) -> None:
    assert change(ratio) == text


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((0.76, 0.28, 2.1), ("×0.76", "×0.28 to 2.10")),
        ((0.98, 0.42, 2.32), ("×0.98", "×0.42 to 2.32")),
        ((0.76, 0.69, 0.86), ("−24 %", "−31 to −14 %")),
        ((1.04, 0.96, 1.12), ("+4.0 %", "−4.0 to +12 %")),
        ((2.7, 2.41, 3.1), ("×2.70", "×2.41 to 3.10")),
        ((1.9, 1.2, 2.41), ("×1.90", "×1.20 to 2.41")),
        ((0.013, 0.00604, 0.027), ("×0.013", "×0.0060 to 0.027")),
        ((0.17, 0.077, 0.36), ("−83 %", "−92.3 to −64 %")),
        ((77.7, 36.4, 166.0), ("×77.7", "×36.4 to 166")),
        ((1.0, 0.05, 33.0), ("×1.00", "×0.050 to 33.0")),
        ((1.0, 0.03, 33.0 * 1000), ("not estimable", "")),
        ((1.0, 0.0, 1.2), ("not estimable", "")),
        ((1.0, 0.9, math.inf), ("not estimable", "")),
        ((1.5, None, None), ("+50 %", "")),
    ],
)
def test_an_estimate_and_both_ends_of_its_interval_have_one_form(
    values: tuple[float, float | None, float | None], shown: tuple[str, str]
) -> None:
    assert tuple(changes(*values)) == shown


ratios = st.floats(min_value=1e-9, max_value=1e9)


@given(ratios, ratios, ratios)
def test_every_three_ratios_are_written_in_one_form_that_reads_back(
    a: float, b: float, c: float
) -> None:
    low, estimate, high = sorted((a, b, c))
    shown = changes(estimate, low, high)
    if shown.estimate == NOT_ESTIMABLE:
        assert not shown.interval
        assert high / low > 999 or high > 999_999 or low < 1.001e-6
        return
    is_factor = shown.estimate.startswith("×")
    assert is_factor == shown.interval.startswith("×")
    assert is_factor != shown.interval.endswith(" %")
    assert is_factor != shown.estimate.endswith(" %")
    for text, value in zip(
        [shown.estimate, *_ends(shown.interval)], (estimate, low, high), strict=True
    ):
        read = _number(text) if is_factor else 1 + _number(text) / 100
        assert read == pytest.approx(value, rel=0.051, abs=0.0)


@given(
    st.floats(min_value=-1e12, max_value=1e12),
    st.floats(min_value=0, max_value=1e12),
    st.floats(min_value=0, max_value=1e12),
    st.sampled_from(sorted(Unit)),
)
def test_every_difference_has_the_unit_of_its_interval_and_reads_back(
    estimate: float, below: float, above: float, unit: Unit
) -> None:
    low, high = estimate - below, estimate + above
    shown = differences(estimate, low, high, unit)
    number, _, symbol = _split(shown.estimate)
    first, last = _ends(shown.interval)
    assert _split(last)[2] == symbol
    assert _split(first)[2] == ""
    least, most = _number(first), _number(last)
    # One scale for all three: what lies between them lies between their texts.
    assert least <= float(number) <= most or least == most
    assert (estimate > 0) == shown.estimate.startswith("+")


def _ends(interval: str) -> list[str]:
    return interval.split(" to ")


def _number(text: str) -> float:
    return float(_split(text)[0])


def _split(text: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"[×±]?([+−]?[0-9,.]+)(\s?)(.*)", text)
    assert found is not None, text
    return found[1].replace(",", "").replace("−", "-"), found[2], found[3]


def test_ticks_of_an_axis_have_one_form() -> None:
    assert ticks([0.9, 0.95, 1.05, 1.25]) == ["−10 %", "−5 %", "+5 %", "+25 %"]
    assert ticks([0.1, 0.5, 2.0, 10.0]) == ["×0.1", "×0.5", "×2", "×10"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00123, Unit.SECONDS, "1.23 ms"),
        (1234.0, Unit.MICROSECONDS, "1.23 ms"),
        (3.3e-5, Unit.SECONDS, "33.0 µs"),
        (0.9997, Unit.SECONDS, "1.00 s"),
        (1500.0, Unit.SECONDS, "1,500 s"),
        (0.0, Unit.SECONDS, "0 s"),
        (5453.0, Unit.PER_SECOND, "5,450/s"),
        (999.7, Unit.PER_SECOND, "1,000/s"),
        (999.4, Unit.PER_SECOND, "999/s"),
        (12.34e6, Unit.PER_SECOND, "12.3 million/s"),
        (0.004, Unit.PER_OPERATION, "0.00400/op"),
        (807.0, Unit.OPERATIONS_PER_CPU_SECOND, "807/CPU-s"),
        (12.3e6, Unit.BYTES_PER_SECOND, "12.3 MB/s"),
        (2.4e9, Unit.HERTZ, "2.40 GHz"),
        (0.67, Unit.CPUS, "0.67 CPUs"),
        (0.00421, Unit.CPUS, "0.0042 CPUs"),
        (12.34, Unit.CPUS, "12.3 CPUs"),
        (0.923, Unit.INSTRUCTIONS_PER_CYCLE, "0.923"),
        (0.123, Unit.FRACTION, "12.3 %"),
        (9.999e-3, Unit.SECONDS, "10.0 ms"),
        (123456.0, Unit.COUNT, "123,000"),
        (math.nan, Unit.COUNT, "n/a"),
        (None, Unit.COUNT, "n/a"),
    ],
)
def test_a_quantity_has_three_digits_and_its_unit(
    value: float | None, unit: Unit, text: str
) -> None:
    assert quantity(value, unit) == text


def test_every_unit_can_be_written() -> None:
    assert all(quantity(1.0, unit) for unit in Unit)


def test_a_rate_says_of_what_it_is() -> None:
    assert quantity(5453.0, Unit.PER_SECOND, "events_per_s") == "5,450 events/s"
    assert quantity(5453.0, Unit.PER_SECOND, "iops{op=read}") == "5,450 IOPS"
    assert quantity(5453.0, Unit.PER_SECOND, "exits{reason=HLT}") == "5,450 VM exits/s"
    assert quantities(5e6, 4e6, 6e6, Unit.PER_SECOND, "events_per_s") == Shown(
        "5.00 million events/s", "4.00 to 6.00 million events/s"
    )


def test_a_difference_has_a_sign_and_fractions_differ_by_percentage_points() -> None:
    assert difference(0.0012, Unit.SECONDS) == "+1.20 ms"
    assert difference(-0.0012, Unit.SECONDS) == "−1.20 ms"
    assert difference(0.05, Unit.FRACTION) == "+5.00 pp"
    assert difference(0.0, Unit.COUNT) == "±0"
    assert difference(-0.1, Unit.CPUS) == "−0.10 CPUs"


def test_a_difference_and_its_interval_have_one_unit() -> None:
    assert differences(0.002, 0.0002, 0.0034, Unit.SECONDS) == Shown(
        "+2.00 ms", "+0.200 to +3.40 ms"
    )
    assert differences(0.002, None, 0.0034, Unit.SECONDS) == Shown("+2.00 ms", "")
    assert differences(0.002, 0.001, math.inf, Unit.SECONDS) == Shown("not estimable", "")
    assert quantities(600e-6, 590e-6, 1.2e-3, Unit.SECONDS) == Shown("0.600 ms", "0.590 to 1.20 ms")


def test_a_size_has_no_sign_and_is_a_factor_where_a_change_is() -> None:
    found = [size(value) for value in (0.05, 0.0731, 0.1234, 1.0, 1.73)]
    assert found == ["5 %", "7.3 %", "12 %", "100 %", "×2.73"]


def test_a_share_that_was_lost_has_its_interval_in_the_same_form() -> None:
    assert share(0.9875) == "98.75 %"
    assert shares(0.031, 0.02, 0.042) == "3.1 % (2.0 to 4.2 %)"
    assert shares(-0.0004) == "−0.04 %"
    assert shares(0.1, -3.0, 0.9) == "not estimable"


def test_a_unit_of_a_program_s_own_is_shown_as_it_is() -> None:
    own = Unit("Mops/s")
    assert own is Unit("Mops/s")
    assert own not in list(Unit)
    assert pickle.loads(pickle.dumps(own)) is own  # noqa: S301 - its own
    assert quantities(5.4321, 5.1, 6, own, "rate") == ("5.43 Mops/s", "5.10 to 6.00 Mops/s")
    assert difference(0.5, Unit("req%")) == "+0.500 req%"


@pytest.mark.parametrize("text", ["", " ms", "a\x1b[1m", "<b>", "[red]", "u" * 41, "x\n"])
def test_a_text_that_could_be_more_than_a_unit_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid Unit"):
        Unit(text)
