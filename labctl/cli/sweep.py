"""Run `labctl sweep`: run a study, then show its report."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.base.errors import BrokenError, ExitCode, UsageError
from labctl.base.events import Event, Listener, Note, RunBegun, Warned
from labctl.base.quantities import PERCENT, TIME, Kind
from labctl.base.tuning import Level
from labctl.base.wording import printable
from labctl.cli.parts.common import (
    MEMORY_OPTION,
    TIME_OPTION,
    Sectioned,
    console,
    levels_asked_for,
    print_json,
    results_option,
    runs_folder,
    state_paths,
)
from labctl.cli.parts.own_program import one_program, own_program_options

if TYPE_CHECKING:
    from labctl.analysis.model import Judgement
    from labctl.base.stopping import Stopping
    from labctl.run.planning.planned import SweepRequest
    from labctl.store.records.run_record import LookTaken
    from labctl.store.run_folder import RunFolder
    from labctl.study.load_study import OneProgram
    from labctl.study.question import Question


# Define options for runs that may end early, and the judge that such a run asks.


def rule_asked_for(
    width: str | None,
    most_blocks: int | None,
    at: str | None,
    blocks: int | None,
    within: str | None = None,
) -> Stopping | None:
    """Return the rule that --until-width, --max-blocks and --looks make; None without them.

    Raises UsageError for a rule that can't be, and for two things at once.
    """
    from labctl.base.stopping import CAP, looks, until_width

    given = {"--until-width": width, "--looks": at, "--blocks": blocks, "--within": within}
    said = [option for option, value in given.items() if value is not None]
    if len(said) > 1:
        raise UsageError(
            f"{' and '.join(said)} exclude each other",
            hint="Give one of them: a width, looks, a time, or a fixed number of blocks.",
        )
    if most_blocks is not None and width is None:
        raise UsageError(
            "--max-blocks needs --until-width",
            hint="Add a width, such as '--until-width 2%', or use --blocks for a fixed number.",
        )
    if width is not None:
        return until_width(
            _read(PERCENT, width, "--until-width") / 100,
            CAP if most_blocks is None else most_blocks,
        )
    return None if at is None else looks(_numbers(at))


def seconds_of(text: str, option: str) -> float:
    """Return the seconds of a time such as "90", "90s", "10m" or "1h"; raises UsageError."""
    seconds = _read(TIME, text, option)
    if seconds < 0:
        raise UsageError(f"{option}: expected a time ≥ 0, got '{text}'")
    return seconds


def _read(kind: Kind, text: str, option: str) -> float:
    try:
        return kind.read(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"--looks: expected numbers of blocks, got '{text}'",
            hint="Give, for example, 10,15,20.",
        ) from error


def why_end(folder: RunFolder, blocks: int) -> str | LookTaken | None:
    """Return why a run ends after so many whole blocks by its plan's rule, or which cells it goes
    on without; None: it goes on."""
    from labctl.analysis.verdicts.decide import look_at
    from labctl.analysis.verdicts.looks import Stop

    found = look_at(folder.load(), blocks)
    return found.why if isinstance(found, Stop) else found


_SECTIONS = {
    "Selection": "--quick --tuning --workload --condition --factor --collect",
    "Length and number": (
        "--duration --blocks --looks --within --until-width --max-blocks --blocks-per-boot "
        "--spare-blocks --other-cpu"
    ),
    "The guest": "--vcpus --memory --accel --connect --fresh-boots --kernel --initrd",
    "A program of your own": (
        "--command --parameter --metric --unit --better --once --timeout --setup --serve "
        "--port --ready --package --file"
    ),
    "A VM of your own": "--domain --keep-network",
    "This run": (
        "--plan-only --resume --extend --seed --wait-quiet --detach --results --json --quiet --help"
    ),
}
"""Heading of --help to its options."""


@click.command("sweep", cls=Sectioned, sections=_SECTIONS)
@click.argument("study", required=False)
@click.option("--quick", is_flag=True, help="The study's quick selection: fewer arms and seconds.")
@click.option("--tuning", "tunings", multiple=True, help="Only these tunings (and the roles).")
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    help="Only these workloads, of the study or of labctl's.",
)
@click.option("--condition", "conditions", multiple=True, help="Only these conditions.")
@click.option(
    "--factor", "factors", multiple=True, metavar="NAME=LEVEL,...", help="Only these levels of it."
)
@click.option("--blocks", type=int, help="Number of blocks. Under 10: no verdicts.")
@click.option("--until-width", metavar="PERCENT", help="Run blocks until intervals are within ±2%.")
@click.option("--max-blocks", type=int, help="Most blocks with --until-width (40).")
@click.option(
    "--looks",
    metavar="N,N,...",
    help="Judge after each of these numbers of blocks; continue undecided comparisons only.",
)
@click.option(
    "--within",
    metavar="TIME",
    help="Plan looks that end within this time (15m), at this host's pace.",
)
@click.option("--blocks-per-boot", type=int, help="Number of blocks that share a boot.")
@click.option("--spare-blocks", type=int, help="Extra blocks, run if another block lost a value.")
@click.option(
    "--other-cpu",
    type=click.FloatRange(min=0, min_open=True),
    help="CPUs that others may use of a trial's, in CPU seconds per second (0.1).",
)
@click.option("--duration", type=TIME_OPTION, help="Measured time of each trial (10s).")
@click.option("--vcpus", type=int, help="vCPUs of the guest (default: from the topology).")
@click.option("--memory", type=MEMORY_OPTION, help="Memory of the guest (2G; a number: MiB).")
@click.option(
    "--collect",
    type=click.Choice([level.value for level in Level]),
    help="What trials collect (default: counters).",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the order (default: random).")
@click.option("--accel", type=click.Choice(["auto", "kvm", "tcg"]), default="auto")
@click.option("--connect", metavar="URI", help="libvirt connection (default: embedded driver).")
@click.option("--fresh-boots", is_flag=True, help="Boot for each tuning instead of restoring.")
@click.option(
    "--kernel",
    type=click.Path(path_type=Path),
    help="Boot guests with this kernel; with the host's kernel, the ratio to native is overhead.",
)
@click.option("--initrd", type=click.Path(path_type=Path), help="The initrd of that kernel.")
@own_program_options
@click.option("--domain", metavar="NAME|FILE", help="Measure a copy of your own VM.")
@click.option("--keep-network", is_flag=True, help="Keep the copy on the VM's own networks.")
@click.option("--resume", metavar="RUN", help="Continue an interrupted run.")
@click.option("--extend", metavar="RUN", help="Add --blocks more blocks to a finished run.")
@click.option(
    "--wait-quiet",
    metavar="TIME",
    default="10m",
    help="How long to wait for the host to become idle (default: 10m; 0: never).",
)
@click.option(
    "--plan-only",
    is_flag=True,
    help="Print arms, workloads, expected time and the losses it could exclude; run nothing.",
)
@click.option(
    "--detach",
    "detaching",
    is_flag=True,
    help="Continue in the background after the start; print the run's folder and progress file.",
)
@results_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", is_flag=True, help="No progress; only the report.")
@click.pass_context
def command(
    context: click.Context,
    /,
    study: str | None,
    resume: str | None,
    extend: str | None,
    blocks: int | None,
    plan_only: bool,
    detaching: bool,
    as_json: bool,
    quiet: bool,
    **_request: object,
) -> int | None:
    """Run STUDY (a name in benchmarks/, or a file) and judge it. Without STUDY, compare each
    --tuning with the baseline in each --workload, or in --command; without these, list the studies.

    Runs the same workloads natively and in guests, once per tuning and block, and shows the effect
    of each tuning. Ctrl-C stops it cleanly; --resume continues it. Blocks added with
    --extend after a result is known are exploratory: verdicts use only the planned blocks.
    """
    if resume is not None:
        _refuse_changes(context, "--resume", "continues", _FREE_ON_RESUME)
    if extend is not None:
        _refuse_changes(context, "--extend", "adds blocks to", _FREE_ON_EXTEND)
        _check_more(blocks)
    if study is None and resume is None and extend is None and not _asks(context):
        from labctl.cli.study import list_studies

        list_studies(as_json=as_json)
        return ExitCode.USAGE

    request = request_of(context)
    if plan_only:
        from labctl.cli.parts.plan_only import show_plan

        show_plan(request, as_json=as_json)
        return None
    if detaching:
        return sweep_detached(request, as_json=as_json)
    sweep_and_show(request, as_json=as_json, quiet=quiet)
    return None


def _asks(context: click.Context) -> bool:
    """Return whether the options of a sweep without a study say what to compare."""
    given = context.params
    return bool(given["tunings"] or given["workloads"] or given["own_command"])


def _question(given: Mapping[str, Any], program: OneProgram | None) -> Question | None:
    """Return the study that the options make; None where a study, or a run, has the plan. Raises
    UsageError for options that leave out what to compare, or in what."""
    if given["study"] is not None or given["resume"] or given["extend"]:
        return None
    from labctl.study.question import question

    if program is not None:
        workloads = {program.name: {"define": dict(program.definition)}}
    else:
        workloads = {key: {} for key in given["workloads"]}
    if not workloads:
        raise UsageError(
            "--tuning without a study needs a workload",
            hint="Add --workload NAME ('labctl workload list' lists them), or --command; or name a "
            "study, such as pinning.",
        )
    return question(given["tunings"], workloads)


def request_of(context: click.Context) -> SweepRequest:
    """Return the request that the command's arguments and options make."""
    given = context.params
    program = one_program(given)
    return request_for(context, _question(given, program), program)


