from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.answer.view import View
from labctl.analysis.effects.cells import Scenario
from labctl.analysis.judge import judge
from labctl.analysis.model import Judgement, Level
from labctl.base.units import Better, Unit
from labctl.report.page import dots as dots_of
from labctl.report.page.axis import axis_of
from labctl.report.page.curves import Curves, curves
from labctl.report.page.dots import Dots, dots, invalid_attempts
from labctl.report.page.pictures import (
    PICTURES,
    Picture,
    Sight,
    drawings,
    exits,
    host_cpu,
    no_exits,
)
from labctl.report.page.report_page import page, pin_maps
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.store.samples import Sample
from tests.unit.example import EXAMPLE
from tests.unit.records import run_of
from tests.unit.report.conftest import INVALID, Judged
from tests.unit.streams import with_streams
from tests.unit.synthetic import synthetic_run

PLACE = Scenario("sysbench-cpu", "neighbour")


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", path)]


def drawn(run: LoadedRun, judgement: Judgement) -> Dots:
    view = View(run, judgement)
    plot = dots(view, PLACE, invalid_attempts(view), view.tunings)
    assert plot is not None
    return plot


def level(metric: str, values: Mapping[int, float], tuning: str = "pinned", **other: Any) -> Level:
    return Level(
        **{
            "tuning": tuning,
            "workload": PLACE.workload,
            "condition": PLACE.condition,
            "metric": metric,
            "unit": Unit.SECONDS,
            "better": Better.LOWER,
            "source": "stdout.txt",
            "typical": max(values.values()),
            "values": values,
            **other,
        }
    )


def with_levels(judged: Judged, levels: Iterable[Level]) -> View:
    return View(judged[0], replace(judged[1], levels=tuple(levels)))


# Trials by block


def test_every_valid_trial_is_a_dot_in_its_arms_panel(judged: Judged) -> None:
    plot = drawn(*judged)
    assert [panel.name for panel in plot.panels] == View(*judged).tunings
    counts = {panel.name: len(points(panel.dots)) for panel in plot.panels}
    assert counts.pop(INVALID[0]) == 10  # one trial of it is invalid in all attempts
    assert set(counts.values()) == {11}


def test_guests_share_one_scale_native_arms_another_and_larger_values_lie_higher(
    judged: Judged,
) -> None:
    plot = drawn(*judged)
    heights = {panel.name: panel.typical_y for panel in plot.panels}
    assert None not in heights.values()
    order = sorted(heights, key=lambda name: heights[name] or 0.0)
    natives = [name for name in order if name.startswith("native")]
    guests = [name for name in order if name not in natives]
    assert natives[0] == "native+fifo"
    assert (guests[0], guests[-1]) == ("pinned+fifo", "pinned")
    scales = {panel.name.startswith("native"): panel.ticks for panel in plot.panels}
    assert plot.natives_apart
    assert scales[True] != scales[False]


def test_an_invalid_trial_is_marked_where_its_value_is_or_at_the_bottom() -> None:
    run = synthetic_run(invalid=[("pinned", "sysbench-cpu", 3), ("pinned", "sysbench-cpu", 7)])
    (first, _) = (t for t in run.trials if t.record.status == "invalid")
    value = Sample(
        metric="events_per_s",
        value=400.0,
        unit=Unit.PER_SECOND,
        better=Better.HIGHER,
        source="stdout.txt",
    )
    trials = tuple(
        replace(trial, readings=(value,)) if trial is first else trial for trial in run.trials
    )
    plot = drawn(replace(run, trials=trials), judge(run))
    panel = next(panel for panel in plot.panels if panel.name == "pinned")
    assert plot.invalid == 2
    assert panel.summary.endswith("2 invalid")
    with_value, without = panel.marks
    assert with_value.y < without.y == dots_of.HEIGHT - 3
    assert with_value.x < without.x


def test_beyond_sixty_blocks_neighbours_are_joined_and_nothing_is_hidden() -> None:
    run = synthetic_run(blocks=200, tunings=["baseline", "control", "pinned"])
    plot = drawn(run, judge(run))
    assert plot.joined == 5
    panel = plot.panels[0]
    assert len(points(panel.dots)) == len(plot.rows) == 40
    assert panel.spans.count("V") == 40
    assert plot.rows[0][0] == "1 to 5"
    assert re.fullmatch(r"\S+( k?/s)? \(\S+( k?/s)? to \S+ ?k?/s\)", plot.rows[0][1][0])


