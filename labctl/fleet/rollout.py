"""Roll a tuning out to the hosts of a fleet, batch by batch, and record each host's state.

The playbook decides: a batch is measured again and gated, then changed as a whole or not at all.
This module converts its events into states of hosts.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from labctl import __version__
from labctl.analysis.hosts.judge import hosts_that_may, judge_fleet
from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.fleet.ansible import batches_of, inventory_hosts, play
from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.host_news import CHANGE, RUN_NAME, HostNews, What, news_of, printed_json
from labctl.fleet.sweep_hosts import STATE, HowToReach
from labctl.fleet.table import taken
from labctl.rollout.advice import check_name
from labctl.store.jsonfile import write_json
from labctl.store.records.tolerant import Record, Text, Whole

# Write a roll-out's folder: the plan, and each host's state.
#
# fleet-ID/rollouts/ID/rollout.json             the tuning, the seed, the batches of hosts
# fleet-ID/rollouts/ID/hosts/NAME/state.json    the host's state
# fleet-ID/rollouts/ID/hosts/NAME/run.tar.xz    the run that measured the tuning again


SCHEMA: Final = 1
ROLLOUT: Final = "rollout.json"


class Stand(StrEnum):
    """State of a host in a roll-out."""

    WAITING = "waiting"
    MEASURING = "measuring"
    CHANGED = "changed"
    KEPT = "kept"
    NOT_CHANGED = "not changed"
    UNDONE = "undone"
    UNKNOWN = "unknown"
    """The host is unreachable: whether its changes are in force is unknown until its timer has
    undone them."""
    NOT_TOUCHED = "not touched"


class HostStand(Record):
    """Hold a host's state.json. `batch`: the number of its batch, from 1."""

    stand: Stand = Stand.WAITING
    reason: Text = ""
    batch: Whole


