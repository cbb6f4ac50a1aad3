"""Read the plan's declarations: arms, twins, primary metrics, and the family of tests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from labctl.analysis.effects.cells import Cell, Scenario, cell_of
from labctl.analysis.verdicts.looks import before_first_look, share_of
from labctl.base.stopping import Stopping
from labctl.store.records.plan_record import PlanRecord
from labctl.store.run_folder import LoadedRun

ALPHA = 0.05
"""Chance of any false verdict in a run (METHOD 19), and of a false interval elsewhere."""

_KINDS = ("guest", "native")

UNSAFE = "unsafe"
"""Durability of a disk that ignores flushes."""

NATIVE = "native"
"""The tuning without a guest and without placement (the design's words)."""


@dataclass(frozen=True, slots=True)
class Primary:
    """Describe the metric that decides under a workload; `margin`: the practical threshold, a share
    of baseline (0.05) for ratios, in the metric's unit for differences. `no_worse_than`: the loss
    that a recommendation must exclude, in the same scale."""

    metric: str
    margin: float
    no_worse_than: float


@dataclass(frozen=True, kw_only=True)  # no slots: a cached property needs a place to lie
class Design:
    baseline: str | None
    control: str | None
    known_loss: str | None
    candidates: tuple[str, ...]
    """Guest tunings that may be recommended: not baseline, control or known loss, nor arms that
    only check a restored twin."""
    natives: tuple[str, ...]
    twins: Mapping[str, str]
    restored_as: Mapping[str, str]
    """Tunings whose guests boot, each to the tuning that differs only in being restored."""
    durabilities: Mapping[str, str]
    """Durability of each guest's disk (METHOD 10), if the plan has it."""
    on_disk: frozenset[str]
    """Workloads that use the data disk."""
    primaries: Mapping[str, Primary]
    planned_cells: frozenset[Cell]
    places: tuple[Scenario, ...]
    problems: tuple[str, ...]
    rule: Stopping | None = None
    """The rule by which the run may end (METHOD 22)."""
    before_look: bool = False
    """True if the run reached none of the looks that its plan declares: nothing is decided yet."""

    @property
    def native(self) -> str | None:
        return NATIVE if NATIVE in self.natives else None

    @cached_property
    def family(self) -> int:
        """Return m, the number of planned tests that decide. A tuning that later fails to run still
        counts, so that events in the run can't narrow the intervals of the others."""
        return sum(
            cell.tuning in self.candidates
            and cell.place.workload in self.primaries
            and self.same_durability(cell.tuning, cell.place)
            for cell in self.planned_cells
        )

    def same_durability(self, tuning: str, place: Scenario) -> bool:
        """Return whether a tuning may be judged in a place: with another durability, faster is not
        better, and a disk that ignores flushes is never better than one that does not."""
        ours, theirs = self.durabilities.get(tuning), self.durabilities.get(self.baseline or "")
        return self.may_compare(ours, theirs, place)

    def may_compare(self, ours: str | None, theirs: str | None, place: Scenario) -> bool:
        """Compare two durabilities; None means unknown, as for native arms."""
        if ours is None or theirs is None or ours == theirs:
            return True
        return place.workload not in self.on_disk and ours != UNSAFE

    @property
    def harmless_in(self) -> tuple[Scenario, ...]:
        """Return the places where a recommendation must be shown to do no harm (METHOD 25): each
        with a primary metric and planned guests, in the order of the plan's workloads."""
        guests = {self.baseline, *self.candidates}
        planned = {cell.place for cell in self.planned_cells if cell.tuning in guests}
        there = (place for place in self.places if place in planned)
        order = {workload: at for at, workload in enumerate(self.primaries)}
        return tuple(
            sorted((p for p in there if p.workload in order), key=lambda p: order[p.workload])
        )

    @cached_property
    def share(self) -> float:
        """Return the share of ALPHA that is left if a rule may end the run (METHOD 22)."""
        return share_of(self.rule, ALPHA / max(1, self.family))

    @property
    def level(self) -> float:
        """Return the family's level for one decision: at each look its share of ALPHA (METHOD
        22)."""
        return ALPHA * self.share

    @property
    def alpha(self) -> float:
        """Return the level of one primary comparison: level / m (Bonferroni; METHOD 19)."""
        return self.level / max(1, self.family)

    @property
    def control_alpha(self) -> float:
        """Return the level of the control's check at one place: the checks are a separate
        family."""
        checked = sum(place.workload in self.primaries for place in self.places)
        return self.level / max(1, checked)


def joint_level(a: Design, b: Design) -> float:
    """Return the level for comparing two runs that rules may have ended: their shares of ALPHA
    multiply, because each look of one run may meet each look of the other."""
    return ALPHA * a.share * b.share


def read_design(run: LoadedRun) -> Design:
    """Return the design of a run, with a sentence in `problems` for each gap of the plan."""
    plan = run.plan
    problems: list[str] = []
    tunings = plan.tunings
    cells = [cell_of(trial.cell) for trial in plan.trials]
    # Without a plan, the trials still show the places that were measured.
    cells += [cell_of(trial.record.cell) for trial in run.trials]
    known = list(dict.fromkeys(cell for cell in cells if cell is not None))
    roles = plan.baseline, plan.control, plan.handicap
    baseline, control, known_loss = (name if name in tunings else None for name in roles)
    if plan.is_lost:
        problems.append("The run has no plan, so it is unknown what to compare.")
    elif baseline is None:
        problems.append("The run has no baseline, so no tuning can be judged.")
    problems += _strangers(plan, known)
    guests = {name: arm for name, arm in tunings.items() if arm.kind == "guest"}
    restored_as = {name: arm.restored_as for name, arm in guests.items() if arm.restored_as}
    instruments = (baseline, control, known_loss, *restored_as)
    return Design(
        baseline=baseline,
        control=control,
        known_loss=known_loss,
        candidates=tuple(name for name in guests if name not in instruments),
        natives=tuple(name for name, arm in tunings.items() if arm.kind == "native"),
        twins={name: arm.twin for name, arm in guests.items() if arm.twin},
        restored_as=restored_as,
        durabilities={name: arm.durability for name, arm in guests.items() if arm.durability},
        on_disk=frozenset(name for name, item in plan.workloads.items() if item.uses_data_disk),
        primaries=_primaries(plan, problems),
        planned_cells=frozenset(known),
        places=tuple(dict.fromkeys(cell.place for cell in known)),
        problems=tuple(problems),
        rule=plan.rule,
        before_look=before_first_look(run),
    )


def _strangers(plan: PlanRecord, known: Sequence[Cell]) -> Iterator[str]:
    """Yield names and kinds in the plan that it does not define."""
    if plan.is_lost:
        return
    tunings = plan.tunings
    roles = {"baseline": plan.baseline, "control": plan.control, "handicap": plan.handicap}
    for role, named in roles.items():
        if named is not None and named not in tunings:
            yield f"The plan's {role} is '{named}', which is not one of its tunings."
    for name, arm in tunings.items():
        if arm.kind not in _KINDS:
            yield (
                f"Tuning '{name}' is of kind '{arm.kind}', expected {' or '.join(_KINDS)}: "
                "it is not judged."
            )
        if (other := arm.restored_as) is not None and other not in tunings:
            yield f"Tuning '{name}' belongs to '{other}', which is not one of the plan's tunings."
    for name in dict.fromkeys(cell.tuning for cell in known if cell.tuning not in tunings):
        yield f"Trials of '{name}' are not judged: the plan has no such tuning."


def _primaries(plan: PlanRecord, problems: list[str]) -> dict[str, Primary]:
    primaries = {}
    measured = (item for item in plan.workloads.items() if item[0] not in plan.stand_ins)
    for workload, entry in measured:
        metric, margin = entry.primary, entry.margin
        if not metric or margin is None or not 0 < margin < math.inf:
            problems.append(
                f"Workload '{workload}' declares no primary metric with a threshold above "
                "0, so nothing is judged under it."
            )
        elif metric.startswith("ipc{") and "source=calibrated" in metric:
            problems.append(
                f"Workload '{workload}' declares calibrated IPC as primary: it is the "
                "throughput in another unit, so it gets no separate verdict."
            )
        else:
            loss = entry.no_worse_than
            if loss is not None and not 0 < loss < math.inf:
                problems.append(
                    f"Workload '{workload}' declares 'no_worse_than', but not a loss above "
                    "0: a recommendation must exclude a loss as large as its threshold."
                )
                loss = None
            primaries[workload] = Primary(metric, float(margin), float(loss or margin))
    return primaries
