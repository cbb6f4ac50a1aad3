"""Pages of fleets, for the tests that look at pages in a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from labctl.analysis.hosts.fleet import HostState
from labctl.analysis.hosts.judge import judge_fleet
from labctl.report.page.fleet_page import fleet_page
from tests.unit.analysis.test_fleet_judge import ALIKE, of_level, rows, spread


def fleet(_: Path) -> str:
    """Two groups that differ, a host apart, a slow one, one that was left out, one not reached."""
    facts = [replace(ALIKE, kernel="6.1")] * 8 + [ALIKE] * 8
    effects = rows([*spread(-0.2, 7), 0.4, *spread(0.2, 8)], facts=facts)
    effects[1] = replace(effects[1], effect=replace(effects[1].effect, control="failed"))
    levels = of_level([*spread(6.0, 15), 5.3], facts=[ALIKE] * 16)
    states = [HostState(host="h99", status="unreachable", reason="no route to host")]
    return fleet_page("fleet-1", "pinning", judge_fleet(effects + levels, states))


def fleet_of_many(_: Path) -> str:
    return fleet_page("fleet-2", "pinning", judge_fleet(rows([*spread(0.2, 300), 2.0])))


def fleet_of_two(_: Path) -> str:
    return fleet_page("fleet-3", "", judge_fleet(rows(spread(0.2, 2), boots=1)))


def fleet_of_none(_: Path) -> str:
    return fleet_page("fleet-4", "", judge_fleet([]))


def hostile_fleet(text: str, name: str) -> str:
    """Hosts that say `text` wherever they can, one of a long `name`."""
    facts = [replace(ALIKE, kernel=text, topology=name)] * 4 + [ALIKE] * 4
    found = rows([*spread(-0.2, 4), *spread(0.2, 4)], facts=facts, workload=text, tuning=name)
    found[0] = replace(found[0], host=name)
    found[1] = replace(found[1], host=text)
    states = [HostState(host=name, status=text, reason=text)]
    return fleet_page(name, text, judge_fleet(found, states))