class Rollout(Record):
    """Hold rollout.json. `runs`: host to its run in the fleet's sweep; `left_out`: hosts that do
    not get the tuning, with the reason."""

    fleet: Text
    tuning: Text
    seed: Whole
    labctl: Text
    started: Text
    command: tuple[Text, ...]
    policy: Text | None = None
    restore_after: Text
    runs: dict[str, Text]
    left_out: dict[str, Text] = {}
    batches: tuple[tuple[Text, ...], ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts in the order of their batches."""
        return tuple(host for batch in self.batches for host in batch)


@dataclass(slots=True)
class RolloutFolder:
    """Keep the states of a roll-out's hosts, in memory and on disk."""

    path: Path
    record: Rollout
    stands: dict[str, HostStand]

    @classmethod
    def create(cls, path: Path, record: Rollout) -> RolloutFolder:
        """Return a new folder with every host waiting. Raises HostError if it cannot be made."""
        try:
            path.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise HostError(f"cannot make the folder {path}: {error.strerror}") from error
        write_json(path / ROLLOUT, {"schema": SCHEMA, **record.to_json()}, below=path)
        made = cls(path, record, {})
        for number, batch in enumerate(record.batches, start=1):
            for host in batch:
                made._set(host, HostStand(batch=number))
        return made

    def change(self, host: str, **changes: Any) -> HostStand:
        """Change a host's state; return it."""
        before = self.stands[host]
        after = before.model_copy(update=changes)
        if after != before:
            self._set(host, after)
        return after

    def _set(self, host: str, stand: HostStand) -> None:
        self.stands[host] = stand
        path = self.path / "hosts" / host / STATE
        write_json(path, {"schema": SCHEMA, **stand.model_dump(mode="json")}, below=self.path)


# Plan a roll-out: which hosts of a fleet get the tuning, and in which batches.


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFor:
    """Hold the user's request. `limit`: Ansible's pattern of hosts; `serial`: sizes of the batches;
    `restore_after`: a time, in words; `seed` None: one is drawn."""

    tuning: str
    limit: str | None
    serial: str
    policy: Path | None
    restore_after: str
    seed: int | None
    command: tuple[str, ...]


def planned_rollout(fleet: FleetFolder, inventory: Sequence[str], asked: AskedFor) -> Rollout:
    """Return the plan for the hosts that may take the tuning. Raises UsageError if there is none,
    HostError if Ansible is missing."""
    check_name(fleet.name, asked.tuning)
    found = taken(fleet)
    may = hosts_that_may(judge_fleet(found.rows, found.states), asked.tuning)
    if not may.hosts:
        reasons = sorted({why for _, why in may.others})
        raise UsageError(
            f"no host of {fleet.name} may take '{asked.tuning}': "
            f"{'; '.join(reasons) or 'it was not measured'}",
            hint=f"'labctl fleet advise {fleet.name}' shows the allowed tunings.",
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
                f"{host} reported the run {runs[host]!r}, which is not a run's name",
                hint="Leave it out with --limit, and check that host.",
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


PLAYBOOK: Final = "labctl.lab.rollout"
_NOT_CHANGED: Final = "Stop the batch where one did not pass"
_UNDONE: Final = "Stop"
_ASKED: Final = "Ask what would change"
_SHOWN: Final = "Show the settings as they will be"

Watching = Callable[[str, HostStand, HostNews], None]
"""Function that gets each host's news, with the host's state then."""


def roll_out(folder: RolloutFolder, how: HowToReach, hosts_runs: str, watching: Watching) -> None:
    """Run the roll-out. `hosts_runs`: the folder on each host with its run of the fleet.

    Ctrl-C ends Ansible; the hosts' timers undo changes that are not kept by then. Raises
    BrokenError if Ansible ended before it reached any host.
    """
    heard = _Heard(folder, watching)
    ended = play(
        PLAYBOOK,
        inventory=how.inventory,
        limit=folder.record.hosts,
        forks=how.forks,
        variables=_variables(folder, how, hosts_runs),
        handler=heard.event,
    )
    if not heard.begun:
        raise BrokenError(f"ansible-playbook ended with status {ended.status}: {ended.said}")
    heard.close(f"Ansible ended with status {ended.status} before it was done with it")


def foreseen(folder: RolloutFolder, how: HowToReach, hosts_runs: str) -> dict[str, str]:
    """Return the changes on each host that could report them: present lines of settings after a
    '-', and new ones after a '+'. Changes nothing. The folder says why others could not."""
    shown: dict[str, str] = {}

    def hear(event: Mapping[str, object]) -> None:
        data, news = event.get("event_data"), news_of(event)
        host = str(data.get("host")) if isinstance(data, Mapping) else ""
        if host not in folder.stands:
            return
        if news is not None and news.what in (What.FAILED, What.UNREACHABLE):
            if not folder.stands[host].reason:
                folder.change(host, stand=Stand.UNKNOWN, reason=news.reason)
        elif event.get("event") == "runner_on_ok" and isinstance(data, Mapping):
            task, result = str(data.get("task", "")), data.get("res")
            result = result if isinstance(result, Mapping) else {}
            if task.endswith(_ASKED) and printed_json(result).get("would_change") == []:
                shown[host] = ""
            if task.endswith(_SHOWN):
                shown[host] = _difference(result)

    ended = play(
        PLAYBOOK,
        inventory=how.inventory,
        limit=folder.record.hosts,
        forks=how.forks,
        variables={**_variables(folder, how, hosts_runs), "labctl_serial": ["100%"]},
        handler=hear,
        check=True,
    )
    for host, one in folder.stands.items():
        if host not in shown and not one.reason:
            why = f"Ansible ended with status {ended.status}: {ended.said}"
            folder.change(host, stand=Stand.UNKNOWN, reason=why)
    return shown


def _difference(result: Mapping[str, object]) -> str:
    """Return the lines of Ansible's diff of a file."""
    lines: list[str] = []
    diffs = result.get("diff")
    for diff in diffs if isinstance(diffs, list) else []:
        if isinstance(diff, Mapping):
            for sign, key in (("-", "before"), ("+", "after")):
                lines += [f"{sign}{line}" for line in str(diff.get(key, "")).splitlines()]
    return "\n".join(lines)


def _variables(folder: RolloutFolder, how: HowToReach, hosts_runs: str) -> dict[str, object]:
    record = folder.record
    own = "labctl"
    found: dict[str, object] = {
        "labctl_serial": [len(batch) for batch in record.batches],
        "labctl_rollout_runs": {host: f"{hosts_runs}/{run}" for host, run in record.runs.items()},
        "labctl_rollout_first_from": str(folder.path.parents[1] / "hosts"),
        "labctl_sweep_id": f"rollout-{folder.path.name}",
        "labctl_sweep_tuning": record.tuning,
        "labctl_sweep_seed": record.seed,
        "labctl_sweep_version": record.labctl,
        "labctl_sweep_fetch_to": str(folder.path / "hosts"),
        "labctl_sweep_control_command": own,
        "labctl_gate_command": own,
        "labctl_gate_tuning": record.tuning,
        "labctl_host_tune_tuning": record.tuning,
        "labctl_host_tune_restore_after": record.restore_after,
        **how.variables,
    }
    if record.policy is not None:
        found["labctl_gate_policy"] = record.policy
    return found


class _Heard:
    """Update the hosts' states from the playbook's events."""

    def __init__(self, folder: RolloutFolder, watching: Watching) -> None:
        self._folder = folder
        self._watching = watching
        self._changing: set[str] = set()
        """Hosts on which something may have been changed and is not kept."""
        self.begun: set[str] = set()

    def event(self, event: Mapping[str, object]) -> None:
        """Process an event of ansible-runner."""
        news = news_of(event)
        if news is None or news.host not in self._folder.stands:
            return
        self.begun.add(news.host)
        stand = self._folder.change(news.host, **self._changes(news))
        self._watching(news.host, stand, news)

    def _changes(self, news: HostNews) -> dict[str, object]:
        host, before = news.host, self._folder.stands[news.host]
        match news.what:
            case What.STOPPED:
                return {"stand": Stand.NOT_TOUCHED, "reason": _bare(news.reason)}
            case What.BEGUN | What.PROGRESS if before.stand is Stand.WAITING:
                return {"stand": Stand.MEASURING}
            case What.BEGUN if news.task == CHANGE:
                self._changing.add(host)
                return {}
            case What.CHANGED:
                return {"stand": Stand.CHANGED, "reason": news.reason}
            case What.KEPT:
                reason = before.reason if host in self._changing else "it was already set"
                self._changing.discard(host)
                return {"stand": Stand.KEPT, "reason": reason}
            case What.UNDONE:
                is_undone = host in self._changing
                self._changing.discard(host)
                return {"stand": Stand.UNDONE if is_undone else Stand.NOT_CHANGED}
            case What.UNREACHABLE:
                return {"stand": Stand.UNKNOWN, "reason": self._lost(news)}
            case What.FAILED if news.task == _NOT_CHANGED:
                return {"stand": Stand.NOT_CHANGED, "reason": _bare(news.reason)}
            case What.FAILED if news.task == _UNDONE:
                return {"reason": _bare(news.reason)}
            case What.FAILED if host in self._changing:
                return {"stand": Stand.CHANGED, "reason": f"{news.task}: {news.reason}"}
            case _:
                return {}

    def close(self, why: str) -> None:
        """Set the states of hosts that Ansible did not finish."""
        fine = (Stand.KEPT, Stand.WAITING)
        stopped = any(one.stand not in fine for one in self._folder.stands.values())
        for host, one in self._folder.stands.items():
            if one.stand is Stand.WAITING:
                reason = "a batch before it was stopped" if stopped else why
                self._folder.change(host, stand=Stand.NOT_TOUCHED, reason=reason)
            elif one.stand is Stand.MEASURING:
                stand = Stand.UNKNOWN if host in self._changing else Stand.NOT_CHANGED
                self._folder.change(host, stand=stand, reason=why)
            elif one.stand is Stand.CHANGED and not one.reason:
                self._folder.change(host, reason=why)

    def _lost(self, news: HostNews) -> str:
        if news.host in self._changing:
            after = self._folder.record.restore_after
            return f"{news.reason}; it undoes the change itself {after} after it"
        return f"{news.reason}; nothing had been changed on it by then"


def _bare(reason: str) -> str:
    """Return a reason without the part that the state says already."""
    for known in ("not changed: ", "undone on this host: ", "not touched: "):
        reason = reason.removeprefix(known)
    return reason
