from __future__ import annotations

from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from labctl.analysis.judge import judge
from labctl.report.exit_prices import price_table
from labctl.report.html import page
from labctl.store.exit_prices import Price
from tests.unit.synthetic import synthetic_run

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
    assert "1000" in text
    assert "apic-eoi: no exit." in text


def test_exits_at_the_hosts_prices_stand_against_what_was_measured(tmp_path: Path) -> None:
    run = synthetic_run(accelerator="kvm", exit_reasons={"CPUID": 40_000.0, "PAUSE": 10_000.0})
    for prices, expected in ([asdict(PRICE)], True), ([], False):
        recorded = {**run.run, "exit_prices": {"at": "now", "prices": prices}}
        priced = replace(run, run=recorded)
        text = page(priced, judge(priced), tmp_path)
        assert ("predicted loss" in text) == expected
        assert ("without a price: PAUSE" in text) == expected
        assert ("labctl exits price" in text) != expected
