"""Make a study with factors one that has only the axes that every study has."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from labctl.base.errors import UsageError
from labctl.store.records.factor_record import base_of
from labctl.study.combine import JOINT
from labctl.study.factors import Axes, expand, only_workloads
from labctl.study.programs import Programs

if TYPE_CHECKING:
    from labctl.study.study import Study

NATIVE = "native"
"""Beginning of the names of arms without a guest."""


def with_factors(study: Study, programs: Programs, named: Collection[str]) -> Study:
    """Return the study whose axes are those that its factors make. `named`: the workloads that were
    asked for, some of which may be single cells.

    Raises UsageError as `expand`, and for parameters that don't go together.
    """
    roles = study.roles
    found = expand(
        study.declared,
        Axes(
            tunings=study.tunings,
            single=frozenset(
                name
                for name in study.tunings
                if name in (roles.control, roles.handicap) or name.partition(JOINT)[0] == NATIVE
            ),
            baseline=roles.baseline,
            workloads={name: workload.parameters for name, workload in study.workloads.items()},
            conditions=study.conditions,
        ),
    )
    if any(base_of(name) != name for name in named):
        found = only_workloads(found, named)
    workloads = {}
    for name, (base, parameters) in found.workloads.items():
        of = study.workloads[base]
        try:
            checked = programs.of(of).check_parameters(parameters)
        except UsageError as error:
            raise UsageError(f"workload '{name}': {error.message}", hint=error.hint) from error
        workloads[name] = replace(of, parameters=dict(checked))
    made = {
        base: [name for name, (of, _) in found.workloads.items() if of == base]
        for base in study.workloads
    }
    return replace(
        study,
        tunings=tuple(found.tunings),
        workloads=workloads,
        conditions=found.conditions,
        factorial=found.factorial,
        exercises={
            tuning: tuple(name for base in study.exercises[arm] for name in made[base])
            for tuning, arm in found.tunings.items()
            if arm in study.exercises
        },
        requires={
            tuning: study.requires[arm]
            for tuning, arm in found.tunings.items()
            if arm in study.requires
        },
    )
