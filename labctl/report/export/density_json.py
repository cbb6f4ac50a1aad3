"""Write what a density run found as JSON (docs/density.md)."""

from __future__ import annotations

from typing import Any

from labctl.analysis.density import Density, Fitting, Number
from labctl.report.density_words import remarks, test_words
from labctl.store.density_record import DensityRecord

SCHEMA = 1


def density_json(record: DensityRecord, name: str, path: str, found: Density) -> dict[str, Any]:
    """Return what `labctl density --json` prints: the judgement, then the record as it is kept."""
    return {
        "schema": SCHEMA,
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


def _fitting(one: Fitting) -> dict[str, Any]:
    interval = one.interval
    return {
        "tuning": one.tuning,
        "guests": _number(one.typical),
        "interval": None
        if interval is None
        else {
            "low": _number(interval.low),
            "high": _number(interval.high),
            "coverage": interval.coverage,
        },
        "no_interval": one.why or None,
        "by_block": {str(block): _number(number) for block, number in one.numbers.items()},
        "unavailable": {str(block): why for block, why in one.lacking.items()},
    }


def _number(number: Number | None) -> dict[str, Any] | None:
    return None if number is None else {"value": number.value, "at_least": number.at_least}
