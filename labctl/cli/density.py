"""Run `labctl density`: count how many guests fit on this host under each tuning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.base.errors import UsageError
from labctl.base.wording import printable
from labctl.cli.parts.common import (
    MEMORY_OPTION,
    TIME_OPTION,
    Sectioned,
    console,
    html_option,
    print_json,
    results_option,
    runs_folder,
    state_paths,
)

if TYPE_CHECKING:
    from labctl.base.paths import StatePaths
    from labctl.run.planning.density import DensityRequest
    from labctl.store.density_record import DensityFolder


_DURATION_S = 10.0


_SECTIONS = {
    "What to count": "--tuning --limit --set",
    "Length and number": "--duration --blocks --search --most",
    "Each guest": "--vcpus --memory --accel",
    "This run": "--plan-only --show --seed --wait-quiet --results --quiet --help",
    "Output": "--as --html --json",
}
"""Heading of --help to its options."""


@click.command("density", cls=Sectioned, sections=_SECTIONS)
@click.argument("workload", required=False, metavar="[WORKLOAD]")
@click.option(
    "--tuning", "tunings", multiple=True, help="A tuning to count guests with; can be repeated."
)
@click.option("--limit", metavar="TEXT", help="The limit for the worst guest: 'frame_p95 < 16 ms'.")
@click.option("--set", "given", multiple=True, metavar="KEY=VALUE", help="A workload's parameter.")
@click.option(
    "--duration", type=TIME_OPTION, help="Length of a window (10s, or the workload's minimum)."
)
@click.option(
    "--blocks", type=click.IntRange(1, 100), default=10, help="Most counts per tuning (10)."
)
@click.option("--most", type=click.IntRange(min=1), help="Most guests to try (default: by memory).")
@click.option(
    "--search",
    type=click.Choice(["up", "bisect"]),
    default="up",
    help="Add one guest at a time, or double and halve.",
)
@click.option("--vcpus", type=click.IntRange(min=1), default=1, help="vCPUs of each guest (1).")
@click.option("--memory", type=MEMORY_OPTION, help="Memory of each guest (1G; a number: MiB).")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the order (default: random).")
@click.option("--accel", type=click.Choice(["auto", "kvm", "tcg"]), default="auto")
@click.option(
    "--wait-quiet",
    metavar="TIME",
    default="10m",
    help="How long to wait for the host to become idle (10m; 0: never).",
)
@click.option("--plan-only", is_flag=True, help="Print guests, memory and time; start nothing.")
@click.option("--show", "shown", metavar="RUN", help="Show the result of an earlier density run.")
@click.option(
    "--as",
    "platform",
    type=click.Choice(["kubevirt", "openstack", "proxmox"]),
    help="Also print the overcommit that the number of guests means there.",
)
@results_option
@html_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/density.md).")
@click.option("--quiet", is_flag=True, help="No progress; only the result.")
@click.pass_context
def command(
    context: click.Context,
    /,
    workload: str | None,
    shown: str | None,
    plan_only: bool,
    platform: str | None,
    html_file: Path | None,
    as_json: bool,
    quiet: bool,
    **_request: object,
) -> None:
    """Count how many guests run WORKLOAD at once before the worst of them breaks the limit.

    Clones of one snapshot are restored one after the other and run the workload at the same time.
    The number of clones that keep the limit is counted once per block and tuning.
    """
    from labctl.store.density_record import DensityFolder
    from labctl.store.jsonfile import check_folder

    results = runs_folder(context.params["results"])
    if shown is not None:
        if workload is not None:
            raise UsageError("--show reads an earlier run; leave out WORKLOAD")
        show_run(DensityFolder.find(results, shown), html_file, platform, as_json=as_json)
        return
    request = request_of(context.params, state_paths(context), results)
    if plan_only:
        show_plan(request, as_json=as_json)
        return
    if html_file is not None:
        check_folder(html_file)
    folder = _counted(request, words_of(context.params), quiet=quiet)
    show_run(folder, html_file, platform, as_json=as_json)


def request_of(given: dict[str, Any], places: StatePaths, results: Path) -> DensityRequest:
    """Return the request that the command's arguments and options make. Raises UsageError."""
    from labctl.cli.sweep import seconds_of
    from labctl.cli.workload import asked_for, found_workload, parameters_of
    from labctl.run.planning.density import DensityRequest, Search, limit_of

    if given["workload"] is None:
        raise UsageError(
            "missing argument WORKLOAD",
            hint="labctl density frame-loop --tuning baseline --limit 'frame_p95 < 16 ms'",
        )
    program = found_workload(given["workload"])
    if not given["tunings"] or given["limit"] is None:
        lacking = "--tuning" if not given["tunings"] else "--limit"
        raise UsageError(
            f"{lacking} is missing: guests with each --tuning are counted until --limit is "
            "exceeded",
            hint="--tuning baseline --tuning vcpupin --limit "
            f"'{program.primary} …' ('labctl workload show {program.name}' lists the metrics)",
        )
    if len(set(given["tunings"])) < len(given["tunings"]):
        raise UsageError(
            "--tuning names a tuning twice",
            hint="Name it once; each tuning is counted in every block.",
        )
    duration_s = given["duration"] or max(_DURATION_S, program.file.trial.least_s)
    return DensityRequest(
        workload=asked_for(program, parameters_of(program, given["given"]), duration_s),
        limit=limit_of(given["limit"], program),
        tunings=given["tunings"],
        blocks=given["blocks"],
        search=Search(given["search"]),
        places=places,
        results=results,
        most=given["most"],
        vcpus=given["vcpus"],
        memory_mib=given["memory"],
        seed=given["seed"],
        accel=given["accel"],
        wait_quiet_s=seconds_of(given["wait_quiet"], "--wait-quiet"),
    )


