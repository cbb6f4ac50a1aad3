"""`labctl run export`: a run to be passed on."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.cli.being_measured import refuse_if_running
from labctl.cli.common import print_json, results_option, runs_folder, state_paths


@click.command("export")
@click.argument("run_name", metavar="RUN")
@click.option(
    "--redact",
    "redacting",
    is_flag=True,
    help="Take out names, users, serials, addresses and paths.",
)
@click.option(
    "--out",
    "target",
    metavar="FILE.tar.gz|FOLDER",
    type=click.Path(path_type=Path),
    help="Where to write it (default: RUN.tar.gz or redacted.tar.gz in the present folder).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@results_option
@click.pass_context
def command(
    context: click.Context,
    run_name: str,
    redacting: bool,
    target: Path | None,
    as_json: bool,
    results: Path | None,
) -> None:
    """Copy RUN to pass it on: a packed file or a folder, which labctl reads as the run."""
    from labctl.base.wording import counted, printable
    from labctl.run.commands.export import export
    from labctl.store.run_folder import RunFolder

    folder = RunFolder.find(runs_folder(results), run_name)
    refuse_if_running(folder)
    target = target or Path("redacted.tar.gz" if redacting else f"{folder.name}.tar.gz")
    done = export(folder, target, state_paths(context), redacting=redacting)
    if as_json:
        print_json(
            {
                "schema": 1,
                "run": done.name,
                "path": str(target),
                "redacted": redacting,
                "files": done.files,
                "taken_out": done.taken_out,
                "left_out": done.left_out,
                "kept": done.kept,
            }
        )
        return
    click.echo(printable(f"{counted(done.files, 'file')} of '{done.name}' in {target}"))
    if redacting:
        found = ", ".join(f"{kind} {count}" for kind, count in done.taken_out.items())
        click.echo(f"Taken out, by kind and how often: {found or 'nothing was found'}.")
    for name, why in done.left_out.items():
        click.echo(printable(f"Left out: {name}: {why}."))
    for text, kind in done.kept.items():
        click.echo(
            printable(
                f"Not taken out, as it is also a word of the run: '{text}' ({kind}). Look for it."
            ),
            err=True,
        )
