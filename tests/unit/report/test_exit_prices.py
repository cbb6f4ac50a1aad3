from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from labctl.analysis.answer.view import View, only_label
from labctl.analysis.effects.cells import Scenario
from labctl.analysis.judge import judge
from labctl.report.export.json_report import report_json
from labctl.report.page.report_page import _wanted, page
from labctl.report.price_list import Predicted, predictions, price_table
from labctl.report.terminal.tables import print_report
from labctl.store.exit_prices import Price
from labctl.store.run_folder import LoadedRun
from tests.unit.records import run_of
from tests.unit.report.test_json_report import as_shape
from tests.unit.synthetic import synthetic_run

PLACE = Scenario("sysbench-cpu", "neighbour")

PRICE = Price(
    kind="cpuid",
    what="cpuid",
    reason="CPUID",
    to_qemu=False,
    ns=1000.0,
    low_ns=900.0,
    high_ns=1100.0,
    exits_per_op=1.0,
)


def test_the_list_tells_why_a_kind_has_no_price() -> None:
    free = replace(PRICE, kind="apic-eoi", ns=None, low_ns=None, high_ns=None, problem="no exit.")
    console = Console(width=80, record=True, file=StringIO())
    console.print(price_table([PRICE, free]))
    text = console.export_text()
    assert "1,000" in text
    assert "apic-eoi: no exit." in text


REASONS = {"CPUID": 40_000.0, "PAUSE": 10_000.0, "HLT": 7_000.0}
NEVER = replace(PRICE, kind="apic-eoi", reason="APIC_WRITE", ns=None, low_ns=None, high_ns=None)


def priced_run(prices: Sequence[Price] = (PRICE,), **options: Any) -> LoadedRun:
    """Whose host has that price list."""
    run = synthetic_run(accelerator="kvm", exit_reasons=REASONS, **options)
    recorded = {"at": "now", "prices": [asdict(price) for price in prices]}
    return replace(run, run=run_of({**run.run.to_json(), "exit_prices": recorded}))


def found(run: LoadedRun) -> dict[str, Predicted]:
    view = View(run, judge(run))
    return {row.arm: row for row in predictions(view, PLACE).rows}


def test_exits_at_the_hosts_prices_stand_against_what_was_measured(tmp_path: Path) -> None:
    for prices, expected in ([PRICE], True), ([], False):
        run = priced_run(prices)
        text = page(run, judge(run), tmp_path)
        assert ("predicted loss" in text) == expected
        assert ("Without a price: PAUSE." in text) == expected
        assert ("labctl exits price" in text) != expected


def test_page_table_and_json_say_the_same_of_predicted_and_measured_losses(tmp_path: Path) -> None:
    run = priced_run()
    row = found(run)["pinned"]
    console = Console(width=200, record=True, file=StringIO())
    print_report(console, run, judge(run))
    table, html = console.export_text(), page(run, judge(run), tmp_path)
    for cell in row.cells:
        assert cell in table
        assert f"<td>{cell}</td>" in html
    told = as_shape(report_json(run, judge(run))).model_dump()["exit_costs"]
    one = next(t for t in told if t["tuning"] == "pinned" and t["workload"] == PLACE.workload)
    assert row.measured is not None
    assert one["measured"] == row.measured._asdict()
    assert one["against"] == "native+pinned"
    assert one["exits_per_s"] == row.cost.exits
    assert one["unpriced"] == ["PAUSE"]


def test_the_rest_is_as_far_off_as_prediction_and_measurement_may_be_together() -> None:
    row = found(priced_run())["pinned"]
    assert row.predicted is not None
    assert row.measured is not None
    assert row.rest is not None
    assert row.rest.estimate == pytest.approx(row.measured.estimate - row.predicted.estimate)
    assert row.measured.low is not None
    assert row.predicted.high is not None
    assert row.rest.low == pytest.approx(row.measured.low - row.predicted.high)
    assert row.measured.low < row.measured.estimate < (row.measured.high or 0)


def test_idle_exits_are_in_neither_the_count_nor_the_share_that_has_a_price() -> None:
    row = found(priced_run(noise=0.0))["baseline"]
    assert row.cost.exits == pytest.approx(50_000)
    assert row.cost.priced == pytest.approx(0.8)


def test_the_runs_checks_which_are_not_compared_with_native_have_no_row() -> None:
    assert [*found(priced_run())] == ["baseline", "pinned", "pinned+fifo"]


def test_a_loss_that_was_not_measured_says_why() -> None:
    run = priced_run(tunings=["native", "baseline", "mine"])
    assert found(run)["mine"].cells[2:4] == ("n/a: no native twin", "n/a")


def test_a_list_without_a_price_for_any_exit_is_not_called_missing(tmp_path: Path) -> None:
    run = priced_run([NEVER])
    text = page(run, judge(run), tmp_path)
    assert "none of the exits has a price" in text
    assert "no price list was made" not in text


def test_the_page_leaves_each_reason_of_each_vcpu_to_the_json() -> None:
    run = priced_run()
    view = View(run, judge(run))
    level = next(x for x in view.levels(PLACE) if x.metric == "exits{reason=CPUID}")
    assert _wanted(view, level, ("",))
    assert not _wanted(view, replace(level, metric="exits{reason=CPUID,vcpu=0}"), ("",))


def test_exits_of_one_vcpu_are_a_part_of_all_and_not_added_to_them() -> None:
    assert only_label("exits{reason=CPUID}", "exits", "reason") == "CPUID"
    assert only_label("exits{reason=CPUID,vcpu=0}", "exits", "reason") is None
    assert only_label("exits{vcpu=0}", "exits", "reason") is None
