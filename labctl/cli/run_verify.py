"""Run `labctl run verify`: hold a run's files against their digests."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from labctl.base.errors import ExitCode
from labctl.cli.common import named_run, print_json, print_table, results_option


@click.command("verify")
@click.argument("run_name", metavar="RUN")
@click.option(
    "--digest", metavar="SHA256", help="What the whole run must have: of its progress.json."
)
@click.option("--study-digest", metavar="SHA256", help="What its study must have.")
@click.option("--seed", type=click.IntRange(min=0), help="What it must have been planned with.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@results_option
def command(
    run_name: str,
    digest: str | None,
    study_digest: str | None,
    seed: int | None,
    as_json: bool,
    results: Path | None,
) -> None:
    """Check every file of RUN's trials against the digests that were taken when each ended.

    Exits with 1 when something differs.
    """
    from labctl.base.wording import counted, printable
    from labctl.run.commands.verify import check_asked, verify
    from labctl.store.content_digest import check_digest

    folder = named_run(results, run_name)
    if digest is not None:
        check_digest(folder.path, folder.archive, digest)
    if study_digest is not None or seed is not None:
        check_asked(folder, study_digest, seed)
    found = verify(folder)
    if as_json:
        print_json({"schema": 1, "run": folder.name, "path": str(folder.path), **found.to_json()})
    else:
        rows = [[one.trial, one.file, one.what] for one in found.differences]
        if rows:
            print_table(["trial", "file", "what differs"], rows)
        click.echo(f"{counted(found.trials, 'trial')} of {folder.name} checked.")
        if found.without_digests:
            click.echo(
                f"{counted(found.without_digests, 'trial')} without digests: an older labctl ran "
                "them, so changes of their files can't be detected."
            )
        for text in found.notes:
            click.echo(printable(text))
    if found.differences:
        sys.exit(ExitCode.FOUND)
