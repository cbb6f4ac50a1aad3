from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

from labctl.analysis.judge import judge
from labctl.analysis.model import Comparison, EffectKind, Judgement, Role
from labctl.base.units import Unit
from labctl.report.forest import Forest, Row, forest
from labctl.report.view import Scene, View
from labctl.store.run_folder import LoadedRun
from tests.unit.report.conftest import Judged
from tests.unit.synthetic import synthetic_run

SCENE = Scene("sysbench-cpu", "neighbour")


def drawn(run: LoadedRun, judgement: Judgement) -> Forest:
    plot = forest(View(run, judgement), SCENE)
    assert plot is not None
    return plot


def row(plot: Forest, name: str) -> Row:
    return next(row for row in plot.rows if row.name == name)


def with_primaries(judgement: Judgement, **changed: Any) -> Judgement:
    def changed_one(item: Comparison) -> Comparison:
        return replace(item, **changed) if item.role is Role.PRIMARY else item

    return replace(judgement, comparisons=tuple(map(changed_one, judgement.comparisons)))


def test_better_arms_lie_further_to_the_right_of_no_change(judged: Judged) -> None:
    plot = drawn(*judged)
    assert row(plot, "pinned").x < row(plot, "handicap").x < plot.none_x
    assert plot.none_x < row(plot, "pinned+fifo").x


def test_everything_lies_inside_of_the_picture(judged: Judged) -> None:
    plot = drawn(*judged)
    places = [plot.none_x, *(plot.band or ()), *(plot.noise or ()), *(t.x for t in plot.ticks)]
    for item in plot.rows:
        places += [item.x, item.low or 0.0, item.high or 0.0, *(dot.x for dot in item.dots)]
    assert all(0 <= place <= 100 for place in places)


def test_each_block_is_a_dot_and_the_interval_holds_the_estimate(judged: Judged) -> None:
    item = row(drawn(*judged), "pinned+fifo")
    assert len(item.dots) == 11
    assert item.low is not None
    assert item.high is not None
    assert item.low < item.x < item.high


def test_the_margin_reaches_equally_far_to_both_sides(judged: Judged) -> None:
    plot = drawn(*judged)
    assert plot.band is not None
    low, high = plot.band
    assert math.isclose(plot.none_x - low, high - plot.none_x, abs_tol=0.02)


def test_labels_of_ticks_do_not_touch(judged: Judged) -> None:
    places = sorted(tick.x for tick in drawn(*judged).ticks)
    assert len(places) >= 2
    assert all(right - left >= 14 for left, right in itertools.pairwise(places))


def test_an_interval_that_spans_everything_does_not_squeeze_the_rest(judged: Judged) -> None:
    run, judgement = judged
    plot = drawn(run, with_primaries(judgement, low=1e-300, high=1e300))
    item = row(plot, "pinned+fifo")
    assert item.beyond
    assert item.x - row(plot, "pinned").x > 10


def test_a_run_of_one_block_has_estimates_without_intervals() -> None:
    run = synthetic_run(blocks=1)
    item = row(drawn(run, judge(run)), "pinned")
    assert (item.low, item.high) == (None, None)
    assert item.text.endswith("no verdict")


def test_differences_have_a_linear_axis_around_zero(judged: Judged) -> None:
    run, judgement = judged
    plot = drawn(
        run,
        with_primaries(
            replace(judgement, control=()),  # a ratio here
            kind=EffectKind.DIFFERENCE,
            unit=Unit.SECONDS,
            estimate=0.002,
            low=0.001,
            high=0.003,
            blocks={1: 0.0015, 2: 0.0025},
            margin=0.0005,
        ),
    )
    item = row(plot, "pinned")
    assert item.low is not None
    assert item.high is not None
    assert math.isclose(item.high - item.x, item.x - item.low, abs_tol=0.02)
    assert "0" in {tick.label for tick in plot.ticks}
    assert any(tick.label.endswith("ms") for tick in plot.ticks)


def test_nothing_compared_is_no_picture(judged: Judged) -> None:
    run, judgement = judged
    assert forest(View(run, replace(judgement, comparisons=())), SCENE) is None
