"""`labctl sweep`: run a study, then show its report."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.cli.common import console, print_json, state_places


@click.command("sweep")
@click.argument("study", default="pinning")
@click.option("--quick", is_flag=True, help="The study's quick selection: fewer arms and seconds.")
@click.option("--tuning", "tunings", multiple=True, help="Only these tunings (and the roles).")
@click.option("--workload", "workloads", multiple=True, help="Only these workloads.")
@click.option("--condition", "conditions", multiple=True, help="Only these conditions.")
@click.option("--blocks", type=int, help="How often each tuning is tried. Under 10: no verdicts.")
@click.option("--blocks-per-boot", type=int, help="How many blocks share a boot.")
@click.option("--duration", type=float, help="Seconds that each trial measures.")
@click.option("--vcpus", type=int, help="vCPUs of the guest (default: from the topology).")
@click.option("--memory", type=int, help="Memory of the guest in MiB.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the order (default: drawn).")
@click.option("--accel", type=click.Choice(["auto", "kvm", "tcg"]), default="auto")
@click.option("--connect", metavar="URI", help="libvirt connection (default: embedded driver).")
@click.option("--fresh-boots", is_flag=True, help="Boot for each tuning instead of restoring.")
@click.option("--resume", metavar="RUN", help="Go on with an interrupted run.")
@click.option("--plan-only", is_flag=True, help="Print the plan as JSON and do nothing else.")
@click.option("--results", type=click.Path(path_type=Path), help="Folder of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", is_flag=True, help="No progress; only the report.")
@click.pass_context
def command(
    context: click.Context,
    study: str,
    quick: bool,
    tunings: tuple[str, ...],
    workloads: tuple[str, ...],
    conditions: tuple[str, ...],
    blocks: int | None,
    blocks_per_boot: int | None,
    duration: float | None,
    vcpus: int | None,
    memory: int | None,
    seed: int | None,
    accel: str,
    connect: str | None,
    fresh_boots: bool,
    resume: str | None,
    plan_only: bool,
    results: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run STUDY (a file in benchmarks/, default: pinning) and judge it.

    Runs the same workloads natively and in guests, once per tuning and block, and says what each
    tuning does here. Ctrl-C ends it cleanly; --resume goes on.
    """
    if resume is not None:
        _refuse_changes(context)
    from labctl.base.events import silent
    from labctl.base.places import results_folder
    from labctl.cli.progress import ProgressView
    from labctl.cli.report import show_finished
    from labctl.run.planning import SweepRequest, plan_sweep
    from labctl.run.sweep import sweep
    from labctl.study.study import Overrides

    request = SweepRequest(
        study=study,
        places=state_places(context),
        results=results or results_folder(),
        quick=quick,
        overrides=Overrides(
            tunings=tunings or None,
            workloads=workloads or None,
            conditions=conditions or None,
            duration_s=duration,
            blocks=blocks,
            blocks_per_boot=blocks_per_boot,
            vcpus=vcpus,
            memory_mib=memory,
        ),
        seed=seed,
        accel=accel,  # type: ignore[arg-type]  # click has checked the choice
        connect=connect,
        fresh_boots=fresh_boots,
        resume=resume,
    )
    if plan_only:
        print_json(plan_sweep(request).plan.to_json())
        return
    if quiet:
        folder = sweep(request, silent)
    else:
        with ProgressView(console(stderr=True)) as view:
            folder = sweep(request, view.listen)
    show_finished(folder, as_json=as_json)


_FREE_ON_RESUME = {"resume", "results", "accel", "connect", "as_json", "quiet"}


def _refuse_changes(context: click.Context) -> None:
    """A resumed run goes on with its own plan: raises UsageError for what would change it."""
    from click.core import ParameterSource

    from labctl.base.errors import UsageError

    given = [
        parameter.get_error_hint(context)
        for parameter in context.command.params
        if parameter.name not in _FREE_ON_RESUME
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(
            f"--resume goes on with the run's own plan, which {', '.join(given)} would change",
            hint="Leave that out, or start a new run.",
        )
