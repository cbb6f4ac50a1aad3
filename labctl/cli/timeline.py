"""Run `labctl timeline`: show host and guest scheduler of one trial, side by side."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import BrokenError, FileError, HostError
from labctl.cli.parts.common import console, named_run, print_json, results_option

if TYPE_CHECKING:
    from labctl.store.run_folder import RunFolder
    from labctl.store.trial import TrialFolder

_file = click.Path(path_type=Path, dir_okay=False)


@click.command("timeline")
@click.argument("run_name", metavar="RUN")
@click.argument("trial_name", metavar="[TRIAL]", required=False)
@click.option("-o", "--output", type=_file, help="Write the page to FILE.", metavar="FILE")
@click.option(
    "--perfetto", type=_file, metavar="FILE", help="Write FILE in the format of ui.perfetto.dev."
)
@click.option(
    "--trace-dat",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write FOLDER/host.dat and FOLDER/guest.dat for trace-cmd and KernelShark.",
)
@click.option("--json", "as_json", is_flag=True, help="Print figures, late wake-ups and suspects.")
@results_option
def command(
    run_name: str,
    trial_name: str | None,
    output: Path | None,
    perfetto: Path | None,
    trace_dat: Path | None,
    as_json: bool,
    results: Path | None,
) -> None:
    """Show the time line of a traced trial, on its host and in its guest.

    RUN is a run's name, folder or archive, TRIAL the number of a trial (12, or 12.2 for its second
    attempt); without TRIAL, the trials that have a trace. The page is written to the run's folder
    (for an archive, to the current folder), unless another format is given.
    """

    found = named_run(results, run_name)
    if trial_name is None and any((output, perfetto, trace_dat)):
        raise click.UsageError(
            "missing argument TRIAL. Run without other options to list the traced trials."
        )
    with found.unpacked() as folder:
        if trial_name is None:
            where = shlex.join((run_name, *(("--results", str(results)) if results else ())))
            _list(folder, found.path.parent, where, as_json=as_json)
            return

        from labctl.report.timeline.traced import find
        from labctl.store.jsonfile import check_folder

        trial = find(folder, trial_name)
        for target in filter(None, (output, perfetto, trace_dat)):
            check_folder(target)
        if found.archive is not None and not any((output, perfetto, trace_dat, as_json)):
            output = Path(f"timeline-{folder.name}-{trial.path.name}.html")
        _show(folder, trial, output, perfetto, trace_dat, as_json=as_json)


def _show(
    folder: RunFolder,
    trial: TrialFolder,
    output: Path | None,
    perfetto: Path | None,
    trace_dat: Path | None,
    *,
    as_json: bool,
) -> None:
    from labctl.base.wording import printable
    from labctl.report.timeline.timeline_words import answer
    from labctl.report.timeline.traced import about
    from labctl.store.jsonfile import output_file, write_bytes, write_output
    from labctl.trace.timeline.nested import read_timeline

    what = about(folder, trial)
    try:
        timeline = read_timeline(trial)
    except BrokenError as error:
        hint = error.hint or "Copy the trial's whole folder, or choose another trial."
        raise FileError(error.message, hint=hint) from error
    if as_json:
        from labctl.report.timeline.exports import timeline_json

        print_json(timeline_json(timeline, what))
    else:
        for text in (*answer(timeline), *timeline.problems):
            click.echo(printable(text))
    own = folder.path / f"timeline-{trial.path.name}.html"
    if output is not None or not any((perfetto, trace_dat, as_json)):
        from labctl.report.timeline.timeline_page import page

        try:
            written = page(timeline, what).encode()
            if output is None:
                write_bytes(own, written, below=folder.path)
            else:
                write_output(output, written)
        except HostError as error:
            hint = error.hint or "'-o FILE' writes the page elsewhere; '--json' writes no file."
            raise HostError(error.message, hint=hint) from error
        click.echo(f"Wrote {output or own}", err=as_json)
    if perfetto is not None:
        from labctl.report.timeline.perfetto import write_perfetto

        with output_file(perfetto) as file:
            write_perfetto(timeline, file)
        click.echo(f"Wrote {perfetto}", err=as_json)
    if trace_dat is not None:
        from labctl.report.timeline.exports import write_trace_dat

        for text in write_trace_dat(trial, trace_dat):
            click.echo(printable(text), err=as_json)


def _list(folder: RunFolder, beside: Path, where: str, *, as_json: bool) -> None:
    """List the traced trials, the one with the largest latency first. `beside`: where the run lies;
    `where`: the run, as asked for.
    """
    from rich.text import Text

    from labctl.analysis.answer.words import listed
    from labctl.base.wording import place_in_words, printable
    from labctl.report.parts import bare_table
    from labctl.report.timeline.traced import traced, why_untraced, with_traces

    run = folder.load()
    found = traced(run)
    if as_json:
        trials = [one.to_json() for one in found]
        print_json({"schema": 1, "run": folder.name, "trials": trials})
        return
    if not found:
        click.echo(printable(why_untraced(run)))
        others = [name for name in with_traces(beside) if name != folder.name]
        if others:
            click.echo(f"Other runs with traces: {listed(others)}.")
        return
    titles = ("trial", "arm", "workload", "block", "status", "worst latency")
    table = bare_table("", *titles)
    for one in found:
        record = one.trial.record
        tuning, workload, condition = (
            printable(record.cell.get(name, "?")) for name in ("tuning", "workload", "condition")
        )
        table.add_row(
            one.name,
            Text(tuning, overflow="fold"),
            Text(place_in_words(workload, condition), overflow="fold"),
            str(record.block),
            str(record.status),
            one.worst,
        )
    shown = console(listing=True)
    shown.print(table)
    first = next((one for one in found if one.has_both_sides), found[0])
    look = f"\nFor example: labctl timeline {where} {first.name}"
    shown.print(look, soft_wrap=True, markup=False)
