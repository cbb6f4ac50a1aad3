"""The published column in each form of the report."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from lxml import html as parser
from rich.console import Console

from labctl.analysis.judge import judge
from labctl.report.export.json_report import report_json
from labctl.report.page.report_page import page
from labctl.report.published_parts import CAUTION
from labctl.report.terminal.short import short
from labctl.report.terminal.tables import print_report
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import with_plan
from tests.unit.synthetic import synthetic_run

SOURCE = "Someone's study, 2025."


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    results: list[dict[str, object]] = [
        {"metric": "ipc", "tuning": "pinned", "ratio": 0.8},
        {"metric": "ipc", "tuning": "pinned+fifo", "ratio": 0.5},
        {"metric": "latency_p95", "tuning": "pinned", "ratio": None},
        {"metric": "exits", "tuning": "pinned", "ratio": 0.5},
    ]
    given = [
        {"against": "baseline", "workload": "sysbench-cpu", "direction": "lower", **item}
        for item in results
    ]
    return with_plan(synthetic_run(), published=[{"source": SOURCE, "results": given}])


def printed(run: LoadedRun) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=80), run, judge(run))
    return out.getvalue()


def test_the_terminal_has_ratio_and_direction_in_80_columns(run: LoadedRun) -> None:
    text = printed(run)
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split("Published elsewhere")[1].split())
    for expected in ("−20 %", "−50 %", "falls", "not", SOURCE, CAUTION, "[a]"):
        assert expected in words
    assert "emulated: no VM exits" in words


def test_the_short_report_has_the_first_of_them_and_counts_the_others() -> None:
    result = {"metric": "ipc", "tuning": "pinned", "ratio": 0.8}
    place = {"against": "baseline", "workload": "sysbench-cpu", "direction": "lower"}
    given = [{**result, **place} for _ in range(20)]
    run = with_plan(synthetic_run(), published=[{"source": SOURCE, "results": given}])
    out = io.StringIO()
    Console(file=out, width=80).print(short(run, judge(run)))
    text = out.getvalue().split("Published elsewhere")[1]
    assert text.count("[a]") == 16 + 1
    assert "4 more published results: --full" in text
    assert SOURCE in text


def test_json_has_both_ratios_and_the_source(run: LoadedRun) -> None:
    results = report_json(run, judge(run))["published"]["results"]
    assert [r["agreement"] for r in results] == [
        "same direction",
        "other direction",
        "other direction",
        "not measured",
    ]
    assert [r["published_ratio"] for r in results] == [0.8, 0.5, None, 0.5]
    assert {r["source"] for r in results} == {SOURCE}


def test_the_page_has_a_row_for_each(run: LoadedRun, tmp_path: Path) -> None:
    document = parser.fromstring(page(run, judge(run), tmp_path))
    (region,) = document.xpath("//*[@id='published']/following-sibling::div[1]")
    rows = [row.text_content() for row in region.xpath(".//tbody/tr")]
    assert len(rows) == 4
    assert "same direction" in rows[0]
    assert "emulated: no VM exits" in rows[3]


def test_a_run_that_repeats_nothing_has_no_such_part(tmp_path: Path) -> None:
    run = synthetic_run(blocks=1)
    judgement = judge(run)
    assert "Published" not in printed(run)
    assert report_json(run, judgement)["published"] is None
    assert 'id="published"' not in page(run, judgement, tmp_path)
