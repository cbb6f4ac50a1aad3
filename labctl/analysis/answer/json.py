"""Write answers, comparisons and effects of factors as JSON (docs/report-schema.md)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict

from labctl.analysis.ab import as_effect
from labctl.analysis.answer.record import AnswerRecord
from labctl.analysis.answer.words import why_inconclusive
from labctl.analysis.model import (
    AbAnswer,
    AbEffect,
    AbPlace,
    CellMean,
    Comparison,
    Contrast,
    EffectKind,
    FactorAnalysis,
)
from labctl.base.errors import HostError
from labctl.base.json import parse_json
from labctl.store.jsonfile import write_json
from labctl.store.records.tolerant import adapter
from labctl.store.run_folder import RunFolder

# Write a run's answer as JSON: in reports, and as `answer.json` in the run's folder.
#
# labctl never reads that file: it works out the answer from the run's trials each time
# (docs/decisions/answer-record.md). It is there for programs that can't.


NAME = "answer.json"

SCHEMA = 1
"""Raised when a key goes or changes its meaning; new keys leave it as it is."""


def answer_json(record: AnswerRecord) -> dict[str, object]:
    """Return the record as plain JSON values."""
    # What is no finite number is null.
    return {"schema": SCHEMA, **parse_json(adapter(AnswerRecord).dump_json(record))}


def write_answer(folder: RunFolder, record: AnswerRecord) -> None:
    """Write the record into the run's folder, or leave it where that can't be written to: nothing
    depends on it."""
    with suppress(HostError):
        write_json(folder.path / NAME, answer_json(record), below=folder.path)


# Write one comparison as JSON, for the report and for the advice that rests on it.


def comparison_json(item: Comparison) -> dict[str, object]:
    """Return one comparison as plain JSON values; docs/report-schema.md has its keys."""
    why = why_inconclusive(item)
    estimate = "ratio" if item.kind is EffectKind.RATIO else "difference"
    return {
        "tuning": item.tuning,
        "against": item.against,
        "workload": item.workload,
        "condition": item.condition,
        "metric": item.metric,
        "unit": str(item.unit),
        "better": str(item.better),
        "kind": str(item.kind),
        estimate: item.estimate,
        "low": item.low,
        "high": item.high,
        "confidence": item.confidence,
        "verdict": str(item.verdict) if item.verdict is not None else None,
        "role": str(item.role),
        "source": item.source,
        "margin": item.margin,
        "no_worse_than": item.no_worse_than,
        "no_worse": item.no_worse,
        "smallest_visible": item.smallest_visible,
        "blocks_needed": item.blocks_needed,
        "error": item.error,
        "units": item.units,
        "inconclusive": None if why is None else asdict(why),
        "boots": item.boots,
        "left_out": list(item.left_out),
        "by_holm": item.by_holm,
        **({} if item.look is None else {"look": item.look}),
        "paired": item.paired,
        "fallback": item.fallback,
        "blocks": {str(block): value for block, value in sorted(item.blocks.items())},
    }


# Write a comparison of A and B.


def ab_json(answer: AbAnswer) -> dict[str, object]:
    """Return the answer of A and B as plain JSON values."""
    return {
        "a": answer.labels.a,
        "b": answer.labels.b,
        "arm": answer.labels.arm,
        "outcome": str(answer.outcome),
        "places": [_ab_place(place) for place in answer.places],
    }


def _ab_place(place: AbPlace) -> dict[str, object]:
    c = place.guest
    return {
        "workload": c.workload,
        "condition": c.condition,
        "metric": c.metric,
        "unit": str(c.unit),
        "better": str(c.better),
        "outcome": str(place.outcome),
        "verdict": None if c.verdict is None else str(c.verdict),
        "guest": _ab_effect(as_effect(c)),
        "native": place.native and _ab_effect(place.native),
        "interaction": place.interaction and _ab_effect(place.interaction),
        "depends_on_virtualization": place.depends and str(place.depends),
    }


def _ab_effect(of: AbEffect) -> dict[str, object]:
    return {
        "kind": str(of.kind),
        "ratio" if of.kind is EffectKind.RATIO else "difference": of.estimate,
        "low": of.low,
        "high": of.high,
        "confidence": of.confidence,
        "blocks": of.blocks,
    }


# Write what factors did as plain JSON values (docs/report-schema.md).


def factors_json(analysis: FactorAnalysis | None) -> dict[str, object] | None:
    """Return contrasts and means; None of a run without factors."""
    if analysis is None:
        return None
    return {
        "factors": {
            name: {"levels": list(factor.levels), "own_boot": factor.own_boot}
            for name, factor in analysis.factors.items()
        },
        "family": analysis.family,
        "confidence": analysis.confidence,
        "contrasts": [_contrast(one) for one in analysis.contrasts],
        "means": [_mean(one) for one in analysis.means],
        "problems": list(analysis.problems),
    }


def _contrast(of: Contrast) -> dict[str, object]:
    return {
        "kind": "interaction" if of.is_interaction else "main effect",
        "arm": of.arm,
        "workload": of.workload,
        "condition": of.condition or None,
        "metric": of.metric,
        "unit": str(of.unit),
        "better": str(of.better),
        "effect": "ratio" if of.is_ratio else "difference",
        "factors": list(of.factors),
        "levels": list(of.levels),
        "against": list(of.against),
        "estimate": of.estimate,
        "low": of.low,
        "high": of.high,
        "confidence": of.confidence,
        "finding": str(of.finding),
        "per": of.per,
        "values": {str(at): value for at, value in of.values.items()},
        "cells": of.cells,
        "left_out": list(of.left_out),
        "without": list(of.without),
        "paired": of.paired,
    }


def _mean(of: CellMean) -> dict[str, object]:
    return {
        "arm": of.arm,
        "workload": of.workload,
        "condition": of.condition or None,
        "metric": of.metric,
        "unit": str(of.unit),
        "levels": dict(of.levels),
        "typical": of.typical,
        "blocks": of.blocks,
    }
