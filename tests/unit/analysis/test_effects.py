import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.effects.cells import Series
from labctl.analysis.effects.effects import alone, by_ratio, effects_of, natural, on_scale, ratio_of
from labctl.analysis.effects.intervals import t_interval
from labctl.analysis.model import EffectKind
from labctl.base.units import Better, Unit
from labctl.store.samples import Sample


def series(
    values: Mapping[int, float], metric: str = "events_per_s", unit: Unit = Unit.PER_SECOND
) -> Series:
    sample = Sample(metric=metric, value=0.0, unit=unit, better=Better.HIGHER, source="stdout.txt")
    return Series(sample, values)


POSITIVE = st.dictionaries(st.integers(1, 20), st.floats(1e-6, 1e6), min_size=2, max_size=20)


def test_the_effect_of_a_block_is_taken_against_the_mean_of_baseline_and_control() -> None:
    """sqrt(100 * 400) is 200: a tuning at 400 is twice the baseline."""
    found = effects_of(
        series({1: 400.0}), [series({1: 100.0}), series({1: 400.0})], against_native=False
    )
    assert found is not None
    assert found.kind is EffectKind.RATIO
    assert found.by_block[1] == pytest.approx(math.log(2))


def test_a_block_without_one_side_is_left_out() -> None:
    found = effects_of(
        series({1: 2.0, 2: 2.0, 4: 2.0}),
        [series({1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}), series({2: 1.0, 3: 1.0, 4: 1.0})],
        against_native=False,
    )
    assert found is not None
    assert sorted(found.by_block) == [2, 4]


def test_sides_without_a_common_block_have_no_effect() -> None:
    assert effects_of(series({1: 1.0}), [series({2: 1.0})], against_native=False) is None


@given(first=POSITIVE, second=POSITIVE)
def test_swapping_the_sides_inverts_ratio_and_interval(
    first: dict[int, float], second: dict[int, float]
) -> None:
    there = effects_of(series(first), [series(second)], against_native=False)
    back = effects_of(series(second), [series(first)], against_native=False)
    if there is None or back is None:
        assert there is back
        return
    assert there.shown(there.spread.mean) * back.shown(back.spread.mean) == pytest.approx(1.0)
    ahead, behind = t_interval(there.spread, 0.05), t_interval(back.spread, 0.05)
    if ahead is not None and behind is not None:
        assert ahead.low == pytest.approx(-behind.high)
        assert ahead.high == pytest.approx(-behind.low)


@given(values=POSITIVE, factor=st.floats(0.01, 100))
def test_what_a_block_does_to_all_of_its_arms_cancels(
    values: dict[int, float], factor: float
) -> None:
    blocks = {block: value * factor for block, value in values.items()}
    found = effects_of(series(blocks), [series(values)], against_native=False)
    assert found is not None
    assert found.shown(found.spread.mean) == pytest.approx(factor)


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_a_zero_turns_the_ratio_into_a_difference_and_says_so(bad: float) -> None:
    found = effects_of(series({1: 3.0, 2: bad}), [series({1: 1.0, 2: 1.0})], against_native=False)
    assert found is not None
    assert found.kind is EffectKind.DIFFERENCE
    assert found.fallback
    assert found.by_block == {1: 2.0, 2: bad - 1.0}


@pytest.mark.parametrize(
    ("metric", "unit", "against_native", "expected"),
    [
        ("steal", Unit.FRACTION, False, True),
        ("run_delay", Unit.SECONDS, False, True),
        ("page_faults", Unit.PER_SECOND, False, True),
        ("cpu_latency_limit", Unit.SECONDS, False, True),
        ("host_cpu", Unit.CPUS, False, True),
        ("some_share", Unit.FRACTION, False, True),
        ("exits", Unit.PER_OPERATION, True, True),
        ("exits", Unit.PER_OPERATION, False, False),
        ("iops", Unit.PER_SECOND, True, False),
        ("latency_p95", Unit.SECONDS, False, False),
    ],
)
def test_metrics_that_may_be_zero_are_compared_by_difference(
    metric: str, unit: Unit, against_native: bool, expected: bool
) -> None:
    assert natural(metric, unit, against_native=against_native) is expected
    found = effects_of(
        series({1: 2.0, 2: 3.0}, metric, unit),
        [series({1: 1.0, 2: 1.0}, metric, unit)],
        against_native=against_native,
    )
    assert found is not None
    assert found.kind is (EffectKind.DIFFERENCE if expected else EffectKind.RATIO)
    assert not found.fallback


def test_a_margin_is_as_far_from_no_effect_as_its_inverse() -> None:
    assert on_scale(0.05, EffectKind.RATIO) == pytest.approx(math.log(1.05))
    assert on_scale(0.05, EffectKind.RATIO) == pytest.approx(-math.log(1 / 1.05))
    assert on_scale(0.05, EffectKind.DIFFERENCE) == 0.05


def test_an_absurdly_wide_interval_is_still_a_finite_number() -> None:
    assert math.isfinite(ratio_of(1e9))
    assert ratio_of(-1e9) > 0


def latencies(values: Mapping[int, float], width: float) -> Series:
    return replace(
        series(values, "latency_p95", Unit.SECONDS), bin_widths=dict.fromkeys(values, width)
    )


def test_effects_of_a_histogram_spread_at_least_as_rounding_makes_them() -> None:
    """Two values, each anywhere in a bin of width w: their difference has a standard deviation of
    w / sqrt(6) before anything differs."""
    tied = dict.fromkeys(range(1, 11), 0.002)
    found = effects_of(latencies(tied, 0.05), [latencies(tied, 0.12)], against_native=False)
    assert found is not None
    assert found.spread.sd == pytest.approx(0.12 / math.sqrt(6))
    interval = t_interval(found.spread, 0.05)
    assert interval is not None
    assert interval.high == pytest.approx(2.262 * 0.12 / math.sqrt(60), rel=1e-3)


def test_a_spread_beyond_the_bins_is_left_as_it_is() -> None:
    wide = {block: 0.001 * block for block in range(1, 11)}
    flat = dict.fromkeys(wide, 0.002)
    coarse, exact = (
        effects_of(latencies(wide, width), [latencies(flat, width)], against_native=False)
        for width in (0.01, 0.0)
    )
    assert coarse is not None
    assert exact is not None
    assert coarse.spread == exact.spread


def test_a_difference_has_its_floor_in_its_own_unit() -> None:
    zeros = {1: 0.0, 2: 4.0}
    found = effects_of(latencies(zeros, 0.5), [latencies(zeros, 0.5)], against_native=False)
    assert found is not None
    assert found.kind is EffectKind.DIFFERENCE
    assert found.floor == pytest.approx(math.sqrt(2.0) / math.sqrt(6))


def test_values_by_themselves_that_tie_in_a_coarse_histogram_are_no_certainty() -> None:
    tied = latencies(dict.fromkeys(range(1, 11), 0.002), 0.1)
    assert alone(tied, logs=True).sd == pytest.approx(0.1 / math.sqrt(12))
    assert alone(tied, logs=False).sd == pytest.approx(0.0002 / math.sqrt(12))
    assert alone(replace(tied, bin_widths={}), logs=True).sd == 0.0


def test_what_may_be_zero_is_not_compared_by_ratio() -> None:
    assert by_ratio([series({1: 2.0}), series({7: 3.0})])
    assert not by_ratio([series({1: 2.0}), series({7: 0.0})])
    assert not by_ratio([series({1: 0.2}, "steal", Unit.FRACTION)])
