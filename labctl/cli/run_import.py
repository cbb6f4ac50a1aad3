"""Run `labctl run import`: take in a run's archive, or trials that labctl did not measure."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import click

from labctl.base.errors import UsageError
from labctl.cli.common import print_json, results_option, runs_folder
from labctl.cli.help import Sectioned

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,99}")

_FACTOR = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")

_AFTER = (
    "Baseline, primary metrics and threshold were declared when the trials were imported, after "
    "they had been measured."
)
_BOOTS = "The file says nothing of boots: each block counts as one of its own."


_SECTIONS = {
    "The run": "--name --results --json --help",
    "Roles of the tunings in a CSV file": "--baseline --control --known-loss",
    "How a CSV file is judged": "--primary --margin --interleaved --design",
    "Factors in a CSV file": "--factor --own-boot --interaction",
}
"""Heading of --help to its options."""


@click.command("import", cls=Sectioned, sections=_SECTIONS)
@click.argument(
    "file", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@click.option(
    "--name", help="The run's name (default: an archive's own, else time and file's name)."
)
@click.option("--baseline", help="What the tunings are compared with (default: 'baseline').")
@click.option(
    "--control", help="A/A control: the baseline a second time (default: 'control', if there)."
)
@click.option(
    "--known-loss",
    "--handicap",
    "handicap",
    help="Known-loss arm: baseline less 5 % of its CPU time (default: 'handicap').",
)
@click.option(
    "--primary",
    "primaries",
    metavar="[WORKLOAD=]METRIC",
    multiple=True,
    help="The metric that decides. Needed where a workload has several.",
)
@click.option(
    "--threshold",
    "--margin",
    "margin",
    default="5%",
    show_default=True,
    help="What is large enough to matter.",
)
@click.option(
    "--interleaved",
    is_flag=True,
    help="Each block held all arms side by side, so they are compared within blocks.",
)
@click.option(
    "--factor",
    "factors",
    metavar="COLUMN[=LEVEL,...]",
    multiple=True,
    help="A column of levels; effects are against the first (default: the least).",
)
@click.option(
    "--own-boot", "own_boot", metavar="COLUMN", multiple=True, help="A factor that took a boot."
)
@click.option(
    "--interaction", "interactions", metavar="A,B", multiple=True, help="A pair of factors."
)
@click.option(
    "--design",
    metavar="RUN",
    help="Take all of these from the plan of RUN, which the file was exported from.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@results_option
@click.pass_context
def command(
    context: click.Context,
    file: Path,
    name: str | None,
    baseline: str | None,
    control: str | None,
    handicap: str | None,
    primaries: tuple[str, ...],
    margin: str,
    interleaved: bool,
    factors: tuple[str, ...],
    own_boot: tuple[str, ...],
    interactions: tuple[str, ...],
    design: str | None,
    as_json: bool,
    results: Path | None,
) -> None:
    """Make a run of FILE: an archive by 'labctl run export', or trials as CSV.

    CSV is labctl's own, or any with the columns tuning, workload, block, metric, value, unit and
    better (docs/import.md). The options but --name are for it alone.
    """
    import labctl
    from labctl.store.archive import is_archive
    from labctl.store.imported import Declared, declared_plan, design_of, write_imported
    from labctl.store.records.factor_record import AXES
    from labctl.store.records.run_record import RunRecord
    from labctl.store.run_places import find_run
    from labctl.store.trial_csv import read_trials

    declaring = (
        *("baseline", "control", "handicap", "primaries", "margin", "interleaved"),
        *("factors", "own_boot", "interactions"),
    )
    explicit = click.core.ParameterSource.COMMANDLINE
    declares = any(context.get_parameter_source(option) is explicit for option in declaring)
    if design and declares:
        raise UsageError("--design has all that the other options declare", hint="Leave them out.")
    place = runs_folder(results)
    if is_archive(file):
        if design or declares:
            raise UsageError(
                f"{file} is an archive of a run, whose plan declares what is compared",
                hint="Only --name goes with it.",
            )
        _take_in(place, file, name, as_json=as_json)
        return
    moment = datetime.now(UTC)
    stem = re.sub(r"[^A-Za-z0-9+._-]", "-", file.stem).strip("-.") or "imported"
    name = name or f"{moment:%Y%m%dT%H%M%SZ}-{stem[:60]}"
    _check_name(name)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from error
    levels = _factors(factors)
    trials = read_trials(data, str(file), [name for name in levels if name not in AXES])
    if design is not None:
        plan = design_of(find_run(place, design).load(), trials)
    else:
        declared = Declared(
            baseline=baseline,
            control=control,
            handicap=handicap,
            primaries=primaries,
            margin=margin,
            interleaved=interleaved,
            factors=levels,
            own_boot=own_boot,
            interactions=[_pair(text) for text in interactions],
        )
        plan = declared_plan(trials, declared, trials.study or stem)
    warnings = [] if design is not None else [_AFTER]
    if "boot" not in trials.columns:
        warnings.append(_BOOTS)
    folder = write_imported(
        place,
        name,
        plan=plan,
        trials=trials,
        source=(file.name, data),
        record=RunRecord(
            labctl=labctl.__version__,
            command=shlex.join(["labctl", *sys.argv[1:]]),
            warnings=tuple(warnings),
        ),
    )
    if as_json:
        print_json(
            {
                "schema": 1,
                "run": name,
                "path": str(folder.path),
                "rows": trials.rows,
                "trials": len(trials.trials),
                "unread_columns": list(trials.unread),
            }
        )
        return
    if trials.unread:
        click.echo(
            f"Not read: {', '.join(trials.unread)}. A column of levels is a factor with --factor.",
            err=True,
        )
    click.echo(f"{len(trials.trials)} trials in {folder.path}; 'labctl report {name}' judges them.")


def _factors(given: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return by column the levels that are named, in their order; () where none are."""
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, _, levels = text.partition("=")
        if not _FACTOR.fullmatch(name) or name in found:
            raise UsageError(
                f"--factor: '{text[:80]}' names no column once",
                hint="Write it as '--factor policy' or '--factor policy=other,fifo', with letters, "
                "digits and _ - in its name.",
            )
        found[name] = tuple(dict.fromkeys(filter(None, levels.split(","))))
    return found


def _pair(text: str) -> tuple[str, str]:
    one, _, other = text.partition(",")
    if not one or not other or one == other:
        raise UsageError(
            f"--interaction: '{text}' is no pair of factors", hint="--interaction policy,processes"
        )
    return one, other


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name: '{name}' can't be a folder's name everywhere",
            hint="Use letters, digits and + . _ -, at most 100, beginning with a letter or digit.",
        )


def _take_in(results: Path, file: Path, name: str | None, *, as_json: bool) -> None:
    """Make a run of an archive, and say which of its files aren't those that its trials left."""
    from labctl.base.wording import counted, printable
    from labctl.run.commands.verify import verify
    from labctl.store.archive import RunArchive
    from labctl.store.imported import write_unpacked

    archive = RunArchive(file)
    name = name or archive.name
    _check_name(name)
    folder = write_unpacked(results, name, archive)
    found = verify(folder)
    if as_json:
        print_json({"schema": 1, "run": name, "path": str(folder.path), **found.to_json()})
        return
    for text in found.notes:
        click.echo(printable(text))
    if found.differences:
        files = counted(len(found.differences), "file")
        click.echo(
            f"{files} not as the run left them: 'labctl run verify {name}' names them.", err=True
        )
    click.echo(
        f"{counted(found.trials, 'trial')} in {folder.path}; 'labctl report {name}' shows it."
    )
