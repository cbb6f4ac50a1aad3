"""Roll a tuning out to the hosts of a fleet, batch by batch, and record each host's state.

The playbook decides: a batch is measured again and gated, then changed or not. Hosts that are lost
or do not pass are set aside; too many of them stop the batch. This module converts its events into
states of hosts.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from labctl import __version__
from labctl.analysis.gate.policy import load_policy
from labctl.analysis.hosts.judge import hosts_that_may, judge_fleet
from labctl.base.errors import BrokenError, HostError, LabctlError, UsageError
from labctl.fleet.ansible import batches_of, inventory_hosts, play
from labctl.fleet.fleet_folder import FleetFolder, fleet_locked
from labctl.fleet.host_news import RUN_NAME, HostNews, What, lacking, news_of
from labctl.fleet.sweep_hosts import STATE, HowToReach, check_names, play_on, read_record
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
KILLED: Final = "labctl was killed before it was done with it"
ROLLOUT: Final = "rollout.json"
MAX_FAIL: Final = 10
"""Per cent of a batch that may be set aside."""


class Stand(StrEnum):
    """State of a host in a roll-out."""

    WAITING = "waiting"
    MEASURING = "measuring"
    CHANGING = "changing"
    CHANGED = "changed"
    KEPT = "kept"
    NOT_CHANGED = "not changed"
    UNDONE = "undone"
    UNKNOWN = "unknown"
    """The host is unreachable: whether its changes are in force is unknown until its timer has
    undone them."""
    NOT_TOUCHED = "not touched"


class HostStand(Record):
    """Hold a host's state.json. `batch`: the number of its batch, from 1; `aside`: the host itself
    is why it does not keep the tuning, not its batch."""

    stand: Stand = Stand.WAITING
    reason: Text = ""
    aside: bool = False
    batch: Whole


class Rollout(Record):
    """Hold rollout.json. `max_fail`: hosts of a batch, in per cent, that may be set aside;
    `variables`: further ones of the roles'; `runs`: host to its run in the fleet's sweep;
    `left_out`: hosts that do not get the tuning, with the reason."""

    fleet: Text
    tuning: Text
    seed: Whole
    labctl: Text
    started: Text
    command: tuple[Text, ...]
    policy: Text | None = None
    restore_after: Text
    max_fail: Whole = MAX_FAIL
    inventory: tuple[Text, ...] = ()
    variables: dict[str, Text] = {}
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

    @classmethod
    def open(cls, path: Path) -> RolloutFolder:
        """Return a roll-out that was begun. Raises BrokenError if a file of it is damaged."""
        record = read_record(Rollout, path / ROLLOUT, SCHEMA, "Begin a new roll-out.")
        check_names(record.hosts)
        hint = "Begin a new roll-out."
        stands = {
            host: read_record(HostStand, path / "hosts" / host / STATE, SCHEMA, hint)
            for host in record.hosts
        }
        return cls(path, record, stands)

    def end_killed(self) -> None:
        """Write into the states of hosts that their roll-out was killed: nobody runs it."""
        after = self.record.restore_after
        for host, one in self.stands.items():
            match one.stand:
                case Stand.WAITING:
                    self.change(host, stand=Stand.NOT_TOUCHED, reason=KILLED)
                case Stand.MEASURING:
                    self.change(host, stand=Stand.NOT_CHANGED, reason=KILLED)
                case Stand.CHANGING:
                    why = f"{KILLED}; it undoes the change itself {after} after it"
                    self.change(host, stand=Stand.UNKNOWN, reason=why)
                case Stand.CHANGED if not one.aside:
                    why = f"{KILLED}; it keeps the change, or undoes it itself {after} after it"
                    self.change(host, stand=Stand.UNKNOWN, reason=why)
                case _:
                    pass

    @property
    def canary_passed(self) -> bool:
        """Return whether every host of the first batch keeps the tuning."""
        return all(self.stands[host].stand is Stand.KEPT for host in self.record.batches[0])

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


def last_rollout(fleet: FleetFolder) -> RolloutFolder:
    """Return the last roll-out of a fleet. Raises UsageError if there is none, BrokenError if a
    file of it is damaged."""
    if not (paths := _rollouts(fleet)):
        raise UsageError(
            f"{fleet.name} has no roll-out to resume",
            hint="Begin one: labctl fleet rollout FLEET --tuning TUNING.",
        )
    return RolloutFolder.open(paths[-1])


def end_killed(fleet: FleetFolder) -> None:
    """Write into the states of a fleet's roll-outs that they were killed, where they were. The
    caller holds the fleet's lock, so that none of them goes on."""
    for path in _rollouts(fleet):
        with suppress(LabctlError):  # a damaged one hinders no other
            RolloutFolder.open(path).end_killed()


