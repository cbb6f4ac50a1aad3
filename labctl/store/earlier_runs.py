"""Recall what earlier runs have shown of this host."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from labctl.base.paths import StatePaths
from labctl.store import collecting_costs
from labctl.store.exit_prices import known_prices
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.restores import shown


def recall(places: StatePaths, plan: PlanRecord, level: str, record: dict[str, Any]) -> None:
    """Put what runs before have shown of this host into the run's record. Now and here: a report
    of this run must not hang on what others show later."""
    so_far = RunRecord.model_validate(record)
    known = [] if so_far.fresh_boots else shown(places.restore_checks, so_far, plan)
    record.setdefault("restores_shown", known)
    costs = collecting_costs.known(places.collecting_costs, so_far, level)
    record.setdefault("collecting_costs", [asdict(cost) for cost in costs])
    record.setdefault("exit_prices", known_prices(places.exit_prices, record["host"]))
