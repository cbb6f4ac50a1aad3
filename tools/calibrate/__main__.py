"""The command: which groups of simulations, how many runs, from which seed."""

from __future__ import annotations

import json
import os
import shlex
import sys
from concurrent.futures import ProcessPoolExecutor

import click

from tools.calibrate.table import Simulations
from tools.calibrate.tables import GROUPS

RUNS, SEED = 2000, 1


@click.command()
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice(list(GROUPS)),
    help="Only these groups of simulations (default: all).",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=RUNS,
    show_default=True,
    help="Simulated runs for most numbers.",
)
@click.option("--seed", type=click.IntRange(min=0), default=SEED, show_default=True)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=len(os.sched_getaffinity(0)),
    show_default="one for each CPU",
    help="Processes that share the work. The numbers don't depend on it.",
)
@click.option("--json", "as_json", is_flag=True, help="Counts as JSON instead of tables.")
def main(names: tuple[str, ...], runs: int, seed: int, jobs: int, as_json: bool) -> None:
    """Print how often labctl's judgement is right, as Markdown.

    Ends with 1 when a promise of docs/calibration.md isn't kept.
    """
    command = shlex.join(["python", "-m", "tools.calibrate", *sys.argv[1:]])

    def tell(text: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{text}", nl=False, err=True)

    tables = []
    with ProcessPoolExecutor(jobs) as executor:
        simulations = Simulations(runs=runs, seed=seed, executor=executor, tell=tell)
        for name in names or GROUPS:
            tables.append(GROUPS[name](simulations))
            if not as_json:
                tell("")
                click.echo(f"{tables[-1].markdown}\n")
    if as_json:
        data = {"schema": 1, "command": command, "runs": runs, "seed": seed}
        click.echo(json.dumps({**data, "tables": [table.to_json() for table in tables]}, indent=1))
    else:
        click.echo(f"Printed by `{command}`.")
    broken = [text for table in tables for text in table.broken]
    for text in broken:
        click.echo(f"Not as promised: {text}.", err=True)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
