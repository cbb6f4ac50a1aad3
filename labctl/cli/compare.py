"""Run `labctl compare`: compare two runs, from two hosts, kernels or days."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.base.errors import UsageError
from labctl.cli.common import console, print_json, results_option, runs_folder


@click.command("compare")
@click.argument("run_a", metavar="RUN_A")
@click.argument("run_b", metavar="RUN_B")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/compare.md).")
@click.option("--force", is_flag=True, help="Compare what can't be compared, and label it so.")
@results_option
def command(run_a: str, run_b: str, as_json: bool, force: bool, results: Path | None) -> None:
    """Compare RUN_B with RUN_A: facts that differ first, then values and effects."""
    from labctl.analysis.run_compare.two_runs import compare_runs
    from labctl.report.terminal.compare import comparison_json, comparison_table
    from labctl.store.run_folder import RunFolder

    folder = runs_folder(results)
    a, b = (RunFolder.find(folder, name) for name in (run_a, run_b))
    if a.path == b.path:
        raise UsageError(
            f"{run_a} and {run_b} are one run, and a run can't be compared with itself",
            hint=f"'labctl report {run_a}' shows it; 'labctl run list' has the others.",
        )
    found = compare_runs(a.load(), b.load())
    if found.refusals and not force:
        raise UsageError(
            f"{found.a} and {found.b} can't be compared: {'; '.join(found.refusals)}",
            hint="'--force' compares them all the same, and labels it.",
        )
    if as_json:
        print_json(comparison_json(found))
    else:
        console().print(comparison_table(found))