def request_for(
    context: click.Context, asked: Question | None, program: OneProgram | None = None
) -> SweepRequest:
    """Return the request that a sweep's options make, of this question or program."""
    from labctl.run.planning.planned import SweepRequest
    from labctl.study.load_study import Overrides

    given = context.params
    request = SweepRequest(
        study=given["study"] or "",
        question=asked,
        places=state_paths(context),
        results=runs_folder(given["results"]),
        quick=given["quick"],
        overrides=Overrides(
            tunings=given["tunings"] or None,
            workloads=given["workloads"] or None,
            conditions=given["conditions"] or None,
            factors=levels_asked_for(given["factors"]),
            duration_s=given["duration"],
            blocks=given["blocks"],
            stopping=rule_asked_for(
                given["until_width"],
                given["max_blocks"],
                given["looks"],
                given["blocks"],
                given["within"],
            ),
            blocks_per_boot=given["blocks_per_boot"],
            spare_blocks=given["spare_blocks"],
            other_cpu=given["other_cpu"],
            vcpus=given["vcpus"],
            memory_mib=given["memory"],
            collect=Level(given["collect"]) if given["collect"] else None,
            program=program,
        ),
        seed=given["seed"],
        accel=given["accel"],
        connect=given["connect"],
        fresh_boots=given["fresh_boots"],
        kernel=given["kernel"],
        initrd=given["initrd"],
        domain=given["domain"],
        keep_network=given["keep_network"],
        resume=given["resume"],
        extend=given["extend"],
        wait_quiet_s=seconds_of(given["wait_quiet"], "--wait-quiet"),
    )
    if given["within"] is None:
        return request
    from labctl.cli.parts.plan_only import with_time

    return with_time(request, seconds_of(given["within"], "--within"))


