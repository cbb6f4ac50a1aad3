"""Have every host of a fleet measure the same study, and record each host's progress."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from labctl.base.errors import BrokenError, FileError, HostError, UsageError
from labctl.fleet.ansible import Ended, play
from labctl.fleet.host_news import HostNews, What, news_of
from labctl.store.jsonfile import newer, read_json, replacing, write_json
from labctl.store.records.as_made import whole
from labctl.store.records.tolerant import Record, Text, Whole

# Write a fleet's folder: the plan, and each host's progress.
#
# fleet-ID/fleet.json                  the study, the seed, the batches of hosts
# fleet-ID/hosts/NAME/state.json       the host's progress
# fleet-ID/hosts/NAME/run.tar.xz       its run, as 'labctl run export' packs one
# fleet-ID/data/                       its pooled part (labctl/fleet/table.py)
#
# labctl/fleet/fleet_folder.py reads it to pool runs, by the records of this module.


SCHEMA: Final = 1
FLEET, STATE, RUN = "fleet.json", "state.json", "run.tar.xz"
R = TypeVar("R", bound=Record)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._:-]{0,199}")


class Status(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    BUSY = "busy"
    UNREACHABLE = "unreachable"
    NOT_TOUCHED = "not touched"


class StateRecord(Record):
    """Hold a host's state.json. `batch`: the number of its batch, from 1; `digest`: of its run's
    content, as computed on the host."""

    status: Status = Status.WAITING
    reason: Text = ""
    run: Text = ""
    digest: Text = ""
    batch: Whole


class FleetSweep(Record):
    """Hold fleet.json: the request, so that it can be resumed."""

    study: Text
    study_digest: Text
    seed: Whole
    labctl: Text
    started: Text
    command: tuple[Text, ...]
    options: tuple[Text, ...] = ()
    """Further options of `labctl sweep`."""
    inventory: tuple[Text, ...]
    serial: Text
    policy: Text | None = None
    variables: dict[str, Text] = {}
    batches: tuple[tuple[Text, ...], ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts in the order of their batches."""
        return tuple(host for batch in self.batches for host in batch)


def check_names(hosts: Sequence[str]) -> None:
    """Raise UsageError for a host whose name cannot be a folder's."""
    for host in hosts:
        if not _NAME.fullmatch(host):
            raise UsageError(
                f"the inventory has a host '{host}', which is not a valid folder name",
                hint="Use letters, digits and + . _ : -, beginning with a letter or digit, and "
                "put the address into 'ansible_host'.",
            )


def fleet_path(results: Path, name: str) -> Path:
    """Return the folder of the fleet of that name in `results`, or that path (a name with a
    '/')."""
    return Path(name) if "/" in name else results / name


def read_fleet(path: Path) -> FleetSweep:
    """Return the request of a fleet's folder. Raises UsageError if there is none or a newer labctl
    wrote it, BrokenError if its fleet.json is damaged."""
    if not (path / FLEET).is_file():
        raise UsageError(
            f"{path} is not the folder of a fleet: it has no {FLEET}",
            hint="Name the folder that 'labctl fleet sweep' made, results/fleet-…, or one with "
            f"archives of hosts, HOST/{RUN}.",
        )
    return read_record(
        FleetSweep, path / FLEET, SCHEMA, "It has no other copy: measure as a new fleet."
    )


def read_state(path: Path) -> StateRecord:
    """Return a host's state.json. Raises BrokenError if it is damaged."""
    return read_record(StateRecord, path, SCHEMA, "Remove it, and its host is checked again.")


