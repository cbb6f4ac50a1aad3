"""`labctl report`: what a run found, as table, JSON or page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.cli.common import console, print_json

if TYPE_CHECKING:
    from labctl.analysis.model import Judgement
    from labctl.store.run_folder import RunFolder


@click.command("report")
@click.argument("run_name", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/report-schema.md).")
@click.option("--csv", "as_csv", is_flag=True, help="Print every sample as CSV.")
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one self-contained page.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of runs (default: results/ of the lab folder).",
)
def command(
    run_name: str, as_json: bool, as_csv: bool, html_file: Path | None, results: Path | None
) -> None:
    """Show what RUN found; RUN is a run's name or its folder."""
    from labctl.analysis.judge import judge
    from labctl.base.places import results_folder
    from labctl.report.files import PAGE, write_page
    from labctl.report.json_report import report_json
    from labctl.report.samples_csv import samples_csv
    from labctl.report.tables import print_report
    from labctl.store.run_folder import RunFolder

    if as_json and as_csv:
        raise click.UsageError("--json or --csv, not both")
    folder = RunFolder.find(results or results_folder(), run_name)
    run = folder.load()
    if as_csv and html_file is None:
        click.echo(samples_csv(run), nl=False)
        return
    judgement = judge(run)
    if html_file is not None:
        write_page(run, judgement, folder.path, html_file)
    if as_json:
        print_json(report_json(run, judgement))
    elif as_csv:
        click.echo(samples_csv(run), nl=False)
    elif html_file is not None:
        click.echo(f"Wrote {html_file}")
    else:
        page = folder.path / PAGE
        print_report(console(), run, judgement, html=page if page.is_file() else None)


def show_finished(folder: RunFolder, *, as_json: bool) -> Judgement:
    """Write a run's page into its folder, then print its table or JSON; returns what it says."""
    from labctl.analysis.judge import judge
    from labctl.report.files import write_page
    from labctl.report.json_report import report_json
    from labctl.report.tables import print_report

    run = folder.load()
    judgement = judge(run)
    page = write_page(run, judgement, folder.path)
    if as_json:
        print_json(report_json(run, judgement))
    else:
        print_report(console(), run, judgement, html=page)
    return judgement
