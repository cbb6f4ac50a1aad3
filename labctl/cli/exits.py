"""Run `labctl exits`: measure what VM exits cost on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from labctl.cli.common import Group, console, print_json, state_paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from labctl.store.exit_prices import Price

SCHEMA = 1


@click.group("exits", cls=Group)
def command() -> None:
    """Measure what VM exits cost on this host."""


@command.command("price")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/exit-prices.md).")
@click.pass_context
def price(context: click.Context, as_json: bool) -> None:
    """Measure nanoseconds per VM exit of each kind, by a guest that makes one kind at a time.

    Takes some seconds and needs KVM, but no kernel that boots with it. The list is kept: reports
    of later runs hold each tuning's exits at these prices against what was measured.
    """
    from dataclasses import asdict
    from datetime import UTC, datetime

    from labctl.base.paths import host_lock
    from labctl.host.facts import host_facts
    from labctl.host.lock import host_locked
    from labctl.store.exit_prices import write_prices

    places = state_paths(context)
    with host_locked(host_lock(), what="exits price"):
        prices = measured(lambda kind: None if as_json else click.echo(f"{kind} ...", err=True))
        at = datetime.now(UTC).isoformat(timespec="seconds")
        write_prices(places.exit_prices, host_facts(places), prices, at)
    if as_json:
        prices_json = [asdict(item) for item in prices]
        print_json({"schema": SCHEMA, "at": at, "prices": prices_json})
    else:
        from labctl.report.price_list import price_table

        console().print(price_table(prices))
        click.echo("Kept: reports of later runs on this host use it.", err=True)


def measured(tell: Callable[[str], None]) -> list[Price]:
    """Return the price list of this host. Raises HostError where no guest runs under KVM."""
    from pathlib import Path

    from labctl.analysis import exit_price
    from labctl.collect.counters.calibrated import tsc_hz
    from labctl.collect.counters.host_cpus import measured_tsc_hz
    from labctl.domain.pinning.pin_plan import default_vcpus, pin_plan
    from labctl.host.topology import read_topology
    from labctl.run.commands import measure_exits

    cpuinfo = Path("/proc/cpuinfo").read_text()
    which = measure_exits.vendor(cpuinfo)
    topology = read_topology()
    cpu = min(pin_plan(topology, default_vcpus(topology), 0).vcpu_cpus)
    rate = tsc_hz(cpuinfo) or measured_tsc_hz(cpu)
    alone, *found = measure_exits.measure(measure_exits.kinds_of(which), cpu, tell)
    return [
        exit_price.price(
            item.kind.name,
            item.kind.what,
            item.kind.vmx if which == "vmx" else item.kind.svm,
            to_qemu=item.kind.to_qemu,
            cycles=item.cycles,
            alone=alone.cycles,
            exits_per_op=item.exits_per_op,
            tsc_hz=rate,
            problem=item.problem or alone.problem,
        )
        for item in found
    ]
