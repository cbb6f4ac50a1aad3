"""Gather what `labctl condition` and a plan show of neighbours."""

from __future__ import annotations

from typing import Any

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import LabctlError
from labctl.cli.workload_facts import user_of
from labctl.domain.pinning.pin_plan import default_vcpus, pin_plan
from labctl.host import cgroups
from labctl.host.topology import read_topology
from labctl.run.commands.try_run import commands_of
from labctl.run.planning.conditions_here import cpus_of, why_not
from labctl.run.planning.planned_conditions import beside_of
from labctl.study.condition import Condition, Neighbour

_EXAMPLE: CpuSet = frozenset({0})
"""CPUs of a command that is shown without a host."""


def facts_of(condition: Condition) -> dict[str, Any]:
    """Return all that is known of a condition, as JSON has it. Raises UsageError for commands that
    can't be made."""
    return {
        "name": condition.name,
        "description": condition.description,
        "neighbours": [
            {
                "words": one.record().words,
                "here": _here(one),
                **one.to_json(),
                **neighbour_commands(one),
            }
            for one in condition.neighbours
        ],
    }


def neighbour_commands(neighbour: Neighbour) -> dict[str, Any]:
    """Return what a neighbour runs, and as whom."""
    beside = beside_of(neighbour)
    command = beside.command(_EXAMPLE)
    commands = commands_of(command, beside.servers(_EXAMPLE))
    return {"user": user_of(command), "commands": commands}


def _here(neighbour: Neighbour) -> str:
    """Return where neighbours would run on this host, or why they can't."""
    try:
        topology = read_topology()
        pins = pin_plan(topology, default_vcpus(topology), iothreads=1)
    except LabctlError as error:
        return error.message
    if why := why_not(neighbour, topology, pins, cgroups.detect()):
        return f"not possible: {why}"
    return f"CPUs {format_cpus(cpus_of(neighbour, topology, pins))}"
