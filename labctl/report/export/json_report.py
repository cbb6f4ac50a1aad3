"""Write the report for programs. docs/report-schema.md documents its shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from labctl.analysis.answer_file import answer_json
from labctl.analysis.collecting import level_of
from labctl.analysis.comparison_json import comparison_json
from labctl.analysis.factor_json import factors_json
from labctl.analysis.model import (
    Added,
    AnswerCode,
    Attempts,
    Diagnostic,
    Judgement,
    Level,
    MissingMetric,
    Precision,
    RunCheck,
    Spares,
    Standing,
)
from labctl.analysis.view import View
from labctl.analysis.wall_time import WallTime, wall_time
from labctl.base.jsontext import without_controls
from labctl.report.arm_table import arm_tables, tables_as_json
from labctl.report.price_list import predicted_json
from labctl.report.published_parts import published_json
from labctl.report.study_parts import tables_json
from labctl.store.run_folder import LoadedRun

SCHEMA = 3
"""Raised when a key goes or changes its meaning; new keys leave it as it is."""


def report_json(run: LoadedRun, judgement: Judgement) -> dict[str, Any]:
    """Return the report as plain JSON values. What is no finite number is null, never NaN."""
    return {
        key: _finite(list(value) if isinstance(value, Iterator) else value)
        for key, value in _report(run, judgement).items()
    }


def report_pieces(run: LoadedRun, judgement: Judgement) -> Iterator[bytes]:
    """Yield the report as JSON text, piece by piece: a long run's values are never there twice.

    What is no finite number is null, as orjson writes it.
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


def _report(run: LoadedRun, judgement: Judgement) -> dict[str, Any]:
    """Return the report by key; what has an entry for each metric of each arm is an iterator."""
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
        "precision": [_precision(item) for item in judgement.precision],
        "diagnostics": [_diagnostic(item) for item in judgement.diagnostics],
        "ending": judgement.ending,
        "added": _added(judgement.added),
        "spares": _spares(judgement.spares),
        "factors": factors_json(judgement.factors),
        "unavailable": map(_missing, judgement.unavailable),
        "skipped": run.run.skipped,
        "skipped_workloads": run.plan.skipped_workloads,
        "skipped_conditions": run.plan.skipped_conditions,
        "exit_costs": predicted_json(View(run, judgement)),
        "published": published_json(run),
        "tables": tables_json(run),
        "imported": run.run.imported and run.run.imported.to_json(),
    }


def _recommendation(standings: Sequence[Standing]) -> dict[str, Any]:
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


def _level(item: Level) -> dict[str, Any]:
    return {
        "tuning": item.tuning,
        "workload": item.workload,
        "condition": item.condition,
        "metric": item.metric,
        "unit": str(item.unit),
        "better": str(item.better),
        "source": item.source,
        "typical": item.typical,
        "blocks": {str(block): value for block, value in sorted(item.values.items())},
    }


def _check(item: RunCheck) -> dict[str, Any]:
    return {
        "name": item.name,
        "workload": item.workload,
        "condition": item.condition,
        "metric": item.metric,
        "passed": item.passed,
        "estimate": item.estimate,
        "low": item.low,
        "high": item.high,
        "confidence": item.confidence,
        "sentence": item.sentence,
    }


def _precision(item: Precision) -> dict[str, Any]:
    return {
        "workload": item.workload,
        "condition": item.condition,
        "metric": item.metric,
        "between_boots": item.between_boots,
        "between_blocks": item.between_blocks,
        "within_trials": item.within_trials,
        "boots": item.boots,
        "blocks_per_boot": item.blocks_per_boot,
        "seconds": item.seconds,
        "sentence": item.sentence,
    }


def _diagnostic(item: Diagnostic) -> dict[str, Any]:
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


def _attempts(item: Attempts) -> dict[str, Any]:
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


def _added(item: Added | None) -> dict[str, Any] | None:
    if item is None:
        return None
    return {
        "first_block": item.first,
        "last_block": item.last,
        "label": item.label,
        "comparisons": [comparison_json(one) for one in item.comparisons],
    }


def _spares(item: Spares | None) -> dict[str, Any] | None:
    if item is None:
        return None
    return {"planned": item.planned, "ran": list(item.ran), "sentence": item.sentence}


def _missing(item: MissingMetric) -> dict[str, Any]:
    return {
        "metric": item.metric,
        "reason": item.reason,
        "trials": item.trials,
        "tunings": list(item.tunings),
        "workloads": list(item.workloads),
    }


def _finite(value: Any) -> Any:
    """Replace what JSON can't hold: it has no NaN and no infinity (RFC 8259, section 6), and
    Python's writer emits both.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _wall_time(spent: WallTime | None) -> dict[str, Any] | None:
    if spent is None:
        return None
    return {
        **asdict(spent),
        "between": spent.between,
        "share": spent.share,
        "share_without_warmups": spent.share_without_warmups,
    }
