"""Find what earlier runs have shown about this host."""

from __future__ import annotations

from dataclasses import asdict

from labctl.base.paths import StatePaths
from labctl.store import collecting_costs
from labctl.store.exit_prices import known_prices
from labctl.store.records.plan_record import PlanRecord
from labctl.store.restores import shown
from labctl.store.run_folder import RunLog


def recall(places: StatePaths, plan: PlanRecord, level: str, log: RunLog) -> None:
    """Copy the results of earlier runs about this host into the run's record, so that a report of
    this run does not depend on later ones."""
    record = log.record
    if record.restores_shown is None:
        known = [] if record.fresh_boots else shown(places.restore_checks, record, plan)
        log.put(restores_shown=known)
    if record.collecting_costs is None:
        costs = collecting_costs.known(places.collecting_costs, record, level)
        log.put(collecting_costs=[asdict(cost) for cost in costs])
    if "exit_prices" not in record.model_fields_set:
        log.put(exit_prices=known_prices(places.exit_prices, record.host))
