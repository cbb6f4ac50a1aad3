"""Write one comparison as JSON, for the report and for the advice that rests on it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from labctl.analysis.inconclusive import why_inconclusive
from labctl.analysis.model import Comparison, EffectKind


def comparison_json(item: Comparison) -> dict[str, Any]:
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
        "paired": item.paired,
        "fallback": item.fallback,
        "blocks": {str(block): value for block, value in sorted(item.blocks.items())},
    }
