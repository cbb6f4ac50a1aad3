"""Show what a density run found, or what one would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.cli.common import console, print_json

if TYPE_CHECKING:
    from labctl.run.planning.density_plan import DensityRequest
    from labctl.store.density_record import DensityFolder

SCHEMA = 1


def show_run(folder: DensityFolder, html_file: Path | None, *, as_json: bool) -> None:
    """Print what a density run found, and write its page where a file is named."""
    from labctl.analysis.density import judged

    record = folder.read()
    found = judged(record)
    if html_file is not None:
        from labctl.report.page.density_page import density_page
        from labctl.store.jsonfile import write_output

        write_output(html_file, density_page(record, folder.name, found).encode())
    if as_json:
        from labctl.report.export.density_json import density_json

        print_json(density_json(record, folder.name, str(folder.path), found))
        return
    from labctl.report.terminal.density_tables import density_report

    console().print(density_report(record, folder.name, found))


def show_plan(request: DensityRequest, *, as_json: bool) -> None:
    """Print guests, memory and time of a request; raises what planning raises."""
    from labctl.base.cpus import format_cpus
    from labctl.base.wording import counted, roughly
    from labctl.run.planning.density_plan import plan_density

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
        f"{counted(request.blocks, 'block')}, {counted(counts, 'count')}; a step of a count takes "
        f"about {roughly(plan.step_s)}, and one count as many steps as guests fit and one more "
        "('--search bisect': fewer), so with 3 guests fitting "
        f"{roughly(counts * 4 * plan.step_s + request.blocks * 60)}"
    )
    for number in range(min(plan.most, 4)):
        pins = plan.places.of(number)
        placed = ", ".join(
            f"{strategy} {format_cpus(one.vcpu_cpus)}" for strategy, one in pins.items()
        )
        click.echo(f"guest {number + 1}, where its tuning pins vCPUs: CPU {placed}")