def swept(request: SweepRequest, *, quiet: bool) -> RunFolder:
    """Carry the sweep out, with its progress on stderr unless `quiet`; returns its folder."""
    from labctl.base.events import silent
    from labctl.cli.parts.progress import ProgressView
    from labctl.run.commands.sweep import sweep

    if quiet:
        return sweep(request, silent, why_end)
    with ProgressView(console(stderr=True)) as view:
        return sweep(request, view.listen, why_end)


_FREE_ON_RESUME = frozenset(
    {"resume", "results", "accel", "connect", "detaching", "as_json", "quiet", "wait_quiet"}
)
_FREE_ON_EXTEND = _FREE_ON_RESUME - {"resume"} | {"extend", "blocks"}


def _check_more(blocks: int | None) -> None:
    if blocks is None or blocks < 1:
        raise UsageError("--extend needs --blocks, the number of blocks to add", hint="--blocks 5")


def _refuse_changes(context: click.Context, option: str, does: str, free: frozenset[str]) -> None:
    """Raise UsageError for options that would change a run's own plan."""
    from click.core import ParameterSource

    given = [
        parameter.get_error_hint(context)
        for parameter in context.command.params
        if parameter.name not in free
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(
            f"{option} {does} the run's own plan; {', '.join(given)} cannot change it",
            hint="Leave the options out, or start a new run.",
        )


# Run a sweep's work in a session of its own, which outlives the caller and its terminal.


_MOST_SAID = 1 << 16


@dataclass(frozen=True, slots=True)
class Detached:
    """Hold what is known of a run that goes on by itself."""

    pid: int
    folder: Path
    progress: Path


def detached(work: Callable[[Listener], None]) -> Detached | ExitCode:
    """Run `work` in a child with a session of its own, until its listener hears that its run has
    begun; then the child closes its standard streams and goes on alone.

    What the child does after that returns to no caller: it exits. A child that ends before the run
    has begun has said why on standard error: its exit status is returned.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    here, there = os.pipe()
    child = os.fork()
    if child:
        os.close(there)
        return _waited_for(child, here)
    os.close(here)
    os.setsid()

    def listen(event: Event) -> None:
        match event:
            case RunBegun():
                _let_go(there, event)
            case Note(text=text) | Warned(text=text):
                click.echo(printable(text), err=True)

    work(listen)
    sys.exit(ExitCode.DONE)


def _waited_for(child: int, pipe: int) -> Detached | ExitCode:
    """Return what the child says on the pipe, or its exit status."""
    said = b""
    while True:
        try:
            piece = os.read(pipe, _MOST_SAID)
        except KeyboardInterrupt:
            os.kill(child, signal.SIGINT)  # it has a session of its own, and heard none
            continue
        if not piece:
            break
        said += piece
    os.close(pipe)
    if said:
        from labctl.base.json import parse_json

        begun = parse_json(said)
        return Detached(child, Path(begun["folder"]), Path(begun["progress"]))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        raise BrokenError(f"the sweep was ended by {signal.Signals(-status).name}")
    if status in set(ExitCode):
        return ExitCode(status)
    raise SystemExit(status)  # 130: it was interrupted


def _let_go(pipe: int, begun: RunBegun) -> None:
    """Close the standard streams, so that nobody waits for their end, then tell the caller."""
    from labctl.store.jsonfile import canonical

    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
    told = {"folder": str(begun.folder), "progress": str(begun.progress)}
    os.write(pipe, canonical(told).encode())
    os.close(pipe)


# Keep what a run has shown of this host for later runs.


def remember_restores(request: SweepRequest, folder: RunFolder, judgement: Judgement) -> None:
    """Keep what the run has shown of restored guests for later runs (METHOD 8)."""
    from labctl.store.restores import Checked, remember

    if judgement.restored:
        remember(
            request.places.restore_checks,
            folder.name,
            folder.read_run(),
            folder.load().plan,
            (Checked(c.name, c.workload, c.condition, c.passed) for c in judgement.restored),
        )


# Carry a sweep out: in front of the user, or detached.


def sweep_and_show(request: SweepRequest, *, as_json: bool, quiet: bool) -> Judgement:
    """Carry the sweep out, print its report, and remember which restores it showed to work; return
    what the report says."""
    from labctl.cli.report import show_finished

    folder = swept(request, quiet=quiet)
    judgement = show_finished(folder, as_json=as_json)
    remember_restores(request, folder, judgement)
    return judgement


def sweep_detached(request: SweepRequest, *, as_json: bool) -> int | None:
    """Start a sweep in a session of its own, as `detached_run`; it ends with its report."""
    from labctl.cli.report import show_finished

    def ended(folder: RunFolder) -> None:
        remember_restores(request, folder, show_finished(folder, as_json=False))

    return detached_run(request, ended, as_json=as_json)


def detached_run(
    request: SweepRequest, ended: Callable[[RunFolder], None], *, as_json: bool
) -> int | None:
    """Start a sweep in a session of its own, and print where its run is; returns the exit status
    of one that ended before its run had begun. `ended` is called there at its end."""
    from labctl.run.commands.sweep import sweep

    def work(listener: Listener) -> None:
        ended(sweep(request, listener, why_end))

    begun = detached(work)
    if not isinstance(begun, Detached):
        return begun
    if as_json:
        print_json(
            {
                "schema": 1,
                "run": begun.folder.name,
                "path": str(begun.folder),
                "progress": str(begun.progress),
                "pid": begun.pid,
            }
        )
    else:
        click.echo(printable(f"Run '{begun.folder.name}' continues as process {begun.pid}."))
        click.echo(printable(f"Progress: {begun.progress}"))
    return None
