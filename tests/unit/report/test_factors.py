"""What factors did, in every form of the report."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from lxml import html
from rich.console import Console, RenderableType

from labctl.analysis.factors import findings, picturing
from labctl.analysis.judge import judge
from labctl.analysis.model import Judgement
from labctl.base.errors import UsageError
from labctl.report.export.samples import samples_csv
from labctl.report.export.samples_parquet import samples_parquet
from labctl.report.page.factor_pictures import heatmap, interaction
from labctl.report.page.picture_files import picture_files
from labctl.report.page.report_page import page
from labctl.report.terminal.factor_tables import factors_full
from labctl.report.terminal.metric_table import print_metrics
from labctl.report.terminal.short import short
from labctl.store.run_folder import LoadedRun
from tests.unit.factor_runs import NUMBERS, POLICIES, factorial_run
from tests.unit.synthetic import synthetic_run


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    return factorial_run()


@pytest.fixture(scope="module")
def judgement(run: LoadedRun) -> Judgement:
    return judge(run)


def lines(parts: Iterable[RenderableType]) -> list[str]:
    console = Console(width=100, file=io.StringIO(), color_system=None)
    for part in parts:
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_table_has_each_effect_with_its_interval_and_finding(judgement: Judgement) -> None:
    said = lines(factors_full(judgement.factors))
    assert any(line.startswith("baseline policy fifo vs other +3") for line in said)
    assert any(
        line.startswith("kernel bare vs standard +8") and line.endswith("real") for line in said
    )
    assert any("kernel × policy bare with rr" in line and "not shown" in line for line in said)
    assert any("each boot gives one value" in line for line in said)


def test_the_short_report_names_cells_whole_and_shows_the_effects(
    run: LoadedRun, judgement: Judgement
) -> None:
    """A cell is named by its levels."""
    said = lines([short(run, judgement)])
    assert any("matrix (fifo, 50)" in line for line in said)
    assert any("Factors, matrix with a noisy neighbour" in line for line in said)


def test_findings_name_an_interaction_that_is_shown_and_no_other(judgement: Judgement) -> None:
    assert judgement.factors is not None
    said = findings(judgement.factors)
    assert "policy × processes fifo with 50, events/s" in said
    assert "rr with 50" not in said


def test_a_run_without_factors_says_nothing_of_them() -> None:
    plain = synthetic_run()
    said = judge(plain)
    assert said.factors is None
    assert "Factors" not in " ".join(lines([short(plain, said)]))
    assert 'id="factors"' not in page(plain, said, Path())


def test_the_page_has_both_pictures_and_a_row_for_each_effect(
    run: LoadedRun, judgement: Judgement
) -> None:
    root = html.fromstring(page(run, judgement, Path()))
    assert root.xpath("//h2[@id='factors']")
    assert judgement.factors is not None
    rows = root.xpath("//div[starts-with(@aria-label, 'Effects of factors')]//tbody/tr")
    assert len(rows) == len(judgement.factors.contrasts)
    assert root.xpath("//nav//a[@href='#factors']")
    under = root.xpath("//section[h2[contains(., 'matrix (fifo, 50)')]]/p[1]")
    assert under[0].text_content() == "policy = fifo; processes = 50"
    # Native and baseline: a line per number of processes, a tile per cell.
    assert len(root.xpath("//path[starts-with(@class, 'line l')]")) == 2 * len(NUMBERS)
    tiles = root.xpath("//rect[starts-with(@class, 'heat')]")
    assert len(tiles) == 2 * len(NUMBERS) * len(POLICIES)


def test_pictures_show_the_declared_interaction_or_the_factors_that_were_chosen(
    judgement: Judgement,
) -> None:
    assert judgement.factors is not None
    plot = interaction(judgement.factors)
    assert plot is not None
    assert (plot.across, plot.lines) == ("policy", "processes")
    chosen = picturing(judgement, ("kernel", "policy")).factors
    assert chosen is not None
    plot, tiles = interaction(chosen), heatmap(chosen)
    assert plot is not None
    assert [name for _, name in plot.levels] == ["standard", "bare"]
    # Native runs have no kernel of a guest's.
    assert [panel.name.partition(",")[0] for panel in plot.panels] == ["baseline"]
    assert tiles is not None
    assert len(tiles.panels[0].tiles) == 6
    with pytest.raises(UsageError, match="no factor 'polcy'"):
        picturing(judgement, ("kernel", "polcy"))
    with pytest.raises(UsageError, match="takes two factors"):
        picturing(judgement, ("kernel",))


def test_a_panel_shows_means_over_the_other_factors_cells(judgement: Judgement) -> None:
    assert judgement.factors is not None
    means = {
        tuple(mean.levels[name] for name in ("policy", "processes", "kernel")): mean.typical
        for mean in judgement.factors.means
        if mean.arm == "baseline"
    }
    shown = heatmap(judgement.factors)
    assert shown is not None
    (panel,) = (p for p in shown.panels if p.name.startswith("baseline"))
    first = (means["other", "10", "standard"] * means["other", "10", "bare"]) ** 0.5
    assert panel.tiles[0].value.startswith(f"{first:.0f}")


def test_pictures_are_files_as_well(run: LoadedRun, judgement: Judgement) -> None:
    names = [picture.name for picture in picture_files(run, judgement)]
    assert "02-factors-interaction" in names
    assert "03-factors-heatmap" in names


def test_many_contrasts_leave_the_short_report_those_that_are_real(
    run: LoadedRun, judgement: Judgement
) -> None:
    factors = judgement.factors
    assert factors is not None
    many = replace(judgement, factors=replace(factors, contrasts=factors.contrasts * 2))
    said = lines([short(run, many)])
    assert any("fifo vs other" in line for line in said)
    assert not any("bare with rr" in line for line in said)
    assert any(line.endswith("of factors: --full") for line in said)


def test_samples_have_a_column_for_each_factor_after_all_others(run: LoadedRun) -> None:
    rows = list(csv.DictReader(io.StringIO("".join(samples_csv(run)))))
    assert list(rows[0])[-3:] == ["policy", "processes", "kernel"]
    of = {(row["tuning"], row["policy"], row["processes"], row["kernel"]) for row in rows}
    assert ("bare", "fifo", "50", "bare") in of
    assert ("native", "fifo", "50", "") in of
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.read_table(io.BytesIO(samples_parquet(run)))
    assert table.column_names == list(rows[0])
    assert set(table["policy"].to_pylist()) == set(POLICIES)


def test_another_metric_has_intervals_of_95_percent_and_no_finding(
    run: LoadedRun, judgement: Judgement
) -> None:
    console = Console(width=100, file=io.StringIO(), color_system=None)
    print_metrics(console, run, judgement, ["latency_p95"], ["matrix"])
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "matrix (rr, 50)" in said
    rows = [line for line in said.splitlines() if "fifo vs other" in line]
    assert len(rows) == 2
    assert all("exploratory" in row for row in rows)


def test_a_study_that_varies_no_tuning_opens_with_its_effects(tmp_path: Path) -> None:
    tunings = ("native", "baseline", "control", "handicap")
    made = factorial_run()
    kept = tuple(trial for trial in made.trials if trial.record.cell["tuning"] in tunings)
    plan = made.plan.model_copy(
        update={
            "tunings": {name: arm for name, arm in made.plan.tunings.items() if name in tunings}
        }
    )
    run = replace(made, plan=plan, trials=kept)
    judgement = judge(run)
    decision = judgement.decision
    assert decision.lead.endswith("this study varies policy, processes and kernel.")
    assert "policy fifo vs other, events/s: natively +" in decision.because
    assert "in the guest +" in decision.because
    text = page(run, judgement, tmp_path)
    assert text.index('id="factors"') < text.index("cells by itself")
