"""`labctl report`: what a run found, as table, page, or for other programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from labctl.cli.common import (
    console,
    html_option,
    results_option,
    runs_folder,
)

if TYPE_CHECKING:
    from labctl.analysis.model import Judgement
    from labctl.store.run_folder import LoadedRun, RunFolder

_FORMATS = ("json", "csv", "parquet", "openmetrics", "prometheus")


@click.command("report")
@click.argument("run_name", metavar="RUN")
@click.option("--json", is_flag=True, help="Print JSON (docs/report-schema.md).")
@click.option("--csv", is_flag=True, help="Print every sample as CSV.")
@click.option("--parquet", is_flag=True, help="Print every sample as a Parquet file.")
@click.option("--openmetrics", is_flag=True, help="Print levels, effects and verdicts as metrics.")
@click.option("--prometheus", is_flag=True, help="The same for node_exporter's textfile collector.")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one of these to FILE instead: whole, or not at all.",
)
@html_option
@results_option
def command(
    run_name: str,
    out: Path | None,
    html_file: Path | None,
    results: Path | None,
    **formats: bool,
) -> None:
    """Show what RUN found; RUN is a run's name or its folder."""
    chosen = [name for name in _FORMATS if formats[name]]
    if len(chosen) > 1:
        raise click.UsageError(f"--{chosen[0]} or --{chosen[1]}, not both")
    if out is not None and not chosen:
        choices = ", ".join(f"--{name}" for name in _FORMATS)
        raise click.UsageError(f"--out needs one of {choices}; a page has '--html FILE'")
    if chosen == ["parquet"] and out is None and sys.stdout.isatty():
        raise click.UsageError("a Parquet file is nothing for a terminal: give '--out FILE'")

    from labctl.analysis.judge import judge
    from labctl.report.page.files import PAGE, check_folder, write_page
    from labctl.report.terminal.tables import print_report
    from labctl.store.jsonfile import output_file
    from labctl.store.run_folder import RunFolder

    folder = RunFolder.find(runs_folder(results), run_name)
    for target in filter(None, (html_file, out)):
        check_folder(target)
    run = folder.load()
    if html_file is not None:
        write_page(run, judge(run), folder.path, html_file)
    if not chosen and html_file is None:
        page = folder.path / PAGE
        print_report(console(), run, judge(run), html=page if page.is_file() else None)
    elif chosen and out is None:
        _export(run, chosen[0], sys.stdout.buffer)
        return
    elif chosen and out is not None:
        with output_file(out) as file:
            _export(run, chosen[0], file)
    for written in filter(None, (html_file, out)):
        click.echo(f"Wrote {written}")


def _export(run: LoadedRun, name: str, file: IO[bytes]) -> None:
    """Formats of samples need no judgement, nor what their neighbours import."""
    if name == "csv":
        from labctl.report.export.samples_csv import samples_csv

        for rows in samples_csv(run):
            file.write(rows.encode())
    elif name == "parquet":
        from labctl.report.export.samples_parquet import write_samples

        write_samples(run, file)
    else:
        for piece in _judged(run, name):
            file.write(piece)


def _judged(run: LoadedRun, name: str) -> Iterable[bytes]:
    from labctl.analysis.judge import judge

    judgement = judge(run)
    if name == "json":
        from labctl.report.export.json_report import report_pieces

        return report_pieces(run, judgement)
    from labctl.report.export.openmetrics import openmetrics, prometheus

    return [(openmetrics if name == "openmetrics" else prometheus)(run, judgement)]


def show_finished(folder: RunFolder, *, as_json: bool) -> Judgement:
    """Write a run's page into its folder, then print its table or JSON; returns what it says."""
    from labctl.analysis.judge import judge
    from labctl.report.export.json_report import report_pieces
    from labctl.report.page.files import write_page
    from labctl.report.terminal.tables import print_report

    run = folder.load()
    judgement = judge(run)
    page = write_page(run, judgement, folder.path)
    if as_json:
        for piece in report_pieces(run, judgement):
            click.echo(piece, nl=False)
    else:
        print_report(console(), run, judgement, html=page)
    return judgement
