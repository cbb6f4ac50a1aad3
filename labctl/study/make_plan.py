"""Make plans: a study made concrete for one host and one seed. Pure; the text is the same each
time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace

from labctl.base.errors import HostError, UsageError, nearest
from labctl.base.tuning import Kind, Tuning
from labctl.store.records.factor_record import Factorial, base_of
from labctl.store.records.plan_record import (
    PlannedTrial,
    PublishedSource,
    ReportTable,
)
from labctl.study.factors import with_boots
from labctl.study.order import boot_of, cells_of
from labctl.study.plan import MOST_TRIALS, Plan, PlannedTuning
from labctl.study.study import Roles, Study
from labctl.study.tunings import does, tuning_digest


def make_plan(
    study: Study,
    tunings: Mapping[str, Tuning],
    *,
    seed: int,
    host_digest: str,
    skipped: Mapping[str, str] | None = None,
    skipped_workloads: Mapping[str, Mapping[str, str]] | None = None,
    skipped_conditions: Mapping[str, str] | None = None,
    durabilities: Mapping[str, str] | None = None,
) -> Plan:
    """Return the plan of a study. `tunings` holds each that the study names.

    `host_digest` stands for the host's facts; `skipped` maps tunings that this host can't have to
    the reason: they stay out, and so do `skipped_conditions`, and `skipped_workloads` on the side
    that each names; `durabilities` maps guests to their disks' durability where the tuning doesn't
    say all of it.
    Raises HostError when a skipped tuning has a role, or no workload is left; UsageError when a
    role's tuning isn't what the role asks for.
    """
    skipped = {name: why for name, why in (skipped or {}).items() if name in study.tunings}
    for role, name in asdict(study.roles).items():
        if name in skipped:
            raise HostError(
                f"the study needs its {role} '{name}', but this host can't run it: {skipped[name]}"
            )
    _check_roles(study.roles, tunings)
    planned = {name: tunings[name] for name in study.tunings if name not in skipped}
    _check_stand_ins(study, planned)
    workloads = study.workloads_left(
        {str(tuning.kind) for tuning in planned.values()}, skipped_workloads or {}
    )
    unfit = skipped_conditions or {}
    conditions = study.conditions_left(unfit)
    plan = Plan(
        study=study.name,
        title=study.title,
        study_digest=study.digest,
        host_digest=host_digest,
        seed=seed,
        quick=study.quick,
        roles=study.roles,
        tunings={
            name: PlannedTuning(
                kind=tuning.kind,
                twin=tuning.twin if tuning.twin in planned else None,
                restore=tuning.restore,
                description=tuning.description,
                exercised_by=study.exercising(tuning, workloads),
                digest=tuning_digest(tuning),
                durability=(durabilities or {}).get(name, tuning.disk.durability)
                if tuning.kind is Kind.GUEST
                else None,
                restored_as=_restored_as(tuning, planned, study.roles.control),
                workload=tuning.workload,
            )
            for name, tuning in planned.items()
        },
        skipped=skipped,
        workloads=workloads,
        conditions=conditions,
        neighbours={name: one for name, one in study.neighbours.items() if name in conditions},
        skipped_conditions=unfit,
        blocks=0,
        blocks_per_boot=study.blocks_per_boot,
        guest=study.guest,
        limits=study.limits,
        trials=(),
        stopping=study.stopping,
        published=tuple(_of_study(source, study) for source in study.published),
        tables=tuple(filter(None, (_table_of(table, study) for table in study.tables))),
        expects=study.expects,
        collect=study.collect,
        skipped_workloads=skipped_workloads or {},
        factorial=_factorial(study, planned, workloads, conditions),
        heatmaps=study.heatmaps,
        define=study.define,
        ab=study.ab,
    )
    return with_spares(extend(plan, study.blocks), study.spare_blocks)


def _factorial(
    study: Study,
    tunings: Mapping[str, Tuning],
    workloads: Collection[str],
    conditions: Collection[str],
) -> Factorial | None:
    if study.factorial is None:
        return None
    found = with_boots(study.factorial, tunings)
    cells = tuple(
        cell for cell in found.cells if cell.workload in workloads and cell.condition in conditions
    )
    return replace(found, cells=cells)


def _of_study(source: PublishedSource, study: Study) -> PublishedSource:
    """Leave out the results that a quick selection or the command line deselected."""
    kept = (
        item
        for item in source.results
        if {item.tuning, item.against} <= set(study.tunings)
        and {item.workload, item.against_workload} <= {None, *study.workloads}
        and item.condition in (None, *study.conditions)
    )
    return replace(source, results=tuple(kept))


def _is_varied(factor: str, study: Study) -> bool:
    """Return whether a selection has left a factor a level to compare with its first."""
    known = study.factorial.factors if study.factorial is not None else {}
    return factor in known and len(known[factor].levels) > 1


def _table_of(table: ReportTable, study: Study) -> ReportTable | None:
    """Leave out what a quick selection or the command line deselected; None where nothing is
    left."""
    rows = [row for row in table.rows if {row.tuning, row.against} <= {None, *study.tunings}]
    workloads = table.workloads
    if workloads is not None:
        workloads = tuple(name for name in study.workloads if {name, base_of(name)} & {*workloads})
    if not rows or workloads == () or (table.factor and not _is_varied(table.factor, study)):
        return None
    return replace(table, rows=tuple(rows), workloads=workloads)


def extend(plan: Plan, blocks: int) -> Plan:
    """Return the plan with as many blocks as `blocks`: trials are appended, none before them
    changes. As many spares come after them as there were.

    Raises UsageError when it has more already, and for more than MOST_TRIALS.
    """
    if blocks < plan.blocks:
        raise UsageError(
            f"the plan has {plan.blocks} blocks and cannot be reduced to {blocks}",
            hint=f"Give at least {plan.blocks}.",
        )
    each = len(plan.tunings) * len(plan.measured) * len(plan.conditions)
    if plan.factorial is not None:
        each = len(plan.factorial.cells)
    if each * blocks > MOST_TRIALS:
        raise UsageError(
            f"the plan would have {each * blocks} trials (limit: {MOST_TRIALS})",
            hint=f"A block has {each} trials: use fewer tunings, workloads or blocks.",
        )
    trials = list(plan.trials)
    for block in range(plan.blocks + 1, blocks + 1):
        boot = boot_of(block, plan.blocks_per_boot)
        trials += trials_of(plan, block, boot=boot, first=len(trials) + 1)
    longer = replace(plan, blocks=blocks, trials=tuple(trials), spares=())
    return with_spares(longer, len(plan.spare_blocks))


def with_spares(plan: Plan, blocks: int) -> Plan:
    """Return the plan with so many spare blocks, numbered on from its last one and ordered by the
    same seed. Each has a boot of its own, but where all planned blocks share one: two boots would
    leave the intervals one degree of freedom (docs/decisions/boots-and-blocks.md)."""
    share_one = plan.boots == 1 < plan.blocks
    spares: list[PlannedTrial] = []
    for number in range(1, blocks + 1):
        boot = 1 if share_one else plan.boots + number
        first = len(plan.trials) + len(spares) + 1
        spares += trials_of(plan, plan.blocks + number, boot=boot, first=first)
    return replace(plan, spares=tuple(spares))


def trials_of(plan: Plan, block: int, *, boot: int, first: int) -> list[PlannedTrial]:
    """Return the trials of one block, in order, numbered on from `first`."""
    cells = cells_of(
        block,
        seed=plan.seed,
        kinds={name: str(tuning.kind) for name, tuning in plan.tunings.items()},
        workloads=plan.measured,
        conditions=plan.conditions,
        skipped=plan.skipped_workloads,
        only=plan.cells,
    )
    return [
        PlannedTrial(number=number, block=block, boot=boot, position=position, cell=cell)
        for number, (position, cell) in enumerate(cells, start=first)
    ]


def _check_roles(roles: Roles, tunings: Mapping[str, Tuning]) -> None:
    baseline = tunings[roles.baseline]
    if baseline.kind is not Kind.GUEST:
        raise UsageError(f"the baseline '{baseline.name}' is not a guest")
    if roles.native is not None and tunings[roles.native].kind is not Kind.NATIVE:
        raise UsageError(f"'{roles.native}' has the role 'native', but is a guest")
    if roles.handicap is not None and not tunings[roles.handicap].handicap_percent > 0:
        raise UsageError(
            f"the known-loss arm '{roles.handicap}' has no loss to detect",
            hint="Add 'handicap_percent: 5' to it.",
        )
    if roles.control is not None:
        control = tunings[roles.control]
        if tuning_digest(replace(control, name=baseline.name)) != tuning_digest(baseline):
            raise UsageError(
                f"the A/A control '{control.name}' differs from the baseline '{baseline.name}'",
                hint=f"Write only 'extends: {baseline.name}' in it.",
            )


def _check_stand_ins(study: Study, tunings: Mapping[str, Tuning]) -> None:
    """Raise UsageError for a tuning that runs a workload which the study does not have, or in a
    study with factors."""
    for tuning in (one for one in tunings.values() if one.workload is not None):
        if tuning.workload not in study.workloads:
            raise UsageError(
                f"tuning '{tuning.name}' runs the workload '{tuning.workload}', which is not one "
                "of the study's",
                hint=nearest(tuning.workload or "", study.workloads),
            )
        if study.factorial is not None:
            raise UsageError(
                f"tuning '{tuning.name}' runs another workload, but the study varies factors",
                hint="Remove the key 'workload' of the tuning, or the study's factors.",
            )
    if {tuning.workload for tuning in tunings.values()} >= {*study.workloads}:
        raise UsageError("each workload of the study only runs in place of another")


def _restored_as(tuning: Tuning, planned: Mapping[str, Tuning], control: str | None) -> str | None:
    if tuning.restore or tuning.kind is not Kind.GUEST:
        return None
    same = (
        name
        for name, other in planned.items()
        if name != control and other.restore and does(other) == does(tuning)
    )
    return next(same, None)