def read_record(kind: type[R], path: Path, known: int, hint: str) -> R:
    """Return a file of a fleet's folder. `known`: its schema here. Raises UsageError if a newer
    labctl wrote it, BrokenError with the hint if it is damaged."""
    data = read_json(path)
    if not isinstance(data, dict):
        raise FileError(f"{path} is not a JSON object", hint=hint)
    schema = data.get("schema")
    if isinstance(schema, int) and schema > known:
        raise newer(path, schema, known)
    return whole(kind, {key: of for key, of in data.items() if key != "schema"}, path, hint)


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """Write the folder of a fleet's sweep, and read it to resume."""

    path: Path
    record: FleetSweep

    @classmethod
    def create(cls, path: Path, record: FleetSweep) -> SweepFolder:
        """Return a new folder with every host waiting. Raises HostError if it cannot be made."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        except OSError as error:
            raise HostError(
                f"cannot make the fleet's folder {path}: {error.strerror}",
                hint="Name a writable folder with --results.",
            ) from error
        return cls.write(path, record)

    @classmethod
    def write(cls, path: Path, record: FleetSweep) -> SweepFolder:
        """Return a present folder as a new fleet's, with every host waiting."""
        made = cls(path, record)
        write_json(path / FLEET, {"schema": SCHEMA, **record.to_json()}, below=path)
        for number, batch in enumerate(record.batches, start=1):
            for host in batch:
                made.write_state(host, StateRecord(batch=number))
        return made

    @classmethod
    def find(cls, results: Path, name: str) -> SweepFolder:
        """Return the fleet of that name in `results`, or at that path. Raises UsageError, and
        BrokenError for a damaged fleet.json."""
        path = fleet_path(results, name)
        record = read_fleet(path)
        check_names(record.hosts)
        return cls(path.resolve(), record)

    def host(self, name: str) -> Path:
        """Return the folder of a host."""
        return self.path / "hosts" / name

    def state(self, host: str) -> StateRecord:
        """Return a host's progress. Raises BrokenError if it cannot be read."""
        return read_state(self.host(host) / STATE)

    def write_state(self, host: str, state: StateRecord) -> None:
        """Write a host's progress; completely or not at all."""
        content = {"schema": SCHEMA, **state.model_dump(mode="json")}
        write_json(self.host(host) / STATE, content, below=self.path)

    def change(self, host: str, **changes: Any) -> StateRecord:
        """Change a host's state on the disk; returns the new one."""
        before = self.state(host)
        after = before.model_copy(update=changes)
        if after != before:
            self.write_state(host, after)
        return after


LIMIT: Final = "failed.limit"


def write_limit(folder: Path, hosts: Sequence[str]) -> Path:
    """Write hosts into a file for Ansible's --limit @FILE; return its path. Without hosts it is
    removed: as a limit an empty file would mean no host."""
    path = folder / LIMIT
    if hosts:
        with replacing(path) as file:
            file.write("".join(f"{host}\n" for host in hosts).encode())
    else:
        path.unlink(missing_ok=True)
    return path


@dataclass(slots=True)
class Overall:
    """Progress of a whole sweep: hosts that are done, and the time left by the trials of all."""

    hosts: int
    done: set[str] = field(default_factory=set)
    _trials: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Trials of each host: when it was first heard of, now, and planned."""

    def hear(self, host: str, state: StateRecord, news: HostNews) -> None:
        """Take in the news of a host."""
        if state.status is Status.DONE:
            self.done.add(host)
        if news.done is not None and news.planned:
            first = self._trials.get(host, (news.done, 0, 0))[0]
            self._trials[host] = (first, news.done, news.planned)

    def left_s(self, elapsed_s: float) -> float | None:
        """Return the seconds left if trials go on at the present rate and hosts without news have
        as many as the others; None if none was measured since the start."""
        measured = sum(now - first for first, now, _ in self._trials.values())
        if measured <= 0:
            return None
        planned = sum(of for *_, of in self._trials.values())
        lacking = planned / len(self._trials) * (self.hosts - len(self._trials))
        left = sum(of - now for _, now, of in self._trials.values()) + lacking
        return elapsed_s * left / measured


PLAYBOOK = "labctl.lab.sweep"

Watching = Callable[[str, StateRecord, HostNews], None]
"""Function that gets each host's news, with the host's state then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToReach:
    """Hold how to reach the hosts, which may differ each time. `variables`: further ones of the
    roles'."""

    inventory: Sequence[str]
    forks: int
    variables: Mapping[str, str]


class Hearing(Protocol):
    """Update hosts' states from a playbook's events. `begun`: the hosts that it reached."""

    begun: set[str]

    def event(self, event: Mapping[str, object]) -> None: ...


def play_on(
    playbook: str,
    how: HowToReach,
    hosts: Sequence[str],
    variables: Mapping[str, object],
    heard: Hearing,
) -> Ended:
    """Run a playbook on hosts to its end. Raises BrokenError if it did not begin on any of them."""
    ended = play(
        playbook,
        inventory=how.inventory,
        limit=hosts,
        forks=how.forks,
        variables=variables,
        handler=heard.event,
    )
    if heard.begun.isdisjoint(hosts):
        raise BrokenError(f"ansible-playbook ended with status {ended.status}: {ended.said}")
    return ended


