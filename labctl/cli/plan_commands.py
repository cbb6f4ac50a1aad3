"""Gather the commands of a plan that no file of labctl's own declares: they are code of others."""

from __future__ import annotations

from typing import Any

from labctl.base.paths import shipped_data
from labctl.cli.condition_facts import neighbour_commands
from labctl.cli.workload_facts import commands_json, example_of
from labctl.study.plan import Plan
from labctl.workloads.registry import Declared, Programs, checkers, workload_of


def commands_of_others(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return by workload and side what runs, and as whom, of programs that labctl doesn't bring:
    what a file or a command line declares is code."""
    known = checkers()
    kinds = {str(tuning.kind) for tuning in plan.tunings.values()}
    found: dict[str, dict[str, Any]] = {}
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


def _commands_beside(plan: Plan) -> dict[str, dict[str, Any]]:
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
