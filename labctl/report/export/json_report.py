"""Write runs, density runs and fleets as JSON (docs/report-schema.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from labctl.analysis.answer.json import ab_json, answer_json, comparison_json, factors_json
from labctl.analysis.answer.view import View
from labctl.analysis.density import Density, Fitting
from labctl.analysis.hosts.changes import FleetChange
from labctl.analysis.hosts.fleet import (
    FactSplit,
    FleetEffect,
    FleetJudgement,
    FleetLevel,
    GroupAnswer,
    GroupEffect,
    Place,
    Point,
)
from labctl.analysis.hosts.pool import Pooled
from labctl.analysis.model import (
    Added,
    AnswerCode,
    Attempts,
    Diagnostic,
    Judgement,
    Level,
    RunCheck,
    Standing,
)
from labctl.analysis.times import WallTime, level_of, wall_time
from labctl.base.json import fields_of, without_controls
from labctl.report.arm_table import arm_tables, tables_as_json
from labctl.report.density_words import remarks, test_words
from labctl.report.price_list import predicted_json
from labctl.report.published_parts import published_json
from labctl.report.study_parts import tables_json
from labctl.store.density_record import DensityRecord
from labctl.store.run_folder import LoadedRun

# Write the report for programs. docs/report-schema.md documents its shape.


SCHEMA = 3
"""Raised when a key is removed or changes its meaning; new keys do not raise it."""


def report_json(run: LoadedRun, judgement: Judgement) -> dict[str, object]:
    """Return the report as plain JSON values. A number that is not finite is null, never NaN."""
    return {
        key: _finite(list(value) if isinstance(value, Iterator) else value)
        for key, value in _report(run, judgement).items()
    }


def report_pieces(run: LoadedRun, judgement: Judgement) -> Iterator[bytes]:
    """Yield the report as JSON text, piece by piece, so that memory never holds a long run's values
    twice.

    A number that is not finite is null, as orjson writes it.
    """
    before = b"{"
    for key, value in _report(run, judgement).items():
        yield before + b"\n  " + orjson.dumps(key) + b": "
        if isinstance(value, Iterator):
            yield from _list_pieces(value)
        else:
            yield _indented(value, b"\n  ")
        before = b","
    yield b"\n}\n"


def _list_pieces(items: Iterator[Any]) -> Iterator[bytes]:
    before = b"["
    for item in items:
        yield before + b"\n    " + _indented(item, b"\n    ")
        before = b","
    yield b"[]" if before == b"[" else b"\n  ]"


def _indented(value: Any, newline: bytes) -> bytes:
    # A string of JSON holds no newline, so each of these begins a line.
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2).replace(b"\n", newline)
    return without_controls(text)


def _report(run: LoadedRun, judgement: Judgement) -> dict[str, object]:
    """Return the report by key; lists with an entry for each metric of each arm are iterators."""
    return {
        "schema": SCHEMA,
        "run": run.name,
        "study": run.plan.study or run.run.study,
        "title": run.plan.title,
        "status": run.run.status,
        "labctl": run.run.labctl,
        "command": run.run.command,
        "seed": run.run.seed if run.plan.seed is None else run.plan.seed,
        "quick": run.run.quick if run.plan.quick is None else run.plan.quick,
        "study_digest": run.plan.study_digest,
        "plan_digest": run.plan.digest,
        "accelerator": run.run.accelerator,
        "accelerator_reason": run.run.accelerator_reason,
        "same_kernel": run.run.same_kernel,
        "restored_state": run.run.restored_state,
        "collect": None if run.run.imported else level_of(run),
        "collecting_costs": [cost.to_json() for cost in run.run.collecting_costs or ()],
        "answer": judgement.answer,
        "decision": answer_json(judgement.decision),
        "recommendation": _recommendation(judgement.standings),
        "warnings": list(judgement.warnings),
        "problems": list(run.problems),
        "boots": judgement.boots,
        "blocks": judgement.blocks,
        "trials": {
            "planned": judgement.planned,
            "done": judgement.done,
            "invalid": judgement.invalid,
        },
        "wall_time": _wall_time(wall_time(run)),
        "attempts": _attempts(judgement.attempts),
        "primaries": dict(judgement.primaries),
        "overview": tables_as_json(arm_tables(View(run, judgement))),
        "comparisons": map(comparison_json, judgement.comparisons),
        "levels": map(_level, judgement.levels),
        "control": [_check(item) for item in judgement.control],
        "known_loss": [_check(item) for item in judgement.known_loss],
        "restored": [_check(item) for item in judgement.restored],
        "precision": [asdict(item) for item in judgement.precision],
        "diagnostics": [_diagnostic(item) for item in judgement.diagnostics],
        "ending": judgement.ending,
        "added": _added(judgement.added),
        "spares": judgement.spares and asdict(judgement.spares),
        "factors": factors_json(judgement.factors),
        **({} if judgement.ab is None else {"ab": ab_json(judgement.ab)}),
        "unavailable": map(asdict, judgement.unavailable),
        "skipped": run.run.skipped,
        "skipped_workloads": run.plan.skipped_workloads,
        "skipped_conditions": run.plan.skipped_conditions,
        "exit_costs": predicted_json(View(run, judgement)),
        "published": published_json(run),
        "tables": tables_json(run),
        "imported": run.run.imported and run.run.imported.to_json(),
    }


def _recommendation(standings: Sequence[Standing]) -> dict[str, object]:
    best = next((of for of in standings if of.code is not AnswerCode.NONE), None)
    return {
        "code": str(AnswerCode.NONE if best is None else best.code),
        "tuning": None if best is None else best.tuning,
        "tunings": [
            {
                "tuning": of.tuning,
                "code": str(of.code),
                "price": of.price or None,
                "unshown": [asdict(item) for item in of.unshown],
            }
            for of in standings
        ],
    }


def _level(item: Level) -> dict[str, object]:
    blocks = {str(block): value for block, value in sorted(item.values.items())}
    return {**fields_of(item, without=("values",)), "blocks": blocks}


def _check(item: RunCheck) -> dict[str, object]:
    return fields_of(item, without=("said",))


def _diagnostic(item: Diagnostic) -> dict[str, object]:
    return {
        "kind": str(item.kind),
        "tuning": item.tuning,
        "workload": item.workload,
        "condition": item.condition,
        "metric": item.metric,
        "grave": item.grave,
        "blocks": list(item.blocks),
        "sentence": item.sentence,
    }


def _attempts(item: Attempts) -> dict[str, object]:
    return {
        "arms": [
            {
                "tuning": arm.tuning,
                "attempts": arm.attempts,
                "invalid": arm.invalid,
                "reasons": [{"reason": reason, "count": count} for reason, count in arm.reasons],
            }
            for arm in item.arms
        ],
        "p_value": item.p_value,
        "differ": item.differ,
    }


def _added(item: Added | None) -> dict[str, object] | None:
    if item is None:
        return None
    return {
        "first_block": item.first,
        "last_block": item.last,
        "label": item.label,
        "comparisons": [comparison_json(one) for one in item.comparisons],
    }


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by None: JSON has neither (RFC 8259, section 6), and Python's writer
    emits both.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _wall_time(spent: WallTime | None) -> dict[str, object] | None:
    if spent is None:
        return None
    return {
        **asdict(spent),
        "between": spent.between,
        "share": spent.share,
        "share_without_warmups": spent.share_without_warmups,
    }


# Write the results of a density run as JSON (docs/density.md).


DENSITY_SCHEMA = 1


def density_json(record: DensityRecord, name: str, path: str, found: Density) -> dict[str, object]:
    """Return the output of `labctl density --json`: the judgement, then the record as stored."""
    return {
        "schema": DENSITY_SCHEMA,
        "run": name,
        "path": path,
        "fitting": [_fitting(one) for one in found.fitting],
        "tests": [
            {
                "tuning": test.tuning,
                "against": test.against,
                "more": test.more,
                "fewer": test.fewer,
                "alike": test.alike,
                "undecided": test.undecided,
                "p": test.p,
                "shows_more": test.shows_more,
                "sentence": test_words(test),
            }
            for test in found.tests
        ],
        "curves": {
            tuning: [
                {
                    "guests": point.count,
                    "blocks": point.blocks,
                    "held": point.held,
                    "worst": point.worst,
                    "median": point.middle,
                    "cost_per_guest": point.cost,
                }
                for point in points
            ]
            for tuning, points in found.curves.items()
        },
        "remarks": remarks(record, found),
        "record": record.to_json(),
    }


def _fitting(one: Fitting) -> dict[str, object]:
    return {
        "tuning": one.tuning,
        "guests": one.typical and asdict(one.typical),
        "interval": one.interval and asdict(one.interval),
        "no_interval": one.why or None,
        "by_block": {str(block): asdict(number) for block, number in one.numbers.items()},
        "unavailable": {str(block): why for block, why in one.lacking.items()},
    }


# Write a fleet's judgement for programs. docs/fleet-report.md documents its keys.


FLEET_SCHEMA = 1
"""Raised when a key is removed or changes its meaning; new keys do not raise it."""
_POOLED = ("mean", "low", "high", "prediction_low", "prediction_high", "tau", "i2")


def fleet_json(judged: FleetJudgement) -> dict[str, object]:
    """Return plain JSON values; effects as ratios or differences, levels in their unit."""
    return {
        "schema": FLEET_SCHEMA,
        "hosts": judged.hosts,
        "measured": judged.measured,
        "alpha": judged.alpha,
        "confidence": judged.confidence,
        "controls": {str(state): number for state, number in judged.controls.items()},
        "least_share": judged.least_share,
        "facts": {fact: dict(values) for fact, values in judged.facts.items()},
        "warnings": list(judged.warnings),
        "answers": [group_answer_json(answer) for answer in judged.answers],
        "effects": [_effect(one) for one in judged.effects],
        "levels": [_fleet_level(one) for one in judged.levels],
        "states": [asdict(state) for state in judged.states],
    }


def fleet_change_json(change: FleetChange) -> dict[str, object]:
    """Return what changed between two fleets as plain JSON values."""
    judged = change.judged
    return {
        "schema": FLEET_SCHEMA,
        "a": change.a,
        "b": change.b,
        "measured": judged.measured,
        "alpha": judged.alpha,
        "confidence": judged.confidence,
        "warnings": list(judged.warnings),
        "facts": [asdict(one) for one in change.facts],
        "only_a": list(change.only_a),
        "only_b": list(change.only_b),
        "changes": [_effect(one) for one in judged.effects],
    }


def group_answer_json(of: GroupAnswer) -> dict[str, object]:
    """Return one group's answer as plain JSON values."""
    return fields_of(of, without=("place", "pooled"))