def note_killed(fleet: FleetFolder) -> None:
    """Do the same from a command that only reads the fleet, unless another one has it."""
    if _rollouts(fleet):
        with suppress(LabctlError, OSError), fleet_locked(fleet.path, "labctl fleet report"):
            end_killed(fleet)


def _rollouts(fleet: FleetFolder) -> list[Path]:
    """Return the folders of a fleet's roll-outs, oldest first."""
    return sorted(path.parent for path in (fleet.path.resolve() / "rollouts").glob(f"*/{ROLLOUT}"))


# Plan a roll-out: which hosts of a fleet get the tuning, and in which batches.


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFor:
    """Hold the user's request. `limit`: Ansible's pattern of hosts; `serial`: sizes of the batches;
    `restore_after`: a time, in words; `seed` None: one is drawn; `max_fail`: per cent of a batch
    that may be set aside."""

    tuning: str
    limit: str | None
    serial: str
    policy: Path | None
    restore_after: str
    seed: int | None
    command: tuple[str, ...]
    max_fail: int = MAX_FAIL


def planned_rollout(fleet: FleetFolder, how: HowToReach, asked: AskedFor) -> Rollout:
    """Return the plan for the hosts that may take the tuning. Raises UsageError if there is none,
    HostError if Ansible is missing."""
    if not fleet.is_swept:
        raise UsageError(
            f"'labctl fleet sweep' did not measure {fleet.name}, so its hosts have no runs to use",
            hint="Roll out with the playbook labctl.lab.rollout, or measure with 'fleet sweep'.",
        )
    check_name(fleet.name, asked.tuning)
    found = taken(fleet)
    least_share = None if asked.policy is None else load_policy(asked.policy).least_share
    may = hosts_that_may(judge_fleet(found.rows, found.states, least_share), asked.tuning)
    if not may.hosts:
        reasons = sorted({why for _, why in may.others})
        raise UsageError(
            f"no host of {fleet.name} may take '{asked.tuning}': "
            f"{'; '.join(reasons) or 'it was not measured'}",
            hint=f"'labctl fleet advise {fleet.name}' shows the allowed tunings.",
        )
    # Ansible makes its batches in the order of the inventory.
    present = inventory_hosts(how.inventory, asked.limit)
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
        max_fail=asked.max_fail,
        inventory=tuple(how.inventory),
        variables=dict(how.variables),
        runs={host: runs[host] for host in hosts},
        left_out=dict(may.others) | {host: absent for host in may.hosts if host not in hosts},
        batches=batches_of(hosts, asked.serial),
    )


PLAYBOOK: Final = "labctl.lab.rollout"

Watching = Callable[[str, HostStand, HostNews], None]
"""Function that gets each host's news, with the host's state then."""


Rounds = Sequence[Sequence[Sequence[str]]]
"""Batches of hosts, in the order of the inventory within a round."""