def test_where_a_boot_begins_lies_between_its_blocks() -> None:
    run = synthetic_run(blocks=10, boots=2)
    assert drawn(run, judge(run)).boots == (50.0,)
    each = synthetic_run(blocks=10, boots=10)
    assert drawn(each, judge(each)).boots == ()  # a line beside every dot would tell nothing


def test_a_place_without_a_primary_value_has_no_picture(judged: Judged) -> None:
    view = with_levels(judged, [])
    assert dots(view, PLACE, {}, view.tunings) is None


# Latency by percentile


def curve(view: View) -> Curves:
    (found,) = curves(view, PLACE, view.tunings)
    return found


def test_a_point_is_the_median_of_trials_and_its_band_their_middle_half(judged: Judged) -> None:
    values = {block: block / 1000 for block in range(1, 10)}
    tail = {block: block / 100 for block in range(1, 10)}
    plot = curve(with_levels(judged, [level("latency_p50", values), level("latency_p99", tail)]))
    assert plot.header == ("p50", "p99", "largest")
    assert plot.rows == (
        ("pinned", ("5.00 ms (3.00 ms to 7.00 ms)", "50.0 ms (30.0 ms to 70.0 ms)", "")),
    )


def test_a_percentile_that_some_trials_are_too_short_for_is_in_the_table_only(
    judged: Judged,
) -> None:
    blocks = range(1, 11)
    plot = curve(
        with_levels(
            judged,
            [
                level("latency_p50", dict.fromkeys(blocks, 0.001)),
                level("latency_p95", dict.fromkeys(blocks, 0.002)),
                level("latency_p99", dict.fromkeys(range(1, 5), 0.003)),
            ],
        )
    )
    (line,) = plot.panels[0].lines
    assert len(points(line.dots)) == 2
    assert [name for _, name in plot.x_ticks] == ["p50", "p95"]
    assert plot.rows[0][1][2] == "3.00 ms (3.00 ms to 3.00 ms), 4 of 10 blocks"
    assert "p99" in plot.undrawn


def test_a_maximum_stands_alone_with_how_long_and_how_many_trials_it_is_of(
    judged: Judged,
) -> None:
    blocks = range(1, 11)
    plot = curve(
        with_levels(
            judged,
            [
                level("latency_p50", dict.fromkeys(blocks, 0.001)),
                level("latency_p95", dict.fromkeys(blocks, 0.002)),
                level("latency_max", {1: 0.5, 2: 0.25}),
                level("operations", {1: 1234.0}, unit=Unit.COUNT),
            ],
        )
    )
    assert plot.maxima == "the longest of 2 trials of 2 s, 1,230 samples a trial"
    assert plot.rows[0][1][-1] == "500 ms"


def test_each_tuning_is_drawn_with_baseline_and_its_twin(judged: Judged) -> None:
    plot = curve(View(*judged))
    roles = {p.name: {line.role: line.name for line in p.lines} for p in plot.panels}
    assert roles == {
        "pinned": {"this": "pinned", "baseline": "baseline", "native": "native+pinned"},
        "pinned+fifo": {"this": "pinned+fifo", "baseline": "baseline", "native": "native+fifo"},
    }


def test_open_and_closed_loop_have_pictures_of_their_own_and_one_maximum(judged: Judged) -> None:
    levels = [
        level(f"{prefix}_{name}", {1: 0.001, 2: 0.002})
        for prefix in ("latency", "open_latency")
        for name in ("p50", "p95")
    ]
    view = with_levels(judged, [*levels, level("latency_max", {1: 0.5, 2: 0.25})])
    plots = curves(view, PLACE, view.tunings)
    assert [plot.heading for plot in plots] == [
        "Open-loop latency by percentile",
        "Closed-loop latency by percentile",
    ]
    assert {plot.rows[0][1][-1] for plot in plots} == {"500 ms"}


def test_reads_and_writes_have_pictures_of_their_own(judged: Judged) -> None:
    levels = [
        level(f"latency_{name}{{op={op}}}", {1: 0.001, 2: 0.002})
        for op in ("read", "write")
        for name in ("p50", "p95")
    ]
    view = with_levels(judged, levels)
    titles = [plot.heading for plot in curves(view, PLACE, view.tunings)]
    assert titles == ["Latency (read) by percentile", "Latency (write) by percentile"]


def test_one_percentile_is_no_curve(judged: Judged) -> None:
    view = with_levels(judged, [level("latency_p50", {1: 0.001})])
    assert curves(view, PLACE, view.tunings) == []


# Stacks


