"""Show a plan before anything runs: trials, duration, and the parts that this host skips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from labctl.analysis.answer.words import listed
from labctl.analysis.effects.cells import skipped
from labctl.analysis.foresight import Foreseen
from labctl.analysis.times import ExpectedTime
from labctl.base.notation import size
from labctl.base.wording import counted, duration, metric_title, roughly
from labctl.report.parts import bare_table, skipped_table, text
from labctl.report.published_parts import expected_table
from labctl.report.terminal.factor_tables import factor_table
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import DomainUsed


def plan_table(
    plan: PlanRecord,
    foreseen: Sequence[Foreseen],
    expected: ExpectedTime,
    own: DomainUsed | None = None,
) -> RenderableType:
    """Return a plan, its duration and the effects that it can exclude, in 80 columns. `own`: the
    administrator's VM that guests copy."""
    quick = ", quick" if plan.quick else ""
    most = "at most " if plan.stopping else ""
    head = [
        f"{plan.study}{quick}: {plan.title}",
        f"{most}{counted(len(plan.trials), 'trial')}: {counted(plan.blocks or 0, 'block')} over "
        f"{counted(plan.boots or 0, 'boot')}, each with {counted(len(plan.tunings), 'arm')}, "
        f"{counted(len(plan.workloads.keys() - plan.stand_ins), 'workload')}, "
        f"{counted(len(plan.conditions), 'condition')} ({', '.join(plan.conditions)})",
        *_spares(plan),
        *_rule(plan),
        f"guest: {_guest(plan, own)}, {plan.guest.vcpus} vCPU(s), {plan.guest.memory_mib} MiB"
        + (f", {plan.guest.data_disks} data disks" if plan.guest.data_disks else ""),
        *([f"collects: {plan.collect}"] if plan.collect else []),
        f"seed {plan.seed}, plan {str(plan.digest)[:12]}",
    ]
    tail = f"{_takes(plan, expected)} --json prints the whole plan."
    parts: list[RenderableType] = [text("\n".join(head)), Text(), _arms(plan), Text()]
    parts += [
        _workloads(plan),
        Text(),
        *_neighbours(plan),
        *factor_table(plan),
        *_foreseen(plan, foreseen),
    ]
    parts += expected_table(plan)
    if left_out := skipped(plan):
        parts += [Text(), skipped_table(left_out)]
    return Group(*parts, text(f"\n{tail}"))


def _guest(plan: PlanRecord, own: DomainUsed | None) -> str:
    if own is None:
        return f"image {plan.guest.image}"
    asked = "" if own.asked == own.name else f" ({own.asked})"
    return f"a copy of your VM {own.name}{asked}"


def _takes(plan: PlanRecord, expected: ExpectedTime) -> str:
    """Return the run's duration, in sentences."""
    whose = (
        "run " + expected.paced_by if expected.paced_by else "the recorded example on another host"
    )
    extra = "spare blocks and repeats are" if plan.spare_blocks else "repeats are"
    about = f"about {roughly(expected.total)}"
    if plan.stopping:
        about = f"at most {about}"
    elif expected.unpaced:
        about = f"at least {about}"
    if expected.first_look is not None:
        about = f"about {roughly(expected.first_look)} to the first look, {about}"
    unlike = ""
    if expected.unpaced:
        unlike = f", which did not have {listed(expected.unpaced)}: the run may take longer"
    return (
        f"Expected time: {about} ({duration(expected.windows)} measured). The times of warm-ups, "
        f"restores and boots are from {whose}{unlike}; {extra} extra."
    )


def _spares(plan: PlanRecord) -> list[str]:
    count = plan.spare_blocks
    each = "with its own boot" if count == 1 else "each with its own boot"
    if count and plan.boots == 1 < (plan.blocks or 0):
        each = "from the same boot"
    said = f"up to {counted(count, 'spare block')}, {each}, if a block loses a value"
    return [said] if count else []


