"""The command: which groups of simulations, how many runs, from which seed."""

from __future__ import annotations

import json
import shlex
import sys

import click

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
    help="Simulated runs for each number.",
)
@click.option("--seed", type=click.IntRange(min=0), default=SEED, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Counts as JSON instead of tables.")
def main(names: tuple[str, ...], runs: int, seed: int, as_json: bool) -> None:
    """Print how often labctl's judgement is right, as Markdown.

    Ends with 1 when a promise of docs/calibration.md isn't kept.
    """
    command = shlex.join(["python", "-m", "tools.calibrate", *sys.argv[1:]])

    def tell(text: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{text}", nl=False, err=True)

    tables = []
    for name in names or GROUPS:
        table = GROUPS[name](runs, seed, tell)
        tables.append(table)
        if not as_json:
            tell("")
            click.echo(f"{table.markdown}\n")
    if as_json:
        data = {"schema": 1, "command": command, "runs": runs, "seed": seed}
        click.echo(json.dumps({**data, "tables": [table.to_json() for table in tables]}, indent=1))
    else:
        click.echo(f"Printed by `{command}`: {runs} runs for each number, seed {seed}.")
    broken = [text for table in tables for text in table.broken]
    for text in broken:
        click.echo(f"Not as promised: {text}.", err=True)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
