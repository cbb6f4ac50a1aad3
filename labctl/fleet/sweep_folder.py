"""Write a fleet's folder: what was planned, and how far each host came.

fleet-ID/fleet.json                  the study, the seed, the batches of hosts
fleet-ID/hosts/NAME/state.json       how far the host came
fleet-ID/hosts/NAME/run.tar.xz       its run, as 'labctl run export' packs one
fleet-ID/data/                       what of it is pooled (labctl/fleet/dataset.py)

What pools runs reads it as well (labctl/fleet/fleet_folder.py), by the records of this module.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.store.jsonfile import newer, read_json, write_json
from labctl.store.records.as_made import whole
from labctl.store.records.tolerant import Record, Text, Whole

SCHEMA: Final = 1
FLEET, STATE, RUN = "fleet.json", "state.json", "run.tar.xz"
R = TypeVar("R", bound=Record)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._:-]{0,199}")


class Status(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    NOT_TOUCHED = "not touched"


class StateRecord(Record):
    """Hold a host's state.json. `batch`: the number of its batch, from 1; `digest`: of its run's
    content, as its host had it."""

    status: Status = Status.WAITING
    reason: Text = ""
    run: Text = ""
    digest: Text = ""
    batch: Whole


class FleetSweep(Record):
    """Hold fleet.json: what was asked for, so that it can be gone on with."""

    study: Text
    study_digest: Text
    seed: Whole
    labctl: Text
    started: Text
    command: tuple[Text, ...]
    options: tuple[Text, ...] = ()
    """More words of `labctl sweep`."""
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
    """Raise UsageError for a host whose name can't be a folder's."""
    for host in hosts:
        if not _NAME.fullmatch(host):
            raise UsageError(
                f"the inventory has a host '{host}', whose name can't be a folder's",
                hint="Use letters, digits and + . _ : -, beginning with a letter or digit, and "
                "put the address into 'ansible_host'.",
            )


def fleet_path(results: Path, name: str) -> Path:
    """Return the folder of the fleet of that name in `results`, or that path, which has a '/' in
    it."""
    return Path(name) if "/" in name else results / name


def read_fleet(path: Path) -> FleetSweep:
    """Return what a fleet's folder was asked for. Raises UsageError where there is none or a newer
    labctl wrote it, BrokenError where its fleet.json isn't whole."""
    if not (path / FLEET).is_file():
        raise UsageError(
            f"{path} is not the folder of a fleet: it has no {FLEET}",
            hint="Name the folder that 'labctl fleet sweep' made, results/fleet-….",
        )
    return _read(FleetSweep, path / FLEET, "Nothing else holds it: measure as a new fleet.")


def read_state(path: Path) -> StateRecord:
    """Return a host's state.json. Raises BrokenError where it isn't whole."""
    return _read(StateRecord, path, "Remove it, and its host is looked at anew.")


def _read(kind: type[R], path: Path, hint: str) -> R:
    data = read_json(path)
    if not isinstance(data, dict):
        raise BrokenError(f"{path} is no JSON object", hint=hint)
    schema = data.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise newer(path, schema, SCHEMA)
    return whole(kind, {key: of for key, of in data.items() if key != "schema"}, path, hint)


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """Write the folder of a fleet's sweep, and read it to go on with it."""

    path: Path
    record: FleetSweep

    @classmethod
    def create(cls, path: Path, record: FleetSweep) -> SweepFolder:
        """Return a new folder with every host waiting. Raises HostError where it can't be made."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        except OSError as error:
            raise HostError(
                f"cannot make the fleet's folder {path}: {error.strerror}",
                hint="Name a folder that can be written with --results.",
            ) from error
        made = cls(path, record)
        write_json(path / FLEET, {"schema": SCHEMA, **record.to_json()}, below=path)
        for number, batch in enumerate(record.batches, start=1):
            for host in batch:
                made.write_state(host, StateRecord(batch=number))
        return made

    @classmethod
    def find(cls, results: Path, name: str) -> SweepFolder:
        """Return the fleet of that name in `results`, or at that path. Raises UsageError, and
        BrokenError for a fleet.json that isn't whole."""
        path = fleet_path(results, name)
        record = read_fleet(path)
        check_names(record.hosts)
        return cls(path.resolve(), record)

    def host(self, name: str) -> Path:
        """Return the folder of a host."""
        return self.path / "hosts" / name

    def state(self, host: str) -> StateRecord:
        """Return how far a host came. Raises BrokenError where that can't be read."""
        return read_state(self.host(host) / STATE)

    def write_state(self, host: str, state: StateRecord) -> None:
        """Write how far a host came; whole or not at all."""
        content = {"schema": SCHEMA, **state.model_dump(mode="json")}
        write_json(self.host(host) / STATE, content, below=self.path)

    def change(self, host: str, **changes: Any) -> StateRecord:
        """Change a host's state on the disk; returns the new one."""
        before = self.state(host)
        after = before.model_copy(update=changes)
        if after != before:
            self.write_state(host, after)
        return after