def _effect(one: FleetEffect) -> dict[str, object]:
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


def _group(place: Place, group: GroupEffect) -> dict[str, object]:
    return {**pooled_json(place, group.pooled, len(group.hosts)), "why": group.why or None}


def pooled_json(place: Place, found: Pooled | None, hosts: int | None = None) -> dict[str, object]:
    """Return a pooled effect as plain JSON values, null for those that are missing. `hosts`: the
    group's number of hosts, if the effect does not give it."""
    if found is None:
        return {"hosts": hosts, **dict.fromkeys(_POOLED)}
    values = (found.mean, found.low, found.high, found.new_low, found.new_high)
    shown = [_shown(place, value) for value in values]
    count = found.hosts if hosts is None else hosts
    return {"hosts": count, **dict(zip(_POOLED, (*shown, found.tau, found.share), strict=True))}


def _split(place: Place, split: FactSplit) -> dict[str, object]:
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


def _fleet_level(one: FleetLevel) -> dict[str, object]:
    return {
        **asdict(one.place),
        "group": one.group,
        "typical": _shown(one.place, one.typical),
        "why": one.why or None,
        "by_host": [_point(one.place, point) for point in one.points],
    }


def _point(place: Place, point: Point) -> dict[str, object]:
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
    """Return a value converted from the scale of effects; None if JSON cannot hold it."""
    try:
        found = math.exp(value) if place.is_log else value
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
