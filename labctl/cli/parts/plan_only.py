"""Run `labctl sweep --plan-only`: show what would be measured, and what it could show."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import click

from labctl.base.errors import BrokenError, UsageError
from labctl.base.paths import brought_folder, shipped_data
from labctl.base.wording import printable
from labctl.cli.condition import neighbour_commands
from labctl.cli.parts.common import console, print_json
from labctl.cli.workload import SideCommands, commands_json, example_of
from labctl.study.plan import Plan
from labctl.workloads.registry import Declared, Programs, checkers, workload_of
from labctl.workloads.workload_file import BinaryFile, HostFile, bytes_of

if TYPE_CHECKING:
    from labctl.analysis.effects.cells import Scenario
    from labctl.analysis.foresight import Spreading
    from labctl.base.stopping import Looks
    from labctl.run.planning.planned import SweepRequest
    from labctl.store.records.plan_record import PlanRecord
    from labctl.store.run_folder import LoadedRun


def show_plan(request: SweepRequest, *, as_json: bool) -> None:
    """Print the plan of a sweep, and what harm it will be able to exclude; nothing is started.

    Raises whatever planning raises.
    """
    from labctl.analysis.foresight import foresee
    from labctl.analysis.times import expected_time
    from labctl.domain.session import check_local
    from labctl.report.terminal.plan import foreseen_json, plan_table
    from labctl.run.planning.plan import plan_sweep

    if request.connect is not None:
        check_local(request.connect)
    planned = plan_sweep(request)
    own = None if planned.own is None else planned.own.record
    notes = [] if planned.own is None else list(planned.own.domain.sentences)
    plan = planned.plan.record()
    earlier, spreading = _earlier(request.results, plan)
    foreseen, expected = foresee(plan, spreading), expected_time(plan, earlier)
    commands = commands_of_others(planned.plan)
    program = request.overrides.program
    files = files_of_others(planned.plan, program.sources if program else {})
    if as_json:
        # Beside what plan.json will hold, and not under its digest.
        print_json(
            {
                **planned.plan.to_json(),
                "foreseen": [foreseen_json(item) for item in foreseen],
                "expected_time": asdict(expected),
                **({"commands": commands} if commands else {}),
                **({"files": files} if files else {}),
                **(
                    {"domain": {"name": own.name, "asked": own.asked, "notes": notes}}
                    if own
                    else {}
                ),
            }
        )
    else:
        console().print(plan_table(plan, foreseen, expected, own))
        for sentence in notes:
            click.echo(printable(sentence))
        _show_commands(commands)
        _show_files(files)
    if waiting := planned.hangs_on_accelerator:
        click.echo(
            f"labctl: {', '.join(waiting)}: in the plan only if the accelerator that it "
            "needs works here; the sweep checks this first ('labctl host accel' checks it "
            "too)",
            err=True,
        )
    if waiting := planned.hangs_on_image:
        click.echo(
            f"labctl: {', '.join(waiting)}: in the plan only if the kernel of the image "
            f"'{planned.recipe.name}' has the tracer that it needs; the sweep checks this "
            f"after building the image ('labctl image build {planned.recipe.name}')",
            err=True,
        )
    for sentence in planned.unchecked:
        click.echo(printable(f"labctl: note: {sentence}"), err=True)


def _show_commands(commands: Mapping[str, Mapping[str, SideCommands]]) -> None:
    for name, sides in commands.items():
        for side, said in sides.items():
            click.echo(f"\n{name}, {side}, as {said['user']}:")
            for what, argv in said["commands"].items():
                click.echo(f"  {what}: {printable(argv)}")


def _show_files(files: Mapping[str, Mapping[str, FileFacts]]) -> None:
    for workload, names in files.items():
        click.echo(f"\n{workload}, files in {brought_folder(workload)} on both sides:")
        for name, one in names.items():
            path = f", from {one['path']}" if "path" in one else ""
            said = f"{name}: {one['size_bytes']:,} bytes, SHA-256 {one['sha256'][:12]}{path}"
            click.echo(f"  {printable(said)}")


def _earlier(
    results: Path, plan: PlanRecord
) -> tuple[LoadedRun | None, Mapping[Scenario, Spreading]]:
    """Return the last whole run of the same study on this host that has anything in common with
    the plan, and how its effects spread; None and {} without one."""
    from labctl.analysis.foresight import spreads
    from labctl.store.run_places import runs_by_age

    for folder in reversed(runs_by_age(results)):
        try:
            record = folder.read_run()
            if (record.study, record.status) != (plan.study, "done"):
                continue
            # An emulated host may have this one's CPU numbers, and its times are no one's.
            if record.host_is_emulated:
                continue
            if folder.read_plan().host_digest != plan.host_digest:
                continue
            run = folder.load()
            found = spreads(run, plan)
        except (BrokenError, UsageError):
            continue  # the run's own report says what of it is broken
        if found:
            return run, found
    return None, {}


def with_time(request: SweepRequest, seconds: float) -> SweepRequest:
    """Return the request with looks that end within so many seconds, at the pace of this host's
    earlier runs. Raises UsageError for too little time, and what planning raises."""
    from labctl.analysis.times import looks_within
    from labctl.base.stopping import FEWEST_BLOCKS, looks
    from labctl.run.planning.plan import plan_sweep

    def asking(rule: Looks) -> SweepRequest:
        return replace(request, overrides=replace(request.overrides, stopping=rule))

    plan = plan_sweep(asking(looks((FEWEST_BLOCKS, 2 * FEWEST_BLOCKS)))).plan.record()
    earlier, _ = _earlier(request.results, plan)
    return asking(looks_within(plan, earlier, seconds))


# Gather the commands of a plan that no file of labctl's own declares: they are code of others.


def commands_of_others(plan: Plan) -> dict[str, dict[str, SideCommands]]:
    """Return by workload and side what runs, and as whom, of programs that labctl doesn't bring:
    what a file or a command line declares is code."""
    known = checkers()
    kinds = {str(tuning.kind) for tuning in plan.tunings.values()}
    found: dict[str, dict[str, SideCommands]] = {}
    for name, declared in plan.workloads.items():
        if declared.definition is None:
            continue
        program = workload_of(declared)
        if _is_ours(known, declared):
            continue
        parameters = program.check_parameters(declared.parameters)
        left_out = program.left_out(parameters)
        found[name] = {
            side: commands_json(
                program,
                example_of(
                    program,
                    parameters,
                    side,
                    vcpus=plan.guest.vcpus or 1,
                    seconds=declared.duration_s,
                ),
            )
            for side in ("native", "guest")
            if side not in left_out and side in kinds
        }
    return found | _commands_beside(plan)


class FileFacts(TypedDict):
    """Describe a file that a workload brings. `path`: of a command line's file, on this host."""

    size_bytes: int
    sha256: str
    path: NotRequired[str]


