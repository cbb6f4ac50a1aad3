"""The tables that a study declares, filled in and shown in each form of the report."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from lxml import html as parser
from rich.console import Console

from labctl.analysis.effects.cells import Scenario
from labctl.analysis.judge import judge
from labctl.analysis.studies import FilledTable, study_tables
from labctl.report.export.json_report import report_json
from labctl.report.page.report_page import page
from labctl.report.terminal.tables import print_report
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Sample
from tests.unit.analysis.alter import with_plan
from tests.unit.factor_runs import factorial_run
from tests.unit.synthetic import WORKLOADS, synthetic_run

PUBLISHED = {
    "source": "Someone's study, 2025.",
    "results": [
        {
            "tuning": "pinned",
            "against": "baseline",
            "workload": "sysbench-cpu",
            "metric": "ipc",
            "ratio": 1.13,
            "direction": "higher",
        }
    ],
}
TABLES = [
    {
        "title": "What it changes",
        "rows": [{"tuning": "pinned", "against": "baseline"}],
        "metrics": ["ipc", "latency_p95", "exits", "no_such_metric"],
    },
    {"title": "What it is", "rows": [{"tuning": "pinned"}], "metrics": ["ipc"]},
]


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    return with_plan(
        synthetic_run(workloads={"sysbench-cpu": WORKLOADS["sysbench-cpu"]}),
        published=[PUBLISHED],
        tables=TABLES,
    )


def table(run: LoadedRun, number: int) -> FilledTable:
    return study_tables(run)[number]


def test_a_change_is_the_one_that_the_report_has(run: LoadedRun) -> None:
    row = next(r for r in table(run, 0).rows if r.place.workload == "sysbench-cpu")
    (theirs,) = (
        c
        for c in judge(run).comparisons
        if (c.tuning, c.against) == ("pinned", "baseline") and c.metric.startswith("ipc{")
    )
    assert row.cells[0].own.number == pytest.approx(theirs.estimate)
    assert [item.ratio for item in row.cells[0].published] == [1.13]


def test_a_value_is_the_geometric_mean_over_blocks(run: LoadedRun) -> None:
    row = table(run, 1).rows[0]
    values = [
        reading.value
        for trial in run.trials
        if trial.record.cell["tuning"] == "pinned"
        and trial.record.cell["workload"] == row.place.workload
        for reading in trial.readings
        if isinstance(reading, Sample) and reading.metric == "ipc"
    ]
    assert len(values) >= 10
    own = row.cells[0].own
    assert own.number == pytest.approx(math.exp(sum(map(math.log, values)) / len(values)))
    assert own.low is not None
    assert own.high is not None
    assert own.low < own.number < own.high


def test_what_the_run_has_not_is_left_out_and_said_where_a_reason_is_known(run: LoadedRun) -> None:
    filled = table(run, 0)
    assert filled.metrics == ("ipc", "latency_p95")
    assert dict(filled.missing) == {"emulated: no VM exits": ("exits",)}


def test_a_run_without_tables_has_none() -> None:
    assert study_tables(synthetic_run()) == ()
    assert report_json(synthetic_run(), judge(synthetic_run()))["tables"] is None


def test_the_terminal_has_them_in_80_columns(run: LoadedRun) -> None:
    out = io.StringIO()
    print_report(Console(file=out, width=80), run, judge(run))
    text = out.getvalue().split("What it changes")[1].split("Published elsewhere")[0]
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    for expected in ("pinned : baseline", "publ. +13 %", "What it is", "n/a VM exits: emulated"):
        assert expected in words


def test_the_page_has_them_and_names_them_in_its_contents(run: LoadedRun, tmp_path: Path) -> None:
    tree = parser.fromstring(page(run, judge(run), tmp_path))
    assert tree.xpath("//h2[@id='tables']")
    assert tree.xpath("//a[@href='#tables']")
    after = " ".join(tree.xpath("string(//h3[.='What it changes']/following::table[1])").split())
    assert "published +13 %" in after


def test_json_has_numbers_and_reasons(run: LoadedRun) -> None:
    first, second = report_json(run, judge(run))["tables"]
    assert first["missing"] == [{"why": "emulated: no VM exits", "metrics": ["exits"]}]
    cell = first["rows"][0]["cells"][0]
    assert cell["metric"] == "ipc"
    assert cell["unit"] is None
    assert second["rows"][0]["cells"][0]["unit"] == "instructions/cycle"


IMPACT = {
    "title": "What fifo changes",
    "factor": "policy",
    "rows": [{"tuning": "native"}, {"tuning": "baseline"}],
    "metrics": ["events_per_s"],
}
SAME = {
    "source": "Someone's matrix.",
    "results": [
        {
            "tuning": "native",
            "against": "native",
            "workload": "matrix[policy=fifo,processes=10]",
            "against_workload": "matrix[policy=other,processes=10]",
            "metric": "events_per_s",
            "ratio": 1.5,
            "direction": "higher",
        }
    ],
}


@pytest.fixture(scope="module")
def of_factor() -> LoadedRun:
    return with_plan(factorial_run(), tables=[IMPACT], published=[SAME])


def test_a_factor_s_levels_are_compared_with_its_first_cell_by_cell(of_factor: LoadedRun) -> None:
    rows = {(row.tuning, row.change): row for row in table(of_factor, 0).rows}
    assert len(rows) == 2 * 2 + 2 * 2 * 2, "two levels; native by processes, baseline by kernel too"
    for number, effect in {"10": 1.2, "50": 1.44}.items():
        row = rows["native", f"processes {number}, policy other → fifo"]
        assert row.other == Scenario(f"matrix[policy=other,processes={number}]", "neighbour")
        (cell,) = row.cells
        assert cell.own.number == pytest.approx(effect, rel=0.1)
        assert cell.own.low is not None
        assert cell.own.high is not None
        assert cell.own.low < cell.own.number < cell.own.high
        assert [one.ratio for one in cell.published] == ([1.5] if number == "10" else [])
    bare = rows["bare", "processes 50, kernel bare, policy other → fifo"]
    assert bare.cells[0].own.number == pytest.approx(1.44, rel=0.1)


def test_the_change_of_a_factor_stands_in_every_form(of_factor: LoadedRun, tmp_path: Path) -> None:
    out = io.StringIO()
    print_report(Console(file=out, width=80), of_factor, judge(of_factor))
    after = out.getvalue().split("What fifo changes")[1]
    assert "policy other" in " ".join(after.split())
    tree = parser.fromstring(page(of_factor, judge(of_factor), tmp_path))
    said = " ".join(tree.xpath("string(//h3[.='What fifo changes']/following::table[1])").split())
    assert "matrix: processes 10, policy other → fifo, with a noisy neighbour" in said
    assert "published +50 %" in said
    row = report_json(of_factor, judge(of_factor))["tables"][0]["rows"][0]
    assert row["against_workload"] == "matrix[policy=other,processes=10]"
    assert row["against_condition"] == "neighbour"