def words_of(given: dict[str, Any]) -> tuple[str, ...]:
    """Return the command that makes this request."""
    words = ["labctl", "density", given["workload"]]
    for option, value in (
        *(("--tuning", name) for name in given["tunings"]),
        ("--limit", given["limit"]),
        *(("--set", pair) for pair in given["given"]),
        *((f"--{name}", given[name]) for name in ("duration", "blocks", "most", "search")),
        *((f"--{name}", given[name]) for name in ("vcpus", "memory", "seed", "accel")),
        ("--wait-quiet", given["wait_quiet"]),
    ):
        if value is not None:
            words += [option, str(value)]
    return tuple(words)


def _counted(request: DensityRequest, words: tuple[str, ...], *, quiet: bool) -> DensityFolder:
    from labctl.analysis.density import why_ended
    from labctl.base.events import silent
    from labctl.cli.parts.progress import ProgressView
    from labctl.run.commands.density import density

    if quiet:
        return density(request, words, silent, why_ended)
    with ProgressView(console(stderr=True)) as view:
        return density(request, words, view.listen, why_ended)


# Show what a density run found, or what one would do.


SCHEMA = 1


def show_run(
    folder: DensityFolder, html_file: Path | None, platform: str | None = None, *, as_json: bool
) -> None:
    """Print what a density run found, and write its page where a file is named. `platform`: the
    one whose overcommit is printed as well."""
    from labctl.analysis.density import judged
    from labctl.report.density_words import overcommit, overcommit_words

    record = folder.read()
    found = judged(record)
    if html_file is not None:
        from labctl.report.page.density_page import density_page
        from labctl.store.jsonfile import write_output

        write_output(html_file, density_page(record, folder.name, found).encode())
    if as_json:
        from labctl.report.export.json_report import density_json

        facts = density_json(record, folder.name, str(folder.path), found)
        if platform is not None:
            facts["overcommit"] = overcommit(record, found, platform)
        print_json(facts)
        return
    from labctl.report.terminal.density_tables import density_report

    console().print(density_report(record, folder.name, found))
    if platform is not None:
        click.echo("")
        for line in overcommit_words(record, found, platform):
            click.echo(printable(line))


def show_plan(request: DensityRequest, *, as_json: bool) -> None:
    """Print guests, memory and time of a request; raises what planning raises."""
    from labctl.base.cpus import format_cpus
    from labctl.base.wording import counted, roughly
    from labctl.run.planning.density import plan_density

    plan = plan_density(request)
    counts = request.blocks * len(request.tunings)
    facts = {
        "tunings": list(request.tunings),
        "orders": [list(plan.order(block)) for block in range(1, request.blocks + 1)],
        "limit": str(request.limit),
        "most": plan.most,
        "most_by": plan.most_by,
        "vcpus": request.vcpus,
        "memory_mib": plan.memory_mib,
        "needed_mib": plan.needed_mib,
        "step_s": plan.step_s,
        "seed": plan.planned.plan.seed,
    }
    if as_json:
        print_json({"schema": SCHEMA, **facts})
        return
    each = counted(request.vcpus, "vCPU")
    click.echo(f"{', '.join(request.tunings)}: guests of {each} and {plan.memory_mib} MiB")
    click.echo(f"limit: {request.limit}, for the worst guest")
    click.echo(
        f"at most {plan.most} guests ({plan.most_by}): {plan.needed_mib} MiB with their QEMUs"
    )
    click.echo(
        f"{counted(request.blocks, 'block')}, {counted(counts, 'count')}; a step takes "
        f"about {roughly(plan.step_s)}; a count needs one step more than guests fit "
        "('--search bisect': fewer), so if 3 guests fit, "
        f"{roughly(counts * 4 * plan.step_s + request.blocks * 60)}"
    )
    for number in range(min(plan.most, 4)):
        pins = plan.places.of(number)
        placed = ", ".join(
            f"{strategy} {format_cpus(one.vcpu_cpus)}" for strategy, one in pins.items()
        )
        click.echo(f"guest {number + 1}, where its tuning pins vCPUs: CPU {placed}")
