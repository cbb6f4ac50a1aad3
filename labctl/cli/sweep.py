"""Run `labctl sweep`: run a study, then show its report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import ExitCode, UsageError
from labctl.base.levels import Level
from labctl.cli.common import (
    MEMORY_OPTION,
    TIME_OPTION,
    console,
    levels_asked_for,
    results_option,
    runs_folder,
    state_paths,
)
from labctl.cli.help import Sectioned
from labctl.cli.own_program import one_program, own_program_options
from labctl.cli.stopping import rule_asked_for, seconds_of, why_end

if TYPE_CHECKING:
    from labctl.run.planning.planned import SweepRequest
    from labctl.store.run_folder import RunFolder


_SECTIONS = {
    "What to measure": "--quick --tuning --workload --condition --factor --collect",
    "How long and how often": (
        "--duration --blocks --until-width --max-blocks --looks --blocks-per-boot --spare-blocks"
    ),
    "The guest": "--vcpus --memory --accel --connect --fresh-boots --kernel --initrd",
    "A program of your own": (
        "--command --parameter --metric --unit --better --once --timeout --setup --serve "
        "--port --ready --package"
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
@click.option("--blocks", type=int, help="How often each tuning is tried. Under 10: no verdicts.")
@click.option("--until-width", metavar="PERCENT", help="Blocks until intervals are within ±2%.")
@click.option("--max-blocks", type=int, help="The most blocks of a run until a width (40).")
@click.option("--looks", metavar="N,N,...", help="End at the first of these with every verdict.")
@click.option("--blocks-per-boot", type=int, help="How many blocks share a boot.")
@click.option("--spare-blocks", type=int, help="Blocks that run where another has lost a value.")
@click.option("--duration", type=TIME_OPTION, help="How long each trial measures (10s).")
@click.option("--vcpus", type=int, help="vCPUs of the guest (default: from the topology).")
@click.option("--memory", type=MEMORY_OPTION, help="Memory of the guest (2G; a number: MiB).")
@click.option(
    "--collect",
    type=click.Choice([level.value for level in Level]),
    help="What trials collect (default: counters).",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the order (default: drawn).")
@click.option("--accel", type=click.Choice(["auto", "kvm", "tcg"]), default="auto")
@click.option("--connect", metavar="URI", help="libvirt connection (default: embedded driver).")
@click.option("--fresh-boots", is_flag=True, help="Boot for each tuning instead of restoring.")
@click.option(
    "--kernel",
    type=click.Path(path_type=Path),
    help="Boot guests with this kernel: with the host's own, the ratio to native is overhead.",
)
@click.option("--initrd", type=click.Path(path_type=Path), help="The initrd of that kernel.")
@own_program_options
@click.option("--domain", metavar="NAME|FILE", help="Measure a copy of your own VM.")
@click.option("--keep-network", is_flag=True, help="That copy stays on the VM's own networks.")
@click.option("--resume", metavar="RUN", help="Go on with an interrupted run.")
@click.option("--extend", metavar="RUN", help="Add --blocks more blocks to a finished run.")
@click.option(
    "--wait-quiet",
    metavar="TIME",
    default="10m",
    help="How long a run may wait for others to leave the host alone (default: 10m; 0: never).",
)
@click.option(
    "--plan-only",
    is_flag=True,
    help="Print arms, workloads, how long it takes and which losses it could exclude; run nothing.",
)
@click.option(
    "--detach",
    "detaching",
    is_flag=True,
    help="Go on in the background once the run has begun; print its folder and progress file.",
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
    """Run STUDY (a name in benchmarks/, or a file) and judge it. Without one, list them.

    Runs the same workloads natively and in guests, once per tuning and block, and says what each
    tuning does here. Ctrl-C ends it cleanly; --resume goes on.

    Blocks that --extend adds after a result is known are exploratory: verdicts stay with the
    planned ones.
    """
    if resume is not None:
        _refuse_changes(context, "--resume", "goes on with", _FREE_ON_RESUME)
    if extend is not None:
        _refuse_changes(context, "--extend", "adds blocks to", _FREE_ON_EXTEND)
        _check_more(blocks)
    if study is None and resume is None and extend is None:
        from labctl.cli.study import list_studies

        list_studies(as_json=as_json)
        return ExitCode.USAGE
    from labctl.cli.sweep_run import sweep_and_show, sweep_detached

    request = request_of(context)
    if plan_only:
        from labctl.cli.plan_only import show_plan

        show_plan(request, as_json=as_json)
        return None
    if detaching:
        return sweep_detached(request, as_json=as_json)
    sweep_and_show(request, as_json=as_json, quiet=quiet)
    return None


def request_of(context: click.Context) -> SweepRequest:
    """Return the request that the command's arguments and options make."""
    from labctl.run.planning.planned import SweepRequest
    from labctl.study.load_study import Overrides

    given = context.params
    return SweepRequest(
        study=given["study"] or "",
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
                given["until_width"], given["max_blocks"], given["looks"], given["blocks"]
            ),
            blocks_per_boot=given["blocks_per_boot"],
            spare_blocks=given["spare_blocks"],
            vcpus=given["vcpus"],
            memory_mib=given["memory"],
            collect=Level(given["collect"]) if given["collect"] else None,
            program=one_program(given),
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


def swept(request: SweepRequest, *, quiet: bool) -> RunFolder:
    """Carry the sweep out, with its progress on stderr unless `quiet`; returns its folder."""
    from labctl.base.events import silent
    from labctl.cli.progress import ProgressView
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
        raise UsageError(
            "--extend adds blocks to a finished run, and --blocks says how many", hint="--blocks 5"
        )


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
            f"{option} {does} the run's own plan, which {', '.join(given)} would change",
            hint="Leave that out, or start a new run.",
        )