def _rule(plan: PlanRecord) -> list[str]:
    """Return the rule by which the run may end early; [] for a fixed number of blocks."""
    return [f"it {plan.rule.words}"] if plan.rule else []


def _arms(plan: PlanRecord) -> RenderableType:
    table = bare_table("Arms")
    table.add_column("arm", min_width=9, max_width=30, overflow="fold")
    table.add_column("part")
    table.add_column("starts")
    roles = {plan.native: "native", plan.baseline: "baseline", plan.control: "A/A control"}
    roles[plan.handicap] = "known-loss arm"
    for name, arm in plan.tunings.items():
        native = arm.kind == "native"
        part = roles.get(name) or ("native twin" if native else "tuning")
        starts = "chroot" if native else "restored" if arm.restore else "booted"
        table.add_row(text(name), text(part), text(starts))
    return table


def _neighbours(plan: PlanRecord) -> list[RenderableType]:
    if not plan.neighbours:
        return []
    table = bare_table("Conditions")
    table.add_column("condition", max_width=18, overflow="fold")
    table.add_column("neighbours", overflow="fold")
    for name in plan.conditions:
        kinds = plan.neighbours[name].neighbours if name in plan.neighbours else ()
        table.add_row(text(name), text("; ".join(one.words for one in kinds) or "none"))
    return [table, Text()]


def _workloads(plan: PlanRecord) -> RenderableType:
    table = bare_table("Workloads")
    table.add_column("workload", max_width=18, overflow="fold")
    table.add_column("program and parameters", overflow="fold")
    table.add_column("seconds", justify="right")
    table.add_column("decides")
    table.add_column("threshold", justify="right")
    for name, workload in plan.workloads.items():
        given = " ".join(f"{key}={value}" for key, value in workload.parameters.items())
        table.add_row(
            text(name),
            text(f"{workload.program} {given}".strip()),
            text(f"{workload.duration_s:g}"),
            text(metric_title(workload.primary or "")),
            text(size(workload.margin or 0)),
        )
    return table


def _foreseen(plan: PlanRecord, foreseen: Sequence[Foreseen]) -> list[RenderableType]:
    if not foreseen:
        return [text(_NO_RECOMMENDATION)]
    then = next((item.earlier.run for item in foreseen if item.earlier), None)
    table = bare_table("Losses that a recommendation must exclude")
    table.add_column("workload", max_width=18, overflow="fold")
    table.add_column("loss", justify="right")
    table.add_column("if the spread is at most", justify="right")
    if then is not None:
        table.add_column(f"spread in {then}", max_width=24, overflow="fold")
        table.add_column("excludes", justify="right")
    for workload, places in groupby(foreseen, key=lambda item: item.workload):
        found = list(places)
        row = [workload, size(found[0].no_worse_than), _spread(found[0].spread)]
        if then is not None:
            row += _earlier(found)
        table.add_row(*map(text, row))
    boots = counted(plan.boots or 0, "boot")
    return [
        table,
        text(
            "Spread: the standard deviation of the effects of blocks. Up to this spread, "
            f"{plan.blocks} blocks over {boots} exclude the loss in 80 % of runs, for a "
            "tuning without effect; if boots differ, the spread must be smaller."
        ),
    ]


_NO_RECOMMENDATION = (
    "This plan cannot give a recommendation, which needs ten blocks, an A/A control and a "
    "tuning to test."
)


def _earlier(places: Sequence[Foreseen]) -> list[str]:
    """Return the widest spread of an earlier run in a condition, and the effects that the plan
    would exclude there."""
    known = [(item.condition, item.earlier) for item in places if item.earlier]
    if not known:
        return ["", ""]
    condition, widest = max(known, key=lambda pair: pair[1].spread)
    return [f"{_spread(widest.spread)} ({condition})", size(widest.excludes)]


def _spread(deviation: float) -> str:
    return size(math.expm1(deviation))


def foreseen_json(item: Foreseen) -> dict[str, object]:
    """Return the forecast for a place as plain JSON values; docs/report-schema.md has the keys."""
    return asdict(item)
