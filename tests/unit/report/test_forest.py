from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any

from labctl.analysis.answer.view import View
from labctl.analysis.effects.cells import Scenario
from labctl.analysis.judge import judge
from labctl.analysis.model import Comparison, EffectKind, Judgement, Role
from labctl.base.units import Better, Unit
from labctl.report.page.forest import Forest, Row, forest, native_reference
from labctl.store.run_folder import LoadedRun
from tests.unit.report.conftest import Judged
from tests.unit.synthetic import synthetic_run

PLACE = Scenario("sysbench-cpu", "neighbour")


def drawn(run: LoadedRun, judgement: Judgement) -> Forest:
    plot = forest(View(run, judgement), PLACE)
    assert plot is not None
    return plot


def row(plot: Forest, name: str) -> Row:
    return next(row for row in plot.rows if row.name == name)


def dots(item: Row) -> list[float]:
    """Where a row's dots lie, left to right in time."""
    return [float(x) for x in re.findall(r"M([\d.]+) ", item.dots)]


def with_primaries(judgement: Judgement, **changed: Any) -> Judgement:
    def changed_one(item: Comparison) -> Comparison:
        return replace(item, **changed) if item.role is Role.PRIMARY else item

    return replace(judgement, comparisons=tuple(map(changed_one, judgement.comparisons)))


def test_better_arms_lie_further_to_the_right_of_no_change(judged: Judged) -> None:
    plot = drawn(*judged)
    assert row(plot, "pinned").x < row(plot, "handicap").x < plot.none_x
    assert plot.none_x < row(plot, "pinned+fifo").x


def test_a_shorter_latency_lies_to_the_right_as_well(judged: Judged) -> None:
    run, judgement = judged
    higher = row(drawn(run, judgement), "pinned+fifo")
    plot = drawn(run, with_primaries(judgement, better=Better.LOWER))
    lower = row(plot, "pinned+fifo")
    assert lower.x < plot.none_x < higher.x
    assert lower.low is not None
    assert lower.high is not None
    assert lower.low <= lower.x <= lower.high
    assert plot.axis.startswith("Right is better")


def test_everything_lies_inside_of_the_picture(judged: Judged) -> None:
    plot = drawn(*judged)
    places = [plot.none_x, *(plot.band or ()), *(plot.noise or ()), *(t.x for t in plot.ticks)]
    for item in plot.rows:
        places += [item.x, item.low or 0.0, item.high or 0.0, *dots(item)]
    assert all(0 <= place <= 100 for place in places)


def test_each_block_is_a_dot_and_the_interval_holds_the_estimate(judged: Judged) -> None:
    item = row(drawn(*judged), "pinned+fifo")
    assert len(dots(item)) == item.blocks == 11
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
    assert forest(View(run, replace(judgement, comparisons=())), PLACE) is None


def test_native_stands_last_as_the_reference_and_beyond_the_edge_where_it_is_far(
    judged: Judged,
) -> None:
    plot = drawn(*judged)
    native = plot.rows[-1]
    assert (native.name, native.kind, native.outside) == ("native", "native", True)
    assert native.x == 100
    assert native.text.startswith("×1")
    run = synthetic_run(effects={"native": 1.3, "pinned": 0.77, "pinned+fifo": 2.73})
    near = drawn(run, judge(run)).rows[-1]
    assert not near.outside
    assert len(dots(near)) == 10


def test_a_difference_to_native_turns_its_sign(judged: Judged) -> None:
    run, judgement = judged
    (item,) = (
        c
        for c in judgement.comparisons
        if (c.tuning, c.against, c.metric) == ("baseline", "native", "events_per_s")
    )
    other = replace(item, kind=EffectKind.DIFFERENCE, estimate=-3.0, low=-4.0, high=-1.0, blocks={})
    turned = native_reference(View(run, replace(judgement, comparisons=(other,))), PLACE)
    assert turned is not None
    assert (turned.tuning, turned.estimate, turned.low, turned.high) == ("native", 3.0, 1.0, 4.0)


def test_the_noise_floor_is_the_controls_interval(judged: Judged) -> None:
    run, judgement = judged
    plot = drawn(run, judgement)
    assert plot.noise == (row(plot, "control").low, row(plot, "control").high)
    assert drawn(run, replace(judgement, control=())).noise is None


def test_more_blocks_than_dots_can_show_are_a_line_where_nine_in_ten_lie(judged: Judged) -> None:
    run, judgement = judged
    blocks = {block: 0.7 + 0.001 * block for block in range(1, 301)}
    item = row(drawn(run, with_primaries(judgement, blocks=blocks)), "pinned")
    assert item.dots == ""
    assert item.blocks == 300
    assert item.bulk is not None
    assert item.bulk[0] < item.bulk[1]
