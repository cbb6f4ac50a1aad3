"""A published study of a game beside a load, through labctl's analysis: its raw figures, imported,
give the changes that it states itself."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner

from labctl.analysis.studies import TableRow, study_tables
from labctl.cli import main
from labctl.store.run_folder import LoadedRun
from labctl.store.run_places import find_run
from tests.unit.analysis.alter import with_plan

PUBLISHED = Path(__file__).parents[1] / "fixtures/published/cloud-gaming.csv"
TABLE = {
    "title": "What the load changes",
    "factor": "load",
    "rows": [{"tuning": "native"}],
    "metrics": ["ctx_switches"],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    folder = tmp_path_factory.mktemp("published")
    lines = ["tuning,workload,block,scheduler,isolation,load,metric,value,unit,better"]
    with PUBLISHED.open() as file:
        for row in csv.DictReader(file):
            levels = ",".join(row[name] for name in ("scheduler", "isolation", "load"))
            switches = row["context_switches_per_s"]
            lines.append(f"native,game,1,{levels},ctx_switches,{switches},1/s,lower")
    (folder / "game.csv").write_text("\n".join(lines) + "\n")
    words = ["run", "import", str(folder / "game.csv"), "--name", "game", "--baseline", "native"]
    for factor in ("scheduler=other,fifo", "isolation=none,cgroup", "load=none,stress-ng --cpu 2"):
        words += ["--factor", factor]
    made = CliRunner().invoke(main.cli, [*words, "--results", str(folder / "results")])
    assert made.exit_code == 0, made.output
    loaded = find_run(folder / "results", "game").load()
    return with_plan(loaded, tables=[TABLE])


def change(rows: tuple[TableRow, ...], scheduler: str, isolation: str) -> float:
    (row,) = (
        row
        for row in rows
        if f"scheduler={scheduler}," in row.place.workload
        and f"isolation={isolation}," in row.place.workload
    )
    number = row.cells[0].own.number
    assert number is not None
    return 100 * (number - 1)


def test_the_load_changes_switches_by_what_the_source_states(run: LoadedRun) -> None:
    (table,) = study_tables(run)
    assert len(table.rows) == 4
    # The source's own percentages: other alone and in its cgroup, FIFO alone and in its cgroup.
    stated = {
        ("other", "none"): 4.67,
        ("other", "cgroup"): 32.04,
        ("fifo", "none"): 2.49,
        ("fifo", "cgroup"): 2.80,
    }
    for (scheduler, isolation), percent in stated.items():
        assert change(table.rows, scheduler, isolation) == pytest.approx(percent, abs=0.005)


def test_one_trial_of_each_cell_has_no_interval(run: LoadedRun) -> None:
    (table,) = study_tables(run)
    assert {row.cells[0].own.low for row in table.rows} == {None}
