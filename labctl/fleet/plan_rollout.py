"""Plan a roll-out: which hosts of a fleet get the tuning, and in which batches."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from labctl import __version__
from labctl.analysis.fleet.fleet_judge import judge_fleet
from labctl.analysis.fleet.may_take import hosts_that_may
from labctl.base.errors import UsageError
from labctl.fleet.ansible import inventory_hosts
from labctl.fleet.batches import batches_of
from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.host_news import RUN_NAME
from labctl.fleet.landing import taken
from labctl.fleet.rollout_folder import Rollout
from labctl.rollout.advice import check_name


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFor:
    """Hold what the user asks for. `limit`: Ansible's pattern of hosts; `serial`: sizes of the
    batches; `restore_after`: a time, in words; `seed` None: one is drawn."""

    tuning: str
    limit: str | None
    serial: str
    policy: Path | None
    restore_after: str
    seed: int | None
    command: tuple[str, ...]


def planned_rollout(fleet: FleetFolder, inventory: Sequence[str], asked: AskedFor) -> Rollout:
    """Return the plan for the hosts that may take the tuning. Raises UsageError where there is
    none, HostError where Ansible isn't there."""
    check_name(fleet.name, asked.tuning)
    found = taken(fleet)
    may = hosts_that_may(judge_fleet(found.rows, found.states), asked.tuning)
    if not may.hosts:
        reasons = sorted({why for _, why in may.others})
        raise UsageError(
            f"no host of {fleet.name} may take '{asked.tuning}': "
            f"{'; '.join(reasons) or 'it was not measured'}",
            hint=f"'labctl fleet advise {fleet.name}' says which tunings they may take.",
        )
    # Ansible makes its batches in the order of the inventory.
    present = inventory_hosts(inventory, asked.limit)
    absent = "not in the inventory" if asked.limit is None else "not within --limit"
    hosts = [host for host in present if host in may.hosts]
    if not hosts:
        raise UsageError(
            f"none of the {len(may.hosts)} hosts that may take '{asked.tuning}' is "
            f"{absent.removeprefix('not ')}",
            hint="'ansible-inventory -i FILE --graph' shows groups and hosts.",
        )
    runs = {state.host: state.run for state in found.states}
    for host in hosts:
        if not RUN_NAME.fullmatch(runs[host]):
            raise UsageError(
                f"{host} says that its run is {runs[host]!r}, which is no run's name",
                hint="Leave it out with --limit, and look at that host.",
            )
    return Rollout(
        fleet=fleet.name,
        tuning=asked.tuning,
        seed=secrets.randbelow(2**31) if asked.seed is None else asked.seed,
        labctl=__version__,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=asked.command,
        policy=None if asked.policy is None else str(asked.policy.absolute()),
        restore_after=asked.restore_after,
        runs={host: runs[host] for host in hosts},
        left_out=dict(may.others) | {host: absent for host in may.hosts if host not in hosts},
        batches=batches_of(hosts, asked.serial),
    )
