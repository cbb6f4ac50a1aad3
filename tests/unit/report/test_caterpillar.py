"""A caterpillar plot: hosts by effect, few by name, many as paths."""

from __future__ import annotations

import pytest

from labctl.analysis.hosts.fleet import FleetEffect
from labctl.analysis.hosts.judge import judge_fleet
from labctl.report.page.fleet_page import Caterpillar, caterpillar
from tests.unit.analysis.test_fleet_judge import rows, spread


def effect(count: int, *more: float, **changes: object) -> FleetEffect:
    return judge_fleet(rows([*spread(0.2, count), *more], **changes)).effects[0]  # type: ignore[arg-type]


def drawn(one: FleetEffect) -> Caterpillar:
    plot = caterpillar(one, "title")
    assert plot is not None
    return plot


def test_a_few_hosts_have_a_line_each_by_their_effect() -> None:
    plot = drawn(effect(6))
    assert [line.x for line in plot.lines] == sorted(line.x for line in plot.lines)
    assert all(line.low < line.x < line.high for line in plot.lines)
    assert plot.spans == ""


def test_the_prediction_holds_the_mean_and_the_harm_is_on_the_worse_side() -> None:
    plot = drawn(effect(6))
    assert plot.prediction is not None
    assert plot.mean is not None
    assert plot.mean_x is not None
    assert plot.prediction[0] < plot.mean[0] < plot.mean_x < plot.mean[1] < plot.prediction[1]
    assert plot.harm_x is not None
    assert plot.harm_x < plot.none_x


def test_of_latencies_less_and_so_better_lies_to_the_right() -> None:
    plot = drawn(effect(6, better="lower"))
    assert plot.harm_x is not None
    assert plot.harm_x < plot.none_x
    assert plot.axis.startswith("Right is better")
    assert all(line.low <= line.x <= line.high for line in plot.lines)


def test_a_host_apart_is_marked() -> None:
    assert [line.is_apart for line in drawn(effect(6, 1.5)).lines] == [False] * 6 + [True]


@pytest.mark.parametrize("count", [61, 1000])
def test_many_hosts_are_paths_that_leave_out_none(count: int) -> None:
    plot = drawn(effect(count, 3.0))
    assert plot.lines == ()
    assert plot.dots.count("M") == plot.spans.count("H") == count
    assert plot.apart_dots.count("M") == 1
    assert 500 < plot.plot_height <= 720


def test_two_hosts_are_drawn_without_a_mean() -> None:
    plot = drawn(effect(2))
    assert (plot.mean, plot.mean_x, plot.prediction) == (None, None, None)
    assert len(plot.lines) == 2


def test_no_host_is_no_plot() -> None:
    assert caterpillar(effect(2, error=None), "title") is None
