"""Write what factors did as plain JSON values (docs/report-schema.md)."""

from __future__ import annotations

from typing import Any

from labctl.analysis.factor_model import CellMean, Contrast, FactorAnalysis


def factors_json(analysis: FactorAnalysis | None) -> dict[str, Any] | None:
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


def _contrast(of: Contrast) -> dict[str, Any]:
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


def _mean(of: CellMean) -> dict[str, Any]:
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
