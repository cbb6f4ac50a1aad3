"""Run `labctl report`: show a run's results as table, page, or for other programs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from labctl.cli.parts.common import (
    Sectioned,
    console,
    html_option,
    need_pyarrow,
    results_option,
    runs_folder,
)
from labctl.report.export.formats import FORMATS, plugin_format, plugin_names

if TYPE_CHECKING:
    from rich.console import Console

    from labctl.analysis.model import Judgement
    from labctl.store.run_folder import LoadedRun, RunFolder


def _format_options(command: Callable[..., None]) -> Callable[..., None]:
    for one in reversed(FORMATS):
        command = click.option(one.option, one.name, is_flag=True, help=one.help)(command)
    return command


_PAGE = "html"
"""Value of --format for the page, which is no export: it needs the run's files beside its
records."""


class _FormatName(click.Choice):  # type: ignore[type-arg] # Click 8.1 takes no type there.
    """Accept the formats of plug-ins beside labctl's own, which --help lists."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> str:
        if value not in self.choices and value in plugin_names():
            return str(value)
        return str(super().convert(value, parameter, context))

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        added = [name for name in plugin_names() if name.startswith(incomplete)]
        own = super().shell_complete(context, parameter, incomplete)
        return [*own, *map(CompletionItem, added)]


_SECTIONS = {
    "Content": "--full --metric --workload --results --help",
    "Formats": "--format --out --pictures --factors",
    "Older names of --format": " ".join((*(one.option for one in FORMATS), "--html")),
}
"""Heading of --help to its options."""


@click.command("report", cls=Sectioned, sections=_SECTIONS)
@click.argument("run_name", metavar="RUN")
@click.option(
    "--format",
    "format_name",
    type=_FormatName([*(one.name for one in FORMATS), _PAGE]),
    help="Print in this format; html needs --out.",
)
@_format_options
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write that format to FILE.",
)
@html_option
@click.option(
    "--pictures",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write each picture of the page as SVG and PNG.",
)
@click.option("--factors", "pictured", metavar="A,B", help="The two factors to draw together.")
@click.option("--metric", "metrics", multiple=True, help="Show only this metric, for each arm.")
@click.option(
    "--workload", "workloads", multiple=True, help="Show only the tables of this workload."
)
@click.option("--full", is_flag=True, help="Show all tables, not only the answer.")
@results_option
def command(
    run_name: str,
    format_name: str | None,
    out: Path | None,
    html_file: Path | None,
    pictures: Path | None,
    metrics: tuple[str, ...],
    workloads: tuple[str, ...],
    pictured: str | None,
    full: bool,
    results: Path | None,
    **formats: bool,
) -> None:
    """Show the results of RUN: a run's name, number, folder or archive, or 'latest'."""
    if format_name == _PAGE:
        if out is None or html_file is not None:
            raise click.UsageError("--format html needs '--out FILE', not '--html'")
        html_file, out = out, None
    chosen = [one for one in FORMATS if formats[one.name] or one.name == format_name]
    if format_name not in (None, _PAGE) and not chosen:
        chosen.append(plugin_format(str(format_name)))
    given = [*chosen, *([_PAGE] if format_name == _PAGE else [])]
    if len(given) > 1:
        raise click.UsageError("expected one --format")
    if out is not None and not chosen:
        raise click.UsageError("--out needs a format: --format json, csv, …, or html for the page")
    if chosen and not chosen[0].is_text and out is None and sys.stdout.isatty():
        raise click.UsageError(
            f"--format {chosen[0].name} cannot be shown in a terminal: add '--out FILE'"
        )

    if metrics and (chosen or html_file is not None or pictures is not None):
        raise click.UsageError("--metric prints one table: leave the other formats out")
    if pictured is not None and html_file is None and pictures is None:
        raise click.UsageError("--factors needs pictures: add '--html FILE'")
    if workloads and (chosen or html_file is not None or pictures is not None):
        raise click.UsageError("--workload applies to the terminal's tables: leave the formats out")
    if chosen and chosen[0].needs_pyarrow:
        need_pyarrow(f"--format {chosen[0].name}")
    from labctl.analysis.judge import judge
    from labctl.store.jsonfile import check_folder, output_file
    from labctl.store.run_folder import PAGE
    from labctl.store.run_places import find_run, fresh_runs

    place = runs_folder(results)
    folder = find_run(place, run_name)
    for target in filter(None, (html_file, out)):
        check_folder(target)
    run = folder.load() if chosen else folder.load_planned()
    fresh = fresh_runs(folder, place)
    if not chosen and html_file is None and pictures is None:
        judgement = judge(run, fresh)
        if metrics:
            from labctl.report.terminal.metric_table import print_metrics

            print_metrics(console(), run, judgement, metrics, workloads)
        else:
            from labctl.analysis.answer.view import of_workloads

            page = folder.path / PAGE
            there = page if page.is_file() else None
            print_answer(console(), run, of_workloads(run, judgement, workloads), there, full=full)
        return
    if html_file is not None:
        from labctl.report.page.report_page import write_page

        with folder.unpacked("xml") as unpacked:
            shown = _picturing(judge(run, fresh), pictured)
            write_page(run, shown, unpacked.path, html_file)
    if pictures is not None:
        _write_pictures(run, _picturing(judge(run, fresh), pictured), pictures)
    if chosen and out is None:
        for piece in chosen[0].pieces(run, fresh):
            sys.stdout.buffer.write(piece)
        return
    if chosen and out is not None:
        with output_file(out) as file:
            file.writelines(chosen[0].pieces(run, fresh))
    for written in filter(None, (html_file, out)):
        click.echo(f"Wrote {written}")


def _picturing(judgement: Judgement, pair: str | None) -> Judgement:
    """Return the judgement whose pictures show the two factors of "A,B". Raises UsageError where
    the run has none of that name."""
    if pair is None:
        return judgement
    from labctl.analysis.factors import picturing

    return picturing(judgement, tuple(pair.split(",")))


def _write_pictures(run: LoadedRun, judgement: Judgement, folder: Path) -> None:
    from labctl.report.page.picture_files import write_pictures

    written, why_no_png = write_pictures(run, judgement, folder)
    for file in written:
        click.echo(f"Wrote {file}", err=True)
    if not written:
        click.echo("Nothing was compared in this run, so there are no pictures.", err=True)
    if why_no_png:
        click.echo(f"labctl: SVG only, no PNG: {why_no_png}", err=True)
        click.echo("        'labctl setup' installs it.", err=True)


def print_answer(
    shown: Console, run: LoadedRun, judgement: Judgement, page: Path | None, *, full: bool = False
) -> None:
    """Print what a run found. `page`: where its page lies; `full`: with all tables."""
    if full:
        from labctl.report.terminal.tables import print_report as show
    else:
        from labctl.report.terminal.short import print_short as show

    show(shown, run, judgement, html=page)


def show_finished(folder: RunFolder, *, as_json: bool) -> Judgement:
    """Write a run's page into its folder, then print its answer or JSON; returns what it says."""
    from labctl.analysis.answer.json import write_answer
    from labctl.analysis.judge import judge
    from labctl.report.export.json_report import report_pieces
    from labctl.report.page.report_page import write_page
    from labctl.store.run_places import fresh_runs

    run = folder.load()
    judgement = judge(run, fresh_runs(folder))
    page = write_page(run, judgement, folder.path)
    write_answer(folder, judgement.decision)
    if as_json:
        for piece in report_pieces(run, judgement):
            click.echo(piece, nl=False)
    else:
        print_answer(console(), run, judgement, page)
    return judgement
