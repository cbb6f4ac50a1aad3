"""The picture under the answer: what was compared, better to the right."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from labctl.analysis.answer.view import View
from labctl.analysis.judge import judge
from labctl.analysis.model import EffectKind, Judgement, Role
from labctl.analysis.verdicts.table import Verdict
from labctl.base.units import Better
from labctl.report.page.overview import MOST_ROWS, Bar, Overview, overviews
from labctl.report.page.report_page import page
from labctl.store.run_folder import LoadedRun
from tests.unit.synthetic import TUNINGS, synthetic_run


def drawn(run: LoadedRun, **changes: object) -> tuple[Overview, ...]:
    judgement = judge(run)
    return overviews(View(run, altered(judgement, **changes)))


def altered(judgement: Judgement, **changes: object) -> Judgement:
    """The judgement with all primary comparisons changed alike."""
    items = tuple(
        replace(item, **changes) if item.role is Role.PRIMARY else item  # type: ignore[arg-type]
        for item in judgement.comparisons
    )
    return replace(judgement, comparisons=items)


def bars(overview: Overview) -> list[tuple[str, Bar]]:
    return [(group.heading, bar) for group in overview.groups for bar in group.bars]


def test_a_latency_that_halves_and_a_rate_that_doubles_are_at_one_place() -> None:
    run = synthetic_run(blocks=10)
    (rate,) = drawn(run, better=Better.HIGHER, estimate=2.0, low=1.6, high=2.5)
    (latency,) = drawn(run, better=Better.LOWER, estimate=0.5, low=0.4, high=0.625)
    assert rate.ticks == latency.ticks
    for (_, one), (_, other) in zip(bars(rate), bars(latency), strict=True):
        assert (one.x, one.low, one.high) == (other.x, other.low, other.high)
        assert (one.x or 0) > rate.none_x
        assert one.text != other.text


def test_an_interval_is_drawn_from_left_to_right_whichever_end_is_better() -> None:
    for _, bar in bars(drawn(synthetic_run(blocks=10))[0]):
        assert bar.low is not None
        assert bar.high is not None
        assert bar.low <= (bar.x or 0) <= bar.high


def test_more_comparisons_than_a_phone_shows_are_folded_and_none_is_lost() -> None:
    arms = [*TUNINGS, *(f"tuning-{number}" for number in range(8))]
    run = synthetic_run(blocks=2, tunings=arms)
    first, more = drawn(run)
    primaries = {
        (item.tuning, item.workload)
        for item in judge(run).comparisons
        if item.role is Role.PRIMARY and item.against == "baseline"
    }
    assert len(bars(first)) == MOST_ROWS
    assert len(bars(first)) + len(bars(more)) + more.left_out == len(primaries)


def test_what_got_worse_is_in_the_first_picture() -> None:
    arms = [*TUNINGS, *(f"tuning-{number}" for number in range(8)), "worst"]
    run = synthetic_run(blocks=10, tunings=arms, effects={"worst": 0.5})
    first = drawn(run)[0]
    regressed = [
        item.workload
        for item in judge(run).comparisons
        if item.tuning == "worst" and item.verdict is Verdict.REGRESSES
    ]
    assert regressed
    assert {bar.name for _, bar in bars(first) if bar.verdict_class == "regresses"} == {"worst"}


def test_a_comparison_by_difference_is_said_and_not_drawn() -> None:
    overview = drawn(synthetic_run(blocks=10), kind=EffectKind.DIFFERENCE)[0]
    assert overview.ticks == ()
    assert [(bar.x, bar.low) for _, bar in bars(overview)] == [(None, None)] * len(bars(overview))
    assert all(bar.text for _, bar in bars(overview))


def test_an_interval_without_an_end_reaches_the_edge_and_is_broken() -> None:
    (overview,) = drawn(synthetic_run(blocks=10), low=0.0, high=float("inf"))
    for _, bar in bars(overview):
        assert (bar.low, bar.high, bar.beyond) == (0.0, 100.0, True)


def test_nothing_compared_is_no_picture(tmp_path: Path) -> None:
    run = synthetic_run(blocks=3, tunings=["native", "pinned"])
    assert drawn(run) == ()
    assert 'class="overview"' not in page(run, judge(run), tmp_path)


def test_labels_of_the_scale_do_not_touch() -> None:
    for effect in (1.02, 1.3, 3.0, 40.0, 900.0):
        (overview,) = drawn(synthetic_run(blocks=10, effects={"pinned": effect}))
        places = sorted(tick.x for tick in overview.ticks)
        assert len(places) >= 2
        assert min(b - a for a, b in pairwise(places)) >= 15


def test_the_picture_stands_between_the_answer_and_all_else(tmp_path: Path) -> None:
    run = synthetic_run(blocks=10)
    text = page(run, judge(run), tmp_path)
    order = [
        text.index(mark)
        for mark in ('class="answer"', 'class="overview"', 'id="contents"', 'id="warnings"')
    ]
    assert order == sorted(order)
    assert len(re.findall('class="overview"', text)) == 1
