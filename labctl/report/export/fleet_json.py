"""Write a fleet's judgement for programs. docs/fleet-report.md documents its keys."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from labctl.analysis.fleet.fleet_model import (
    FactSplit,
    FleetEffect,
    FleetJudgement,
    FleetLevel,
    GroupAnswer,
    GroupEffect,
    Place,
    Point,
)
from labctl.analysis.hosts import Pooled

SCHEMA = 1
"""Raised when a key goes or changes its meaning; new keys leave it as it is."""
_POOLED = ("mean", "low", "high", "prediction_low", "prediction_high", "tau", "i2")


def fleet_json(judged: FleetJudgement) -> dict[str, Any]:
    """Return plain JSON values; effects as ratios or differences, levels in their unit."""
    return {
        "schema": SCHEMA,
        "hosts": judged.hosts,
        "measured": judged.measured,
        "alpha": judged.alpha,
        "confidence": judged.confidence,
        "facts": {fact: dict(values) for fact, values in judged.facts.items()},
        "warnings": list(judged.warnings),
        "answers": [group_answer_json(answer) for answer in judged.answers],
        "effects": [_effect(one) for one in judged.effects],
        "levels": [_level(one) for one in judged.levels],
        "states": [asdict(state) for state in judged.states],
    }


def group_answer_json(of: GroupAnswer) -> dict[str, Any]:
    """Return one group's answer as plain JSON values."""
    return {
        "tuning": of.tuning,
        "accelerator": of.accelerator,
        "group": of.group,
        "by": of.by,
        "hosts": of.hosts,
        "code": str(of.code),
        "why": of.why,
    }


def _effect(one: FleetEffect) -> dict[str, Any]:
    return {
        **asdict(one.place),
        "margin": one.margin,
        "no_worse_than": one.no_worse_than,
        **_group(one.place, one.whole),
        "differ": one.differ if one.p is not None else None,
        "differ_p": one.p,
        "differ_why": one.why_no_test or None,
        "groups": [_split(one.place, split) for split in one.splits],
        "by_host": [_point(one.place, point) for point in one.points],
        "left_out": [{"host": host, "why": why} for host, why in one.left_out],
    }


def _group(place: Place, group: GroupEffect) -> dict[str, Any]:
    return {**pooled_json(place, group.pooled, len(group.hosts)), "why": group.why or None}


def pooled_json(place: Place, found: Pooled | None, hosts: int | None = None) -> dict[str, Any]:
    """Return a pooled effect as plain JSON values, each null where there is none. `hosts`: of the
    group, where it isn't said by the effect."""
    if found is None:
        return {"hosts": hosts, **dict.fromkeys(_POOLED)}
    values = (found.mean, found.low, found.high, found.new_low, found.new_high)
    shown = [_shown(place, value) for value in values]
    count = found.hosts if hosts is None else hosts
    return {"hosts": count, **dict(zip(_POOLED, (*shown, found.tau, found.share), strict=True))}


def _split(place: Place, split: FactSplit) -> dict[str, Any]:
    return {
        "fact": split.fact,
        "p": split.p,
        "differs": split.differs if split.p is not None else None,
        "why": split.why or None,
        "groups": [
            {"group": group.group, **_group(place, group), "members": list(group.hosts)}
            for group in split.groups
        ],
    }


def _level(one: FleetLevel) -> dict[str, Any]:
    return {
        **asdict(one.place),
        "group": one.group,
        "typical": _shown(one.place, one.typical),
        "why": one.why or None,
        "by_host": [_point(one.place, point) for point in one.points],
    }


def _point(place: Place, point: Point) -> dict[str, Any]:
    return {
        "host": point.host,
        "estimate": _shown(place, point.estimate),
        "low": _shown(place, point.low),
        "high": _shown(place, point.high),
        "units": point.units,
        "boots": point.boots,
        "verdict": point.verdict,
        "distance": point.distance,
        "p": point.p,
        "apart": point.is_apart,
    }


def _shown(place: Place, value: float) -> float | None:
    """Return a value off the scale of effects; None of one that no JSON number holds."""
    try:
        found = math.exp(value) if place.is_log else value
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