def sweep_hosts(fleet: SweepFolder, how: HowToReach, study: str, watching: Watching) -> None:
    """Run the sweep on every host that is not done, batch by batch.

    Ansible ends a play if all hosts of a batch are lost. The rest continues in another, in which
    the guard of the role labctl_gate decides with what the plays before it found: it may stop the
    first batch, and then the others are 'not touched', too. Ctrl-C stops no host. Raises
    BrokenError if Ansible ended before it reached any host.
    """
    left = [host for host in fleet.record.hosts if fleet.state(host).status is not Status.DONE]
    while left:
        heard = _Heard(fleet, watching)
        play_on(PLAYBOOK, how, left, _variables(fleet, how, study, left), heard)
        left = [host for host in left if host not in heard.begun]
        if heard.stopped:
            _leave(fleet, left, heard.stopped)
            return


def _gated(fleet: SweepFolder, *, passed: bool) -> list[str]:
    """Return the hosts whose runs the gate let pass, or didn't."""
    states = {host: fleet.state(host) for host in fleet.record.hosts}
    return [
        host
        for host, state in states.items()
        if state.status is Status.DONE and (not state.reason) is passed
    ]


def _leave(fleet: SweepFolder, hosts: Sequence[str], why: str) -> None:
    for host in hosts:
        if fleet.state(host).status in (Status.WAITING, Status.NOT_TOUCHED):
            fleet.change(host, status=Status.NOT_TOUCHED, reason=why)


def _variables(
    fleet: SweepFolder, how: HowToReach, study: str, left: Sequence[str]
) -> dict[str, object]:
    record, there = fleet.record, set(left)
    sizes = [len(there.intersection(batch)) for batch in record.batches]
    own = "labctl"
    found: dict[str, object] = {
        "labctl_serial": [size for size in sizes if size],
        "labctl_sweep_id": fleet.path.name,
        "labctl_sweep_study": study,
        "labctl_sweep_study_digest": record.study_digest,
        "labctl_sweep_seed": record.seed,
        "labctl_sweep_options": list(record.options),
        "labctl_sweep_version": record.labctl,
        "labctl_sweep_fetch_to": str(fleet.path / "hosts"),
        "labctl_sweep_control_command": own,
        "labctl_gate_command": own,
        **how.variables,
    }
    if record.policy is not None:
        found["labctl_gate_policy"] = record.policy
        found["labctl_gate_passed_before"] = _gated(fleet, passed=True)
        found["labctl_gate_failed_before"] = _gated(fleet, passed=False)
        found["labctl_gate_batches"] = [list(batch) for batch in record.batches]
    return found


class _Heard:
    """Update the hosts' states from a playbook's events."""

    def __init__(self, fleet: SweepFolder, watching: Watching) -> None:
        self._fleet = fleet
        self._watching = watching
        self._hosts = frozenset(fleet.record.hosts)
        self._is_gated = fleet.record.policy is not None
        self._fetched: set[str] = set()
        self._decided: set[str] = set()
        """Hosts whose gate or guard wrote why it fails, before it does."""
        self.begun: set[str] = set()
        self.stopped = ""

    def event(self, event: Mapping[str, object]) -> None:
        """Process an event of ansible-runner."""
        news = news_of(event)
        if news is None or news.host not in self._hosts:
            return
        if news.what is What.STOPPED:
            self.stopped = news.reason
        self.begun.add(news.host)
        state = self._fleet.change(news.host, **self._changes(news))
        self._watching(news.host, state, news)

    def _changes(self, news: HostNews) -> dict[str, object]:
        host = news.host
        match news.what:
            case What.STARTED:
                return {"status": Status.RUNNING, "reason": ""}
            case What.BUSY:
                if not news.more:  # the role gave it up, and fails next
                    self._decided.add(host)
                return {"status": Status.BUSY, "reason": news.reason}
            case What.PROGRESS:
                changes: dict[str, object] = {
                    "status": Status.RUNNING,
                    "reason": "",
                    "run": news.run,
                }
                return changes | ({"digest": news.digest} if news.digest else {})
            case What.FETCHED:
                self._fetched.add(host)
                return {} if self._is_gated else {"status": Status.DONE, "reason": ""}
            case What.PASSED:
                return {"status": Status.DONE, "reason": ""} if host in self._fetched else {}
            case What.NOT_PASSED if host in self._fetched:
                self._decided.add(host)
                return {"status": Status.DONE, "reason": news.reason}
            case What.STOPPED:
                self._decided.add(host)
                return {"status": Status.NOT_TOUCHED, "reason": news.reason}
            case What.FAILED if host not in self._decided:
                return {"status": Status.FAILED, "reason": f"{news.task}: {news.reason}"}
            case What.UNREACHABLE:
                return {"status": Status.UNREACHABLE, "reason": news.reason}
            case _:
                return {}
