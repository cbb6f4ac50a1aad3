"""Run `labctl compare` and `labctl history`: compare two runs, or follow a metric over runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import LabctlError, UsageError
from labctl.cli.parts.common import console, html_option, print_json, results_option, runs_folder

if TYPE_CHECKING:
    from labctl.analysis.compare.two_runs import Prices
    from labctl.store.run_folder import LoadedRun


# Run `labctl compare`: compare two runs, from two hosts, kernels or days.


@click.command("compare")
@click.argument("run_a", metavar="RUN_A")
@click.argument("run_b", metavar="RUN_B")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/compare.md).")
@click.option(
    "--force", is_flag=True, help="Compare runs that are not comparable, and label the result."
)
@click.option(
    "--price",
    "prices",
    metavar="A=PRICE",
    multiple=True,
    help="Price of an hour on RUN_A's host, likewise for B. With both: performance per price.",
)
@results_option
def command(
    run_a: str,
    run_b: str,
    as_json: bool,
    force: bool,
    prices: tuple[str, ...],
    results: Path | None,
) -> None:
    """Compare RUN_B with RUN_A: first the facts that differ, then values and effects."""
    from labctl.analysis.compare.two_runs import compare_runs, per_price
    from labctl.report.terminal.compare import comparison_json, comparison_table
    from labctl.store.run_places import find_run

    paid = _prices(prices)
    folder = runs_folder(results)
    a, b = (find_run(folder, name) for name in (run_a, run_b))
    if a.path == b.path:
        raise UsageError(
            f"{run_a} and {run_b} are the same run",
            hint=f"'labctl report {run_a}' shows it; 'labctl run list' lists the others.",
        )
    found = compare_runs(a.load_planned(), b.load_planned())
    if found.refusals and not force:
        raise UsageError(
            f"{found.a} and {found.b} can't be compared: {'; '.join(found.refusals)}",
            hint="'--force' compares them anyway and labels the result.",
        )
    priced = tuple(per_price(found.levels, paid)) if paid is not None else ()
    if as_json:
        print_json(comparison_json(found, paid, priced))
    else:
        console().print(comparison_table(found, paid, priced))


def _prices(given: Sequence[str]) -> Prices | None:
    """Return the prices of both hosts; None where none was given. Raises UsageError."""
    from labctl.analysis.compare.two_runs import Prices

    if not given:
        return None
    found: dict[str, float] = {}
    for one in given:
        run, _, text = one.partition("=")
        try:
            price = float(text)
        except ValueError:
            price = 0.0
        if run not in ("A", "B") or run in found or not (isfinite(price) and price > 0):
            raise UsageError(
                f"--price {one}: expected A=PRICE or B=PRICE",
                hint="Give the price of an hour for both: --price A=0.34 --price B=0.306",
            )
        found[run] = price
    if len(found) < 2:
        (lacking,) = {"A", "B"} - set(found)
        raise UsageError(
            f"the price of {lacking} is missing; performance per price needs both",
            hint=f"Give '--price {lacking}=PRICE' as well, in the same currency.",
        )
    return Prices(a=found["A"], b=found["B"])


# Run `labctl history`: follow a metric over the runs of a host, and find where it changed.


@click.command("history")
@click.option(
    "--metric",
    metavar="METRIC",
    required=True,
    help="Name as in reports: latency_p95, or host_cpu{thread=vcpu} for one label.",
)
@click.option("--tuning", metavar="NAME", help="Only this tuning.")
@click.option("--workload", metavar="NAME", help="Only this workload.")
@click.option("--condition", metavar="NAME", help="Only this condition.")
@click.option("--study", metavar="NAME", help="Only runs of this study.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/history.md).")
@html_option
@results_option
def history(
    metric: str,
    tuning: str | None,
    workload: str | None,
    condition: str | None,
    study: str | None,
    as_json: bool,
    html_file: Path | None,
    results: Path | None,
) -> None:
    """Plot a metric over all runs, and mark changes."""
    from dataclasses import replace

    from labctl.analysis.compare.history import Choice, history
    from labctl.report.terminal.history import history_json, history_table, nothing
    from labctl.store.jsonfile import check_folder

    if html_file is not None:
        check_folder(html_file)
    unread: list[str] = []
    choice = Choice(
        metric=metric, tuning=tuning, workload=workload, condition=condition, study=study
    )
    found = history(_readable(runs_folder(results), unread), choice)
    found = replace(found, left_out=(*found.left_out, *unread))
    if as_json:
        print_json(history_json(found))
    if not found.series:
        if as_json and html_file is None:
            return
        raise UsageError(
            nothing(found),
            hint="'labctl run list' shows the runs, 'labctl report RUN' their metrics.",
        )
    if html_file is not None:
        from labctl.report.page.history_page import history_page
        from labctl.store.jsonfile import write_output

        write_output(html_file, history_page(found).encode())
        click.echo(f"Wrote {html_file}", err=as_json)
    elif not as_json:
        console().print(history_table(found))


def _readable(results: Path, unread: list[str]) -> Iterator[LoadedRun]:
    """Yield every run that can be read, one at a time; why the others can't."""
    from labctl.store.run_places import all_runs

    for folder in all_runs(results):
        try:
            yield folder.load()
        except LabctlError as error:
            unread.append(f"{folder.name}: {error.message}.")
