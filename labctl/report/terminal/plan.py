"""Show a plan before anything runs: what would be measured, how often, and what this host skips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from labctl.analysis.foresight import Foreseen
from labctl.analysis.skipped import skipped
from labctl.base.stopping import stopping_of
from labctl.base.wording import counted, duration, metric_title, size
from labctl.report.parts import bare_table, skipped_table, text


def plan_table(plan: Mapping[str, Any], foreseen: Sequence[Foreseen]) -> RenderableType:
    """Return a plan (`Plan.to_json()`), and what it will be able to exclude, in 80 columns."""
    trials = plan["trials"]
    quick = ", quick" if plan["quick"] else ""
    guest = plan["guest"]
    most = "at most " if plan.get("stopping") else ""
    head = [
        f"{plan['study']}{quick}: {plan['title']}",
        f"{most}{counted(len(trials), 'trial')}: {counted(plan['blocks'], 'block')} over "
        f"{counted(plan['boots'], 'boot')}, each with {counted(len(plan['tunings']), 'arm')}, "
        f"{counted(len(plan['workloads']), 'workload')}, "
        f"{counted(len(plan['conditions']), 'condition')} ({', '.join(plan['conditions'])})",
        *_spares(plan),
        *_rule(plan),
        f"guest: image {guest['image']}, {guest['vcpus']} vCPU(s), {guest['memory_mib']} MiB",
        *([f"collects: {plan['collect']}"] if "collect" in plan else []),
        f"seed {plan['seed']}, plan {plan['digest'][:12]}",
    ]
    measured = sum(plan["workloads"][trial["cell"]["workload"]]["duration_s"] for trial in trials)
    tail = (
        f"Measuring takes {most}{duration(measured)}. Warm-ups, restores, boots and repeats come "
        "on top: with trials of a few seconds they take as long again. "
        "--json prints the whole plan."
    )
    parts: list[RenderableType] = [text("\n".join(head)), Text(), _arms(plan), Text()]
    parts += [_workloads(plan), Text(), *_foreseen(plan, foreseen)]
    if left_out := skipped(plan):
        parts += [Text(), skipped_table(left_out)]
    return Group(*parts, text(f"\n{tail}"))


def _spares(plan: Mapping[str, Any]) -> list[str]:
    count = plan.get("spare_blocks", 0)
    each = "with a boot of its own" if count == 1 else "each with a boot of its own"
    if count and plan["boots"] == 1 < plan["blocks"]:
        each = "from the same boot"
    said = f"up to {counted(count, 'spare block')}, {each}, where one of those loses a value"
    return [said] if count else []


def _rule(plan: Mapping[str, Any]) -> list[str]:
    """By what the run may end early; [] of a plan with a fixed number of blocks."""
    rule = stopping_of(plan)
    return [f"it {rule.words}"] if rule else []


def _arms(plan: Mapping[str, Any]) -> RenderableType:
    table = bare_table("Arms")
    table.add_column("arm", min_width=9, max_width=30, overflow="fold")
    table.add_column("part")
    table.add_column("starts")
    roles = {plan.get(role): role for role in ("native", "baseline", "control", "handicap")}
    for name, tuning in plan["tunings"].items():
        native = tuning["kind"] == "native"
        part = roles.get(name) or ("native twin" if native else "tuning")
        starts = "in the image's tree" if native else "restored" if tuning["restore"] else "booted"
        table.add_row(text(name), text(part), text(starts))
    return table


def _workloads(plan: Mapping[str, Any]) -> RenderableType:
    table = bare_table("Workloads")
    table.add_column("workload", max_width=18, overflow="fold")
    table.add_column("program and parameters", overflow="fold")
    table.add_column("seconds", justify="right")
    table.add_column("decides")
    table.add_column("threshold", justify="right")
    for name, workload in plan["workloads"].items():
        given = " ".join(f"{key}={value}" for key, value in workload["parameters"].items())
        table.add_row(
            text(name),
            text(f"{workload['program']} {given}".strip()),
            text(f"{workload['duration_s']:g}"),
            text(metric_title(workload["primary"])),
            text(size(workload["margin"])),
        )
    return table


def _foreseen(plan: Mapping[str, Any], foreseen: Sequence[Foreseen]) -> list[RenderableType]:
    if not foreseen:
        return [text(_NO_RECOMMENDATION)]
    then = next((item.earlier.run for item in foreseen if item.earlier), None)
    table = bare_table("A loss that a recommendation must exclude")
    table.add_column("workload", max_width=18, overflow="fold")
    table.add_column("loss", justify="right")
    table.add_column("excluded up to a spread of", justify="right")
    if then is not None:
        table.add_column(f"spread in {then}", max_width=24, overflow="fold")
        table.add_column("excludes", justify="right")
    for workload, places in groupby(foreseen, key=lambda item: item.workload):
        found = list(places)
        row = [workload, size(found[0].no_worse_than), _spread(found[0].spread)]
        if then is not None:
            row += _earlier(found)
        table.add_row(*map(text, row))
    boots = counted(plan["boots"], "boot")
    return [
        table,
        text(
            "Spread: the standard deviation of the effects of blocks. Up to there "
            f"{plan['blocks']} blocks over {boots} exclude the loss in 80 % of runs, for a tuning "
            "that does nothing there; where boots differ, it takes less."
        ),
    ]


_NO_RECOMMENDATION = (
    "No recommendation can come of this plan: it takes ten blocks, a control and a tuning on trial."
)


def _earlier(places: Sequence[Foreseen]) -> list[str]:
    """Return the widest spread that an earlier run had in a condition, and what the plan would
    exclude there."""
    known = [(item.condition, item.earlier) for item in places if item.earlier]
    if not known:
        return ["", ""]
    condition, widest = max(known, key=lambda pair: pair[1].spread)
    return [f"{_spread(widest.spread)} ({condition})", size(widest.excludes)]


def _spread(deviation: float) -> str:
    return size(math.expm1(deviation))


def foreseen_json(item: Foreseen) -> dict[str, Any]:
    """Return what is foreseen of a place, as plain JSON values; docs/report-schema.md has its
    keys."""
    return asdict(item)
