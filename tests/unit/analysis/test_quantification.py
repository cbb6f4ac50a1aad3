"""Below which values no ratio is taken (METHOD 15)."""

import math
from dataclasses import replace

import pytest

from labctl.analysis.effects.cells import Series
from labctl.analysis.effects.effects import by_ratio, effects_of
from labctl.analysis.judge import judge
from labctl.analysis.model import EffectKind
from labctl.analysis.verdicts.table import Verdict
from labctl.base.units import Better, Unit
from labctl.store.samples import Sample
from tests.unit.analysis.alter import only, with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run

ONE = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}


def series(metric: str, unit: Unit, *values: float, seconds: float = 2.0) -> Series:
    sample = Sample(metric=metric, value=0.0, unit=unit, better=Better.LOWER, source="host.json")
    by_block = dict(enumerate(values, start=1))
    return Series(sample, by_block, seconds=dict.fromkeys(by_block, seconds))


@pytest.mark.parametrize(
    ("metric", "unit", "below", "above"),
    [
        ("exits", Unit.PER_SECOND, 49.0, 51.0),  # 100 events in 2 s
        ("retransmits", Unit.COUNT, 99.0, 101.0),
        ("iops", Unit.PER_SECOND, 2.0, 2.1),  # 10 / sqrt(6) = 4.08 operations in 2 s
        ("round_trips", Unit.COUNT, 4.0, 5.0),
    ],
)
def test_counts_below_a_tenth_of_relative_deviation_give_no_ratio(
    metric: str, unit: Unit, below: float, above: float
) -> None:
    large = series(metric, unit, 1e6, 1e6)
    few = effects_of(series(metric, unit, 1e6, below), [large], against_native=False)
    enough = effects_of(series(metric, unit, 1e6, above), [large], against_native=False)
    assert few is not None
    assert few.kind is EffectKind.DIFFERENCE
    assert few.fallback is not None
    assert "block 2" in few.fallback
    assert few.by_block[2] == below - 1e6
    assert enough is not None
    assert enough.kind is EffectKind.RATIO
    assert not by_ratio([large, series(metric, unit, below)])


def test_either_side_may_be_the_one_that_is_too_small() -> None:
    small, large = (series("exits", Unit.PER_SECOND, value) for value in (3.0, 1e6))
    found = effects_of(large, [large, small], against_native=False)
    assert found is not None
    assert found.kind is EffectKind.DIFFERENCE


def test_a_percentile_in_the_first_bins_of_its_histogram_gives_no_ratio() -> None:
    """10 / sqrt(12) = 2.9 bins: 2.5 us in bins of 1 us is below that, 3.5 us above."""
    for latency, kind in ((2.5e-6, EffectKind.DIFFERENCE), (3.5e-6, EffectKind.RATIO)):
        side = replace(series("latency_p95", Unit.SECONDS, latency), bin_widths={1: 1e-6 / latency})
        found = effects_of(side, [side], against_native=False)
        assert found is not None
        assert found.kind is kind


def test_what_has_no_known_resolution_is_compared_by_ratio_down_to_0() -> None:
    tiny = series("bandwidth", Unit.BYTES_PER_SECOND, 1e-9)
    found = effects_of(tiny, [tiny], against_native=False)
    assert found is not None
    assert found.kind is EffectKind.RATIO


def test_a_trial_that_does_not_say_how_long_it_measured_has_no_limit() -> None:
    side = series("exits", Unit.PER_SECOND, 1.0, seconds=0.0)
    found = effects_of(side, [side], against_native=False)
    assert found is not None
    assert found.kind is EffectKind.RATIO


def test_a_primary_below_its_limit_gets_no_verdict_and_the_reason() -> None:
    run = with_values(
        synthetic_run(workloads=ONE, primary_only=True), "pinned", "events_per_s",
        lambda block, old: 1.5 if block == 4 else old,
    )  # fmt: skip
    judged = judge(run)
    found = only(judged, "pinned", "baseline", "events_per_s")
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.fallback == (
        "is too small to be quantified (fewer than 5 operations in a trial, block 4)"
    )
    assert any("fewer than 5 operations" in warning for warning in judged.warnings)
    assert math.isfinite(found.estimate)