def rounds_left(folder: RolloutFolder, present: Sequence[str]) -> Rounds:
    """Return the batches of hosts that do not keep the tuning yet, of those in the inventory: first
    the ones that no fault of their own kept from it, then those that were set aside.

    If the first batch did not pass, another of its size comes before the rest.
    """
    left = [host for host in present if _is_left(folder, host)]
    batches = folder.record.batches
    rounds: list[list[list[str]]] = []
    for aside in (False, True):
        hosts = [host for host in left if folder.stands[host].aside is aside]
        sizes = [len(set(batch).intersection(hosts)) for batch in batches]
        if aside:
            largest = max(map(len, batches))
            sizes = [largest] * (len(hosts) // largest + 1)
        if not rounds and not folder.canary_passed:
            sizes.insert(0, len(batches[0]))
        if hosts:
            rounds.append(_cut(hosts, sizes))
    return rounds


def _is_left(folder: RolloutFolder, host: str) -> bool:
    return host in folder.stands and folder.stands[host].stand is not Stand.KEPT


def _cut(hosts: Sequence[str], sizes: Sequence[int]) -> list[list[str]]:
    """Return the hosts in batches of these sizes; the last may be smaller."""
    rest, found = list(hosts), []
    for size in sizes:
        found.append(rest[:size])
        rest = rest[size:]
    return [batch for batch in found if batch]


def roll_out(
    folder: RolloutFolder,
    how: HowToReach,
    hosts_runs: str,
    watching: Watching,
    rounds: Rounds,
) -> None:
    """Run the roll-out. `hosts_runs`: the folder on each host with its run of the fleet.

    Ctrl-C ends Ansible; the hosts' timers undo changes that are not kept by then. Raises
    BrokenError if Ansible ended before it reached any host.
    """
    for batches in rounds:
        for host in _hosts(batches):
            folder.change(host, stand=Stand.WAITING, reason="", aside=False)
        left = batches
        while left:
            _play(folder, how, hosts_runs, watching, left)
            # Ansible ends a play after a batch of which every host is lost.
            goes_on = folder.record.max_fail == 100 and folder.canary_passed
            left = [b for b in left if _untouched(folder, b)] if goes_on else []
        if not all(_is_over(folder.stands[host]) for host in _hosts(batches)):
            return  # a batch was stopped


def _hosts(batches: Sequence[Sequence[str]]) -> list[str]:
    return [host for batch in batches for host in batch]


def _untouched(folder: RolloutFolder, batch: Sequence[str]) -> bool:
    return all(folder.stands[host].stand is Stand.NOT_TOUCHED for host in batch)


def _play(
    folder: RolloutFolder,
    how: HowToReach,
    hosts_runs: str,
    watching: Watching,
    batches: Sequence[Sequence[str]],
) -> None:
    hosts = _hosts(batches)
    heard = _Heard(folder, watching)
    try:
        variables = _variables(folder, how, hosts_runs, batches)
        ended = play_on(PLAYBOOK, how, hosts, variables, heard)
    except BrokenError as error:
        heard.close(error.message, hosts)
        raise
    except BaseException:
        heard.close("labctl was interrupted before it was done with it", hosts)
        raise
    heard.close(f"Ansible ended with status {ended.status} before it was done with it", hosts)


def _is_over(one: HostStand) -> bool:
    return one.stand is Stand.KEPT or one.aside


def foreseen(folder: RolloutFolder, how: HowToReach, hosts_runs: str) -> dict[str, str]:
    """Return the changes on each host that could report them: present lines of settings after a
    '-', and new ones after a '+'. Changes nothing. The folder says why others could not."""
    shown: dict[str, str] = {}

    def hear(event: Mapping[str, object]) -> None:
        news = news_of(event)
        if news is None or news.host not in folder.stands:
            return
        if news.what in (What.FAILED, What.UNREACHABLE):
            if not folder.stands[news.host].reason:
                folder.change(news.host, stand=Stand.UNKNOWN, reason=news.reason)
        elif news.what is What.FORESEEN:
            shown[news.host] = _difference(news.more.get("changes"))

    ended = play(
        PLAYBOOK,
        inventory=how.inventory,
        limit=folder.record.hosts,
        forks=how.forks,
        variables=_variables(folder, how, hosts_runs, [folder.record.hosts]),
        handler=hear,
        check=True,
    )
    for host, one in folder.stands.items():
        if host not in shown and not one.reason:
            why = f"Ansible ended with status {ended.status}: {ended.said}"
            folder.change(host, stand=Stand.UNKNOWN, reason=why)
    return shown


def _difference(changes: object) -> str:
    """Return the lines of changes: those present after a '-', and the new ones after a '+'."""
    found = changes if isinstance(changes, list) else []
    lines = [
        f"{sign}{line}"
        for sign, key in (("-", "before"), ("+", "after"))
        for one in found
        if isinstance(one, Mapping)
        for line in f"{one.get('name')}: {one.get(key)}".splitlines()
    ]
    return "\n".join(lines)


def _variables(
    folder: RolloutFolder, how: HowToReach, hosts_runs: str, batches: Sequence[Sequence[str]]
) -> dict[str, object]:
    record = folder.record
    own = "labctl"
    found: dict[str, object] = {
        "labctl_serial": [len(batch) for batch in batches],
        "labctl_rollout_max_fail": record.max_fail,
        "labctl_rollout_canary_passed": folder.canary_passed,
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
        self._keeping: set[str] = set()
        """Hosts that may have been told to keep it."""
        self._failed: dict[str, str] = {}
        """Reasons of hosts whose end the playbook did not write."""
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
        aside = {"aside": news.more.get("aside") in (True, "True")}
        match news.what:
            case What.STOPPED:
                return {"stand": Stand.NOT_TOUCHED, "reason": _bare(news.reason)}
            case What.STARTED:
                return {"stand": Stand.MEASURING}
            case What.CHANGING:
                self._changing.add(host)
                return {"stand": Stand.CHANGING}
            case What.CHANGED:
                return {"stand": Stand.CHANGED, "reason": lacking(news.more.get("said"))}
            case What.NOT_CHANGED:
                return {"stand": Stand.NOT_CHANGED, "reason": news.reason, **aside}
            case What.KEEPING:
                self._keeping.add(host)
                return {}
            case What.KEPT:
                reason = before.reason if host in self._changing else "it was already set"
                self._changing.discard(host)
                return {"stand": Stand.KEPT, "reason": reason}
            case What.UNDONE:
                stand = Stand.UNDONE if host in self._changing else Stand.NOT_CHANGED
                self._changing.discard(host)
                return {"stand": stand, "reason": news.reason, **aside}
            case What.NOT_UNDONE:
                return {"stand": Stand.CHANGED, "reason": news.reason, **aside}
            case What.UNREACHABLE:
                return {"stand": Stand.UNKNOWN, "reason": self._lost(news), "aside": True}
            case What.FAILED:
                # The playbook writes about each failure that it expects, before or after it.
                self._failed[host] = f"{news.task}: {news.reason}"
                return {}
            case _:
                return {}

    def close(self, why: str, hosts: Iterable[str]) -> None:
        """Set the states of hosts that Ansible did not finish."""
        stands = self._folder.stands
        stopped = any(stands[host].stand not in (Stand.KEPT, Stand.WAITING) for host in hosts)
        for host in hosts:
            match stands[host].stand:
                case Stand.WAITING:
                    reason = "a batch before it was stopped" if stopped else why
                    changes: dict[str, object] = {"stand": Stand.NOT_TOUCHED, "reason": reason}
                case Stand.MEASURING:
                    changes = {"stand": Stand.NOT_CHANGED, **self._own(host, why)}
                case Stand.CHANGING:
                    changes = {"stand": Stand.UNKNOWN, **self._own(host, why)}
                case Stand.CHANGED if host in self._failed or not stands[host].reason:
                    changes = {} if stands[host].aside else self._own(host, why)
                case _:
                    changes = {}
            self._folder.change(host, **changes)

    def _own(self, host: str, why: str) -> dict[str, object]:
        """Return why a host was not finished: its own failure, or how Ansible ended."""
        failed = self._failed.get(host)
        return {"reason": failed or why, "aside": failed is not None}

    def _lost(self, news: HostNews) -> str:
        after = self._folder.record.restore_after
        if news.host in self._keeping:
            return f"{news.reason}; it keeps the change, or undoes it itself {after} after it"
        if news.host in self._changing:
            return f"{news.reason}; it undoes the change itself {after} after it"
        return f"{news.reason}; nothing had been changed on it by then"


def _bare(reason: str) -> str:
    """Return a reason without the part that the state says already."""
    return reason.removeprefix("not touched: ")
