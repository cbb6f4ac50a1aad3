"""Run `labctl run`: list the recorded runs."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import click

from labctl.base.errors import ExitCode, FileError, HostError, LabctlError, UsageError
from labctl.cli.parts.common import (
    Group,
    Sectioned,
    named_run,
    print_json,
    print_table,
    results_option,
    runs_folder,
    state_paths,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labctl.store.density_record import DensityFolder
    from labctl.store.run_folder import LoadedRun, RunFolder


# Run `labctl run import`: take in a run's archive, or trials that labctl did not measure.


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,99}")

_FACTOR = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")

_AFTER = (
    "Baseline, primary metrics and threshold were declared when the trials were imported, after "
    "they had been measured."
)
_BOOTS = "The file has no boots: each block counts as a separate boot."


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
@click.option("--baseline", help="Reference of the tunings (default: 'baseline').")
@click.option(
    "--control", help="A/A control: the baseline a second time (default: 'control', if present)."
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
    help="The metric that decides; required if a workload has several.",
)
@click.option(
    "--threshold",
    "--margin",
    "margin",
    default="5%",
    show_default=True,
    help="Smallest change that matters.",
)
@click.option(
    "--interleaved",
    is_flag=True,
    help="Compare within blocks: each block has all arms, interleaved.",
)
@click.option(
    "--factor",
    "factors",
    metavar="COLUMN[=LEVEL,...]",
    multiple=True,
    help="A column of levels; effects are relative to the first (default: the lowest).",
)
@click.option(
    "--own-boot",
    "own_boot",
    metavar="COLUMN",
    multiple=True,
    help="A factor that needs its own boot.",
)
@click.option(
    "--interaction", "interactions", metavar="A,B", multiple=True, help="A pair of factors."
)
@click.option(
    "--design",
    metavar="RUN",
    help="Take these options from the plan of RUN, from which the file was exported.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@results_option
@click.pass_context
def import_run(
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
    """Import FILE as a run: an archive from 'labctl run export', or trials as CSV.

    The CSV is labctl's own, or any with the columns tuning, workload, block, metric, value, unit
    and better (docs/import.md). All options except --name apply only to CSV.
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
        raise UsageError("--design already sets the other options", hint="Leave them out.")
    place = runs_folder(results)
    if is_archive(file):
        if design or declares:
            raise UsageError(
                f"{file} is an archive of a run with its own plan",
                hint="Use only --name with it.",
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
    click.echo(
        f"{len(trials.trials)} trials in {folder.path}; show them with 'labctl report {name}'."
    )


def _factors(given: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return by column the levels that are named, in their order; () where none are."""
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, _, levels = text.partition("=")
        if not _FACTOR.fullmatch(name) or name in found:
            raise UsageError(
                f"--factor: expected a column, named once, got '{text[:80]}'",
                hint="Write it as '--factor policy' or '--factor policy=other,fifo', with letters, "
                "digits and _ - in its name.",
            )
        found[name] = tuple(dict.fromkeys(filter(None, levels.split(","))))
    return found


def _pair(text: str) -> tuple[str, str]:
    one, _, other = text.partition(",")
    if not one or not other or one == other:
        raise UsageError(
            f"--interaction: expected two factors, got '{text}'",
            hint="--interaction policy,processes",
        )
    return one, other


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name: '{name}' is not a valid folder name",
            hint="Use at most 100 letters, digits and + . _ -, starting with a letter or digit.",
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
    folder, found = write_unpacked(results, name, archive, verify)
    if as_json:
        print_json({"schema": 1, "run": name, "path": str(folder.path), **found.to_json()})
        return
    for text in found.notes:
        click.echo(printable(text))
    if found.differences:
        files = counted(len(found.differences), "file")
        click.echo(
            f"{files} changed since the run: 'labctl run verify {name}' lists them.", err=True
        )
    click.echo(
        f"{counted(found.trials, 'trial')} in {folder.path}; show it with 'labctl report {name}'."
    )


# Run `labctl run verify`: hold a run's files against their digests.


@click.command("verify")
@click.argument("run_name", metavar="RUN")
@click.option(
    "--digest", metavar="SHA256", help="Expected digest of the whole run (from its progress.json)."
)
@click.option("--study-digest", metavar="SHA256", help="Expected digest of its study.")
@click.option("--seed", type=click.IntRange(min=0), help="Expected seed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@results_option
def verify_run(
    run_name: str,
    digest: str | None,
    study_digest: str | None,
    seed: int | None,
    as_json: bool,
    results: Path | None,
) -> None:
    """Check every file of RUN's trials against the digests taken at the end of each trial.

    Exits with 1 if something differs.
    """
    from labctl.base.wording import counted, printable
    from labctl.run.commands.verify import check_asked, verify
    from labctl.store.archive import check_digest

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
                f"{counted(found.without_digests, 'trial')} without digests: an older "
                "labctl ran them, so changed files cannot be detected."
            )
        for text in found.notes:
            click.echo(printable(text))
    if found.differences:
        sys.exit(ExitCode.FOUND)


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("run", cls=Group)
def command() -> None:
    """List, show, verify, import, export, reparse or remove runs."""


command.add_command(import_run)
command.add_command(verify_run)


@command.command("list")
@_json
@results_option
def list_runs(as_json: bool, results: Path | None) -> None:
    """List the runs, the oldest first. Every command accepts a run's number instead of its
    name, and 'latest' for the newest run."""
    from labctl.base.paths import recorded_runs
    from labctl.base.wording import printable
    from labctl.store.density_record import DensityFolder
    from labctl.store.run_places import runs_by_age

    folder = runs_folder(results)
    counts = [found.name for found in DensityFolder.all(folder)]
    entries: list[_Listed] = [
        {"number": number, **_entry(run)} for number, run in enumerate(runs_by_age(folder), 1)
    ]
    recorded = sorted({*recorded_runs()} - {entry["run"] for entry in entries})
    if as_json:
        shown = {"runs": entries, "density_runs": counts, "recorded_runs": recorded}
        print_json({"schema": 1, "results": str(folder), **shown})
        return
    if not entries:
        click.echo(f"No runs in {folder}. 'labctl sweep pinning --quick' makes one.")
    else:
        _print_runs(entries)
    for name in counts:
        click.echo(printable(f"density run: labctl density --show {name}"))
    for name in recorded:
        click.echo(f"comes with labctl: labctl report {name}")


def _print_runs(entries: Sequence[_Listed]) -> None:
    print_table(
        ["", "run", "study", "status", "accelerator", "trials"],
        [
            [
                str(entry["number"]),
                entry["run"],
                entry["study"] or "?",
                entry["status"] or "?",
                entry["accelerator"] or ("imported" if entry.get("imported_from") else "?"),
                _progress(entry),
            ]
            for entry in entries
        ],
    )
    for entry in entries:
        for problem in entry["problems"]:
            click.echo(f"{entry['run']}: {problem}", err=True)


@command.command("show")
@click.argument("run_name", metavar="RUN")
@_json
@results_option
def show(run_name: str, as_json: bool, results: Path | None) -> None:
    """Show the facts of RUN; 'labctl report RUN' shows its results."""
    from labctl.base.wording import printable
    from labctl.report.page.appendix import invalid_trials

    folder = named_run(results, run_name)
    run = folder.load()
    facts = _described(folder, run)
    invalid = invalid_trials(run)
    entry: dict[str, object] = {
        **facts,
        "command": run.run.command,
        "started_at": run.run.started_at,
        "ended_at": run.run.ended_at,
        "seed": run.run.seed if run.plan.seed is None else run.plan.seed,
        "plan_digest": run.plan.digest,
        "invalid_trials": [
            {"trial": trial.name, "what": trial.arm, "reasons": list(trial.reasons)}
            for trial in invalid
        ],
    }
    if as_json:
        print_json({"schema": 1, **entry})
        return
    entry["extensions"] = ", ".join(facts["extensions"])
    below = {"trials", "invalid_trials", "problems"}
    empty = {key for key in ("ending", "extensions") if not entry[key]}
    for key, value in entry.items():
        if key not in below | empty:
            words = "unknown" if value is None else printable(str(value))
            click.echo(f"{key.replace('_', ' '):12} {words}")
    click.echo(f"{'trials':12} {_progress(facts)} done")
    for trial in invalid:
        reasons = "; ".join(trial.reasons) or "no reason given"
        click.echo(printable(f"invalid      trial {trial.name} ({trial.arm}): {reasons}"))
    for problem in facts["problems"]:
        click.echo(printable(f"not whole    {problem}"))


@command.command("rm")
@click.argument("run_names", metavar="RUN...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_json
@results_option
def remove(run_names: tuple[str, ...], yes: bool, as_json: bool, results: Path | None) -> None:
    """Remove runs with all their data."""
    from labctl.store.density_record import DensityFolder
    from labctl.store.run_places import find_run

    place = runs_folder(results)
    folders = [DensityFolder.at(place, name) or find_run(place, name) for name in run_names]
    for folder in folders:
        _refuse_if_running(folder)
    if not yes:
        _ask(folders)
    for folder in folders:
        try:
            folder.remove()
        except OSError as error:
            raise HostError(f"cannot remove {folder.path}: {error}") from error
        if not as_json:
            click.echo(f"Removed {folder.path}")
    if as_json:
        print_json({"schema": 1, "removed": [str(folder.path) for folder in folders]})


@command.command("export")
@click.argument("run_name", metavar="RUN")
@click.option(
    "--redact",
    "redacting",
    is_flag=True,
    help="Remove names, users, serials, addresses and paths.",
)
@click.option(
    "--hide",
    "hidden",
    multiple=True,
    metavar="TEXT",
    help="With --redact: also remove this text everywhere.",
)
@click.option(
    "--out",
    "target",
    metavar="FILE.tar.xz|FOLDER",
    type=click.Path(path_type=Path),
    help="Where to write it (default: RUN.tar.xz or redacted.tar.xz in the current folder).",
)
@_json
@results_option
@click.pass_context
def export_run(
    context: click.Context,
    run_name: str,
    redacting: bool,
    hidden: tuple[str, ...],
    target: Path | None,
    as_json: bool,
    results: Path | None,
) -> None:
    """Copy RUN to an archive or a folder that labctl can read."""
    from labctl.base.wording import counted, printable
    from labctl.run.commands.export import export

    if hidden and not redacting:
        raise UsageError("'--hide' needs '--redact'", hint="Give both, or neither.")
    for text in hidden:
        if len(text.strip()) < 3 or not any(map(str.isalpha, text)):
            raise UsageError(
                f"--hide: '{text}' is too short or only a number, so it may also match "
                "measurements",
                hint="Use at least three characters, including a letter.",
            )
    folder = named_run(results, run_name)
    _refuse_if_running(folder)
    target = target or Path("redacted.tar.xz" if redacting else f"{folder.name}.tar.xz")
    done = export(folder, target, state_paths(context), redacting=redacting, hidden=hidden)
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
        click.echo(f"Removed, by kind: {found or 'nothing was found'}.")
    for name, why in done.left_out.items():
        click.echo(printable(f"Left out: {name}: {why}."))
    for text, kind in done.kept.items():
        click.echo(
            printable(
                f"Not removed, because the run also uses the word: '{text}' ({kind}). Check for it."
            ),
            err=True,
        )


class _Trials(TypedDict):
    planned: int
    done: int


class _RunFacts(TypedDict):
    """Describe a run as JSON has it. `imported_from`: only of an imported run."""

    run: str
    path: str
    study: str | None
    status: str | None
    accelerator: str | None
    trials: _Trials
    ending: str | None
    extensions: list[str]
    problems: list[str]
    imported_from: NotRequired[str | None]


class _Listed(_RunFacts):
    """Describe a run with its number in the list."""

    number: int


def _entry(folder: RunFolder) -> _RunFacts:
    """Return a run for the list; one that can't be read at all is listed with its problem."""
    try:
        return _described(folder, folder.load())
    except LabctlError as error:
        return {
            "run": folder.name,
            "path": str(folder.path),
            "study": None,
            "status": "unreadable",
            "accelerator": None,
            "trials": {"planned": 0, "done": 0},
            "ending": None,
            "extensions": [],
            "problems": [error.message],
        }


def _progress(entry: _RunFacts) -> str:
    may_end = entry["ending"] and entry["status"] != "done" and not entry["extensions"]
    most = "at most " if may_end else ""
    return f"{entry['trials']['done']} of {most}{entry['trials']['planned']}"


def _described(folder: RunFolder, run: LoadedRun) -> _RunFacts:
    from labctl.analysis.verdicts.looks import ending
    from labctl.store.trial import TrialStatus

    done = {t.record.number for t in run.trials if t.record.status is TrialStatus.DONE}
    facts: _RunFacts = {
        "run": run.name,
        "path": str(folder.path),
        "study": run.plan.study or run.run.study,
        "status": run.run.status,
        "accelerator": run.run.accelerator,
        "trials": {"planned": len(run.plan.trials), "done": len(done)},
        "ending": ending(run),
        "extensions": [
            f"blocks {added.first_block} to {added.last_block}" for added in run.plan.extensions
        ],
        "problems": list(run.problems),
    }
    if (imported := run.run.imported) is not None:
        facts["imported_from"] = imported.file
    return facts


def _ask(folders: Sequence[RunFolder | DensityFolder]) -> None:
    names = ", ".join(str(folder.path) for folder in folders)
    if not sys.stdin.isatty():
        raise UsageError(f"would remove {names}", hint="Pass --yes to remove without confirmation.")
    click.confirm(f"Remove {names}?", abort=True)


@command.command("reparse")
@click.argument("run_name", metavar="RUN")
@_json
@results_option
def reparse_run(run_name: str, as_json: bool, results: Path | None) -> None:
    """Parse RUN's raw files again with the current parsers."""
    from labctl.base.wording import counted
    from labctl.run.trials.parse import reparse
    from labctl.store.run_places import find_run_to_change

    folder = find_run_to_change(runs_folder(results), run_name, "parsed again")
    if folder.load().run.imported:
        raise UsageError(
            f"run '{folder.name}' was imported: its trials have no raw files",
            hint="Import its file again.",
        )
    written, problems = reparse(folder)
    if as_json:
        print_json({"schema": 1, "run": folder.name, "trials": written, "problems": problems})
    else:
        click.echo(f"Parsed {counted(written, 'trial')} again.")
        for problem in problems:
            click.echo(problem, err=True)
    if problems:
        what = counted(len(problems), "trial")
        raise FileError(f"{what} cannot be parsed and no longer count")


def _refuse_if_running(folder: RunFolder | DensityFolder) -> None:
    """Raise HostError when a living labctl on this host writes into the folder."""
    from labctl.base.json import parse_json
    from labctl.base.paths import host_lock

    try:
        with host_lock().open(encoding="utf-8") as lock:
            holder = parse_json(lock.read())
            if holder["run_folder"] != str(folder.path) or not _is_held(lock.fileno()):
                return
    except (OSError, ValueError, KeyError, TypeError):
        return  # nobody holds it, or its holder says nothing of a run
    raise HostError(
        f"run '{folder.name}' is being measured by process {holder['pid']} since {holder['since']}",
        hint=f"Wait until it is done, or stop it with 'kill {holder['pid']}'.",
    )


def _is_held(lock: int) -> bool:
    """Return whether a living process holds the lock: after SIGKILL its text stays, the lock
    doesn't."""
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
