"""A stream's bitrate over time, and heatmaps that a study asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labctl.analysis.answer.view import View
from labctl.analysis.judge import judge
from labctl.report.page.pictures import Bitrates, bitrates
from labctl.report.page.report_page import page
from labctl.report.page.study_heatmaps import study_heatmaps
from labctl.store.records.factor_record import PlannedHeatmap
from labctl.store.run_folder import LoadedRun
from tests.unit.factor_runs import factorial_run
from tests.unit.streams import with_streams
from tests.unit.synthetic import synthetic_run


def _drawn(run: LoadedRun) -> Bitrates:
    view = View(run, judge(run))
    plot = bitrates(view, view.places[0], view.tunings)
    assert plot is not None
    return plot


def test_each_moment_is_the_mean_over_blocks_with_its_interval(tmp_path: Path) -> None:
    plot = _drawn(with_streams(synthetic_run(blocks=3), tmp_path))
    # 9, 10 and 11 Mb/s: their deviation is 1, and t of two degrees 4.303. 4.303 / √3 = 2.48
    first = dict(zip(plot.header, plot.rows[0][1], strict=True))
    assert first["pinned, stream"] == "10.0 Mbit/s ± 2.48 Mbit/s"
    assert first["pinned, competitor"] == "0 bit/s ± 0 bit/s"
    assert len(plot.rows) == 12
    assert plot.blocks == "3 blocks"


def test_a_band_is_there_where_all_blocks_agree(tmp_path: Path) -> None:
    plot = _drawn(with_streams(synthetic_run(blocks=3), tmp_path))
    for course in plot.panels[0].courses:
        # Up along the bins and back again, those in which nothing differs, too.
        assert len(re.findall(r"[ML]", course.band)) == 2 * len(plot.rows)


def test_a_single_block_has_a_line_and_no_band(tmp_path: Path) -> None:
    plot = _drawn(with_streams(synthetic_run(blocks=1), tmp_path))
    courses = [course for panel in plot.panels for course in panel.courses]
    assert all(course.path and not course.band for course in courses)
    assert not any("±" in cell for _, cells in plot.rows for cell in cells)


def test_a_larger_rate_lies_higher(tmp_path: Path) -> None:
    plot = _drawn(with_streams(synthetic_run(blocks=3), tmp_path))
    stream, competitor = plot.panels[0].courses
    heights = [
        float(re.findall(r"[ML][\d.]+ ([\d.]+)", course.path)[5]) for course in (stream, competitor)
    ]
    assert heights[0] < heights[1] < plot.height


def test_a_record_that_is_cut_is_left_out(tmp_path: Path) -> None:
    run = with_streams(synthetic_run(blocks=2), tmp_path)
    for trial in run.trials:
        if trial.record.block == 1:
            file = trial.folder.path / "files" / "stream.json"
            file.write_text(file.read_text()[:100])
    assert _drawn(run).blocks == "1 block"


def _with_heatmap(metric: str) -> LoadedRun:
    run = factorial_run(blocks=2)
    one = PlannedHeatmap(across="policy", down="processes", metric=metric)
    return LoadedRun(run.name, run.run, run.plan.but(heatmaps=(one,)), run.trials, run.problems)


def test_a_heatmap_has_a_panel_per_arm_and_a_cell_per_level_of_both_factors() -> None:
    run = _with_heatmap("events_per_s")
    (picture,) = study_heatmaps(View(run, judge(run)))
    panels = {panel.name: panel for panel in picture.plot.panels}
    assert "native" in panels
    assert "baseline, kernel=bare" in panels
    assert [label for _, label in panels["native"].columns] == ["other", "fifo", "rr"]
    assert [label for _, label in panels["native"].rows] == ["10", "50"]
    assert len(panels["native"].tiles) == 6
    values = [tile.opacity for panel in panels.values() for tile in panel.tiles]
    assert min(values) == 0
    assert max(values) == pytest.approx(0.5)
    # Every number of the picture is in the table, too.
    assert len(picture.rows) == len(values)
    text = page(run, judge(run), Path("/nonexistent"))
    assert '<h3 id="factors-heatmap-1">' in text


def test_a_metric_that_was_not_measured_has_no_heatmap() -> None:
    run = _with_heatmap("jain_index")
    assert [*study_heatmaps(View(run, judge(run)))] == []
