"""Run `labctl selftest`: check that all of labctl works on this host, and keep its tools'
output.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import ExitCode
from labctl.cli.common import console, print_json, state_paths

if TYPE_CHECKING:
    from rich.console import Console

    from labctl.host.accelerator import Requested
    from labctl.run.commands.selftest import SelfTest
    from labctl.run.commands.selftest_result import SelftestResult

SCHEMA = 1


@click.command("selftest")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The bundle, a tar.xz (default: labctl-selftest-… in the present folder).",
)
@click.option("--tuning", "tunings", multiple=True, help="Only these tunings (and the roles).")
@click.option("--accel", type=click.Choice(["auto", "kvm", "tcg"]), default="auto")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/selftest.md).")
@click.option("--quiet", is_flag=True, help="No progress; only the result.")
@click.pass_context
def command(
    context: click.Context,
    out: Path | None,
    tunings: tuple[str, ...],
    accel: Requested,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run all of labctl once on this host, and bundle what its tools printed.

    Boots a guest, restores it with every tuning that it can be restored with, and counts with
    every collector. Tunings of the host are put back after each. The bundle has nothing in it that
    identifies the host.

    Exit code: 0 when KVM, a PMU and everything else worked; 1 when something did not that this
    host can have; 3 when the host has no KVM or no PMU: their part is not shown then.
    """
    from labctl.base.events import silent
    from labctl.cli.progress import ProgressView
    from labctl.run.commands.selftest import selftest
    from labctl.store.jsonfile import check_folder

    if out is not None:
        check_folder(out)
    places = state_paths(context)
    if quiet:
        result = selftest(places, out, silent, accel=accel, only=tunings)
    else:
        with ProgressView(console(stderr=True)) as view:
            result = selftest(places, out, view.listen, accel=accel, only=tunings)
    if as_json:
        print_json({"schema": SCHEMA, **result.to_json()})
    else:
        _print(console(), result)
    return _exit_code(result.outcome)


def _exit_code(outcome: SelftestResult) -> ExitCode:
    if outcome.failed:
        return ExitCode.FOUND
    return ExitCode.DONE if outcome.verifies_all else ExitCode.HOST


def _print(console: Console, result: SelfTest) -> None:
    from rich.text import Text

    from labctl.base.verified import kvm_caveat, pmu_caveat
    from labctl.base.wording import printable
    from labctl.report.parts import bare_table
    from labctl.run.commands.selftest_result import FAILED, NOT_HERE, RAN

    outcome = result.outcome
    console.print(Text(printable(outcome.label), style="bold"))
    table = bare_table("", "shown", "what", "why")
    for claim in outcome.claims:
        table.add_row("yes" if claim.shown else "NO", claim.what, Text(printable(claim.why)))
    console.print(table)
    counts = {
        state: sum(tuning.state == state for tuning in outcome.tunings)
        for state in (RAN, FAILED, NOT_HERE)
    }
    shown = ", ".join(f"{count} {state}" for state, count in counts.items())
    console.print(Text(f"\nRestorable tunings: {shown}."))
    for tuning in outcome.tunings:
        if tuning.state != RAN:
            console.print(Text(printable(f"  {tuning.name} {tuning.state}: {tuning.why}")))
    if outcome.failure:
        console.print(Text(printable(f"The trials ended early: {outcome.failure}"), style="bold"))
    for caveat in filter(None, (kvm_caveat(), pmu_caveat())):
        console.print(Text(f"\n{caveat}"))
    console.print(
        Text(printable(f"\nWrote {result.bundle}: {result.files} files, {result.seconds:.0f} s."))
    )
