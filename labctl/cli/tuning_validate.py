"""Run `labctl tuning validate`: check tunings against their schema, libvirt's and this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from labctl.base.errors import ExitCode, UsageError
from labctl.cli.common import print_json
from labctl.cli.render_options import MEMORY_MIB, domain_request, host_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from labctl.base.tuning import Tuning


@click.command("validate")
@click.argument("names", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All tunings.")
@host_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def validate_tunings(
    context: click.Context,
    names: Sequence[str],
    every: bool,
    accel: str | None,
    vcpus: int | None,
    memory_mib: int,
    as_json: bool,
) -> None:
    """Check tunings: the file, its XML against libvirt's schema, its pins against this host.

    What this host lacks for a tuning is told, and makes the tuning no less valid.
    """
    from labctl.study.tunings import load_tunings, tuning_names

    if every == bool(names):
        raise UsageError(
            "name tunings, or give --all, not both",
            hint="'labctl tuning list' shows their names.",
        )
    results = validated(load_tunings(names or tuning_names()), accel, vcpus, memory_mib)
    if as_json:
        print_json(results)
    else:
        for result in results:
            click.echo(f"{result['tuning']}: {'valid' if result['valid'] else 'NOT VALID'}")
            for kind, prefix in (("problems", ""), ("lacking", "not here: "), ("warnings", "")):
                for line in result[kind]:
                    click.echo(f"  {prefix}{line}")
    if not all(result["valid"] for result in results):
        context.exit(ExitCode.FOUND)


def validated(
    tunings: Mapping[str, Tuning],
    accel: str | None = None,
    vcpus: int | None = None,
    memory_mib: int = MEMORY_MIB,
) -> list[dict[str, Any]]:
    """Return for each tuning whether it is valid, its problems, what this host lacks for it, and
    warnings."""
    from labctl.domain.pinning.pin_check import check
    from labctl.domain.pinning.pin_plan import default_vcpus
    from labctl.domain.render import compared_xml
    from labctl.domain.schema import covers, validate
    from labctl.host.facts import libvirt_version
    from labctl.host.topology import read_rt_runtime_us, read_topology
    from labctl.run.planning.requirements import read_offers, unmet
    from labctl.workloads.registry import checkers

    topology, rt_runtime_us = read_topology(), read_rt_runtime_us()
    vcpus = vcpus or default_vcpus(topology)
    offers = read_offers(
        tunings.values(), topology, vcpus=vcpus, memory_mib=memory_mib, accelerator=accel
    )
    installed = libvirt_version()
    results = []
    for name, tuning in tunings.items():
        problems: list[str] = []
        warnings: list[str] = []
        lacking = [problem.text for problem in unmet(tuning, offers)]
        try:
            request = domain_request(tuning, topology, accel, vcpus, memory_mib)
            if tuning.kind == "guest":
                xml = compared_xml(request)
                if covers(tuning, installed):
                    validate(xml)
        except UsageError as error:
            # A pin plan that this host has no CPUs or nodes for: what lacks says so already.
            if not lacking:
                problems.append(error.message)
        else:
            problems += [
                f"'exercised_by' names '{program}', which is no workload"
                for program in tuning.exercised_by
                if program not in checkers()
            ]
            for problem in check(tuning, request.plan, topology, rt_runtime_us):
                line = f"{problem.text}. {problem.hint}"
                (problems if problem.refused else warnings).append(line)
        results.append(
            {
                "tuning": name,
                "valid": not problems,
                "problems": problems,
                "lacking": lacking,
                "warnings": warnings,
            }
        )
    return results
