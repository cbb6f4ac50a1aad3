from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from labctl.store.exit_prices import Price, known_prices, prices_of, write_prices

HOST = {"kernel_release": "6.1", "qemu": "7.2", "cpu_model": "x", "microcode": "1"}
PRICE = Price(
    kind="cpuid",
    what="cpuid",
    reason="CPUID",
    to_qemu=False,
    ns=1200.0,
    low_ns=1100.0,
    high_ns=1300.0,
    exits_per_op=1.0,
)


def test_prices_are_known_again_on_the_same_host(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "exit-prices.json"
    unpriced = replace(PRICE, ns=None, low_ns=None, high_ns=None, problem="makes no VM exit here.")
    write_prices(file, HOST, [PRICE, unpriced], "2026-11-21T22:00:00+00:00")
    known = known_prices(file, HOST)
    assert known is not None
    assert known["at"] == "2026-11-21T22:00:00+00:00"
    assert prices_of(known) == [PRICE, unpriced]


def test_prices_of_another_kernel_are_not_this_hosts(tmp_path: Path) -> None:
    file = tmp_path / "exit-prices.json"
    write_prices(file, HOST, [PRICE], "now")
    assert known_prices(file, {**HOST, "kernel_release": "6.2"}) is None


def test_a_file_that_is_gone_or_broken_holds_no_prices(tmp_path: Path) -> None:
    file = tmp_path / "exit-prices.json"
    assert known_prices(file, HOST) is None
    for text in ("", "{}", '{"schema": 1}', '{"schema": 1, "host": {}, "prices": [1]}'):
        file.write_text(text)
        assert known_prices(file, HOST) is None


def test_a_record_may_hold_anything() -> None:
    assert prices_of(None) == []
    assert prices_of({"prices": [{"kind": "cpuid"}]}) == []
    assert prices_of({"prices": "cpuid"}) == []