def test_host_cpu_is_stacked_by_thread_and_adds_up(judged: Judged) -> None:
    levels = [
        level("host_cpu{thread=vcpu}", {1: 0.6}, unit=Unit.CPUS),
        level("host_cpu{thread=vhost}", {1: 0.2}, unit=Unit.CPUS),
        level("host_cpu{thread=neighbour}", {1: 1.0}, unit=Unit.CPUS),
        level("host_cpu{thread=vcpu}", {1: 0.4}, unit=Unit.CPUS, tuning="baseline"),
    ]
    view = with_levels(judged, levels)
    stack = host_cpu(view, PLACE, view.tunings)
    assert stack is not None
    assert stack.parts == ("vcpu", "vhost")
    assert stack.rows == (
        ("baseline", ("0.40 CPUs", "", "0.40 CPUs")),
        ("pinned", ("0.60 CPUs", "0.20 CPUs", "0.80 CPUs")),
    )
    widths = {bar.name: sum(part.width for part in bar.parts) for bar in stack.bars}
    assert widths == {"baseline": 50.0, "pinned": 100.0}


def test_rare_reasons_of_exits_are_joined_and_none_is_lost() -> None:
    reasons = {f"R{number}": float(100 - number) for number in range(12)}
    run = synthetic_run(accelerator="kvm", exit_reasons=reasons, noise=0.0)
    view = View(run, judge(run))
    stack, _ = exits(view, PLACE, view.tunings)
    assert stack.parts == (*(f"R{number}" for number in range(6)), "other")
    pinned = dict(stack.rows)["pinned"]
    assert pinned[-2] == "549/s"  # 94 + 93 + 92 + 91 + 90 + 89
    assert pinned[-1] == "1,130/s"


def test_the_time_in_exits_stands_beside_their_number() -> None:
    reasons = {"MSR_WRITE": 1000.0, "HLT": 500.0}
    run = synthetic_run(accelerator="kvm", exit_reasons=reasons, noise=0.0)
    view = View(run, judge(run))
    number, time = exits(view, PLACE, view.tunings)
    assert number.parts == ("MSR_WRITE", "HLT")
    assert time.parts == ("MSR_WRITE",)
    assert time.title.endswith("Time in VM exits per second by reason")
    assert dict(time.rows)["pinned"][-1] == "0.0020 CPUs"


def test_a_reason_has_one_colour_in_both_pictures_whatever_its_share(judged: Judged) -> None:
    levels = [
        level("exits_per_op{reason=often}", {1: 9.0}, unit=Unit.COUNT),
        level("exits_per_op{reason=HLT}", {1: 4.0}, unit=Unit.COUNT),
        level("exits_per_op{reason=long}", {1: 1.0}, unit=Unit.COUNT),
        level("exit_time{reason=often}", {1: 0.1}, unit=Unit.CPUS),
        level("exit_time{reason=long}", {1: 0.7}, unit=Unit.CPUS),
    ]
    view = with_levels(judged, levels)
    number, time = exits(view, PLACE, view.tunings)
    colours = dict(zip(number.parts, number.colours, strict=True))
    assert colours == {"long": 0, "often": 1, "HLT": 2}
    assert dict(zip(time.parts, time.colours, strict=True)) == {"long": 0, "often": 1}
    for stack in (number, time):
        assert [p.colour for bar in stack.bars for p in bar.parts] == list(stack.colours)


def test_without_exits_a_sentence_says_why(judged: Judged) -> None:
    view = View(*judged)
    assert exits(view, PLACE, view.tunings) == ()
    assert no_exits(view, PLACE) == "emulated: no VM exits."


# The pin plan


def test_a_core_shows_its_cpus_and_what_runs_on_each() -> None:
    record = {
        "pin_plan": {
            "picture": "text",
            "reasons": ["Because."],
            "layout": [
                {
                    "title": "package 0",
                    "cores": [{"core": 4, "cpus": {"8": ["vCPU 0"], "9": []}}],
                    "free": "10-11",
                }
            ],
        }
    }
    (plan,) = pin_maps(run_of(record))
    assert plan.rows == (("CPU 8", "core 4", "vCPU 0"), ("CPU 9", "core 4", "free"))
    (group,) = plan.groups
    assert group.free == "10-11"
    assert group.cores[0].description == "CPU 8: vCPU 0; CPU 9: free"
    assert [chip.kind for cpu in group.cores[0].cpus for chip in cpu.chips] == ["vcpu"]


def test_a_plan_of_an_older_run_shows_its_cpus() -> None:
    data = {"vcpus": {"0": 1}, "emulator": "0", "iothreads": {"1": "0"}, "online": "0-3"}
    (plan,) = pin_maps(run_of({"pin_plan": {"picture": "", "data": data}}))
    assert plan.rows == (("CPU 0", "", "emulator, iothread 1"), ("CPU 1", "", "vCPU 0"))
    assert plan.groups[0].free == "2-3"


