"""Run `labctl gate`: check whether a run keeps a policy's rules."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import click

from labctl.cli.parts.common import console, print_json, results_option, runs_folder

_KEPT, _BROKEN, _OPEN = 0, 1, 2


def _host(run: Path) -> str:
    """Return the host that a run was measured on: that of a fetched HOST/run.tar.xz, else this."""
    from labctl.fleet.fleet_folder import host_of
    from labctl.fleet.sweep_hosts import RUN

    return host_of(run) if run.name == RUN else platform.node()


@click.command("gate")
@click.argument("run_name", metavar="RUN")
@click.option(
    "--policy",
    "policy_file",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the rules (docs/gate.md).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/gate.md).")
@click.option("--markdown", is_flag=True, help="Print a table for a merge request.")
@click.option(
    "--junit",
    "junit_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write JUnit XML.",
)
@results_option
def command(
    run_name: str,
    policy_file: Path,
    as_json: bool,
    markdown: bool,
    junit_file: Path | None,
    results: Path | None,
) -> None:
    """Check RUN against the rules of a policy.

    Exit code: 0 all rules are kept, 1 a rule is violated, 2 not enough data to decide (or an
    invalid policy).
    """
    from labctl.analysis.gate.policy import load_policy
    from labctl.analysis.gate.rules import gate
    from labctl.analysis.judge import judge
    from labctl.report.terminal.gate import gate_json, gate_junit, gate_markdown, gate_table
    from labctl.store.jsonfile import check_folder, write_output
    from labctl.store.run_places import find_run, fresh_runs

    if as_json and markdown:
        raise click.UsageError("--json and --markdown exclude each other")
    if junit_file is not None:
        check_folder(junit_file)
    policy = load_policy(policy_file)
    folder = runs_folder(results)
    found = find_run(folder, run_name)
    run = found.load_planned()
    others = {
        name: find_run(folder, name).load_planned()
        for name in sorted({rule.like for rule in policy.rules if rule.like is not None})
    }
    result = gate(run, policy, others, judge(run, fresh_runs(found, folder)).decision)
    if junit_file is not None:
        write_output(junit_file, gate_junit(result, run.run, _host(found.path)))
    if as_json:
        print_json(gate_json(result))
    elif markdown:
        click.echo(gate_markdown(result), nl=False)
    else:
        console().print(gate_table(result))
    sys.exit({True: _KEPT, False: _BROKEN, None: _OPEN}[result.passed])