def files_of_others(plan: Plan, sources: Mapping[str, Path]) -> dict[str, dict[str, FileFacts]]:
    """Return by workload and name the files that programs of others bring. `sources`: paths of a
    command line's files, by name."""
    known = checkers()
    found: dict[str, dict[str, FileFacts]] = {}
    for name, declared in plan.workloads.items():
        if declared.definition is None or _is_ours(known, declared):
            continue
        files = workload_of(declared).file.files
        if files:
            found[name] = {one: _facts(files[one], sources.get(one)) for one in files}
    return found


def _facts(brought: str | BinaryFile | HostFile, source: Path | None) -> FileFacts:
    facts: FileFacts
    if isinstance(brought, HostFile):
        facts = {"size_bytes": brought.size_bytes, "sha256": brought.sha256, "path": brought.path}
    else:
        data = bytes_of(brought)
        facts = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if source is not None:
        facts["path"] = str(source)
    return facts


def _commands_beside(plan: Plan) -> dict[str, dict[str, SideCommands]]:
    """Return the same of neighbours, by condition and workload; they run on the host."""
    known = checkers()
    return {
        f"condition '{name}', neighbour {number}, {one.program}": {
            "beside the trial": neighbour_commands(one)
        }
        for name, condition in plan.neighbours.items()
        for number, one in enumerate(condition.neighbours, start=1)
        if not _is_ours(known, one)
    }


def _is_ours(known: Programs, declared: Declared) -> bool:
    """Return whether a program is one that labctl brings. Of a definition of the same name, its
    file says nothing."""
    path = known.file_of(declared.program)
    if path is None or not path.is_relative_to(shipped_data()):
        return False
    return known[declared.program].definition == declared.definition