@pytest.mark.parametrize("list_", ["0-99999999999", "x", "9-1", 5, "0," * 5000])
def test_a_cpu_list_that_is_none_harms_nothing(list_: object) -> None:
    data = {"vcpus": {"0": 1}, "emulator": list_, "online": list_}
    (plan,) = pin_maps(run_of({"pin_plan": {"data": data}}))
    assert plan.rows == (("CPU 1", "", "vCPU 0"),)


def test_plans_of_other_strategies_follow() -> None:
    plan = {"picture": "x", "data": {"strategy": "compact"}}
    run = run_of({"pin_plan": plan, "pin_plans": {"spread": plan}})
    names = [p.strategy for p in pin_maps(run)]
    assert names == ["compact", "spread"]


# Axes


@pytest.mark.parametrize(
    "values",
    [[1.0, 2.0], [1e-6, 3e2], [5.0], [0.0, 0.0], [-3.0, 8.0], [1450.0, 1500.0], [0.0, 1e-9]],
)
def test_an_axis_holds_all_values_and_writes_a_few_round_ones(values: list[float]) -> None:
    axis = axis_of(values)
    assert axis is not None
    assert all(axis.holds(value) and 0 < axis.share(value) < 1 for value in values)
    ticks = axis.ticks(Unit.PER_SECOND, 0.2)
    assert 2 <= len(ticks) <= 6
    places = [axis.share(value) for value, _ in ticks]
    assert all(after - before >= 0.2 for before, after in itertools.pairwise(places))
    assert all(axis.holds(value) for value, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)


def test_no_finite_value_is_no_axis() -> None:
    assert axis_of([math.nan, math.inf]) is None
    assert axis_of([]) is None


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 5e-324])
def test_a_value_that_no_tool_measures_is_held_at_the_edge(value: float) -> None:
    axis = axis_of([1.0, 2.0, value])
    assert axis == axis_of([1.0, 2.0])
    assert axis is not None
    assert axis.share(value) in (0.0, 1.0)
    assert axis_of([value]) is None


def test_a_round_value_is_written_without_zeros() -> None:
    axis = axis_of([0.0009, 0.011])
    assert axis is not None
    assert [text for _, text in axis.ticks(Unit.SECONDS, 0.1)] == ["1 ms", "3 ms", "10 ms"]


# Every picture


def has_heading(text: str, title: str) -> bool:
    return bool(re.search(rf'<h3 id="place-[0-9a-z-]+">{re.escape(title)}</h3>', text))


def sight(run: LoadedRun, judgement: Judgement) -> Sight:
    view = View(run, judgement)
    return Sight(view=view, place=PLACE, shown=view.tunings, invalid=invalid_attempts(view))


every_picture = pytest.mark.parametrize("picture", PICTURES, ids=[one.title for one in PICTURES])


@pytest.fixture(scope="module")
def everything() -> Judged:
    run = synthetic_run(accelerator="kvm", exit_reasons={"MSR_WRITE": 1000.0, "HLT": 500.0})
    return run, judge(run)


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    run = with_streams(synthetic_run(blocks=3), tmp_path_factory.mktemp("streams"))
    return run, judge(run)


@pytest.fixture(scope="module")
def example() -> Judged:
    run = RunFolder(EXAMPLE).load()
    return run, judge(run)


@every_picture
def test_some_run_has_it_with_its_title_or_headings_of_its_own(
    everything: Judged, example: Judged, streaming: Judged, picture: Picture
) -> None:
    runs = (everything, example, streaming)
    (having, *_) = [run for run in runs if picture.draw(sight(*run))]
    if picture.is_titled:
        assert has_heading(page(*having, EXAMPLE), picture.title)
    assert picture.shows.endswith(".")


@every_picture
def test_where_there_is_nothing_to_draw_it_is_left_out_or_says_why(
    everything: Judged, picture: Picture, tmp_path: Path
) -> None:
    run, judgement = everything
    nothing = replace(judgement, comparisons=(), levels=judgement.levels[:1])
    empty = replace(run, trials=()), replace(nothing, primaries={})
    at = sight(*empty)
    assert not picture.draw(at)
    why = picture.why_none(at)
    (told,) = [one.why_none for one in drawings(at, leads=picture.leads) if one.why_none] or [""]
    assert why in ("", told)
    shown = page(*empty, tmp_path)
    assert has_heading(shown, picture.title) is (picture.is_titled and why != "")
    assert why in shown
