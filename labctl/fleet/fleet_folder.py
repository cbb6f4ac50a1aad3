"""Read a fleet's folder: what was planned, and how far each host came.

fleet-ID/fleet.json                       the study, the seed, the batches of hosts
fleet-ID/hosts/NAME/state.json            how far the host came
fleet-ID/hosts/NAME/run.tar.xz            its run, as 'labctl run export' packs one
fleet-ID/data/                            what of it is pooled (labctl/fleet/dataset.py)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from labctl.analysis.fleet.fleet_model import HostState
from labctl.base.errors import BrokenError, UsageError
from labctl.base.held import open_regular
from labctl.store.jsonfile import newer, read_json
from labctl.store.records.tolerant import Record, Text, Whole, as_far_as_whole
from labctl.store.run_folder import RunFolder

SCHEMA: Final = 1
FLEET, STATE, RUN = "fleet.json", "state.json", "run.tar.xz"
DONE: Final = "done"


R = TypeVar("R", bound=Record)


class FleetRecord(Record):
    """Hold fleet.json."""

    study: Text | None = None
    study_digest: Text | None = None
    seed: Whole | None = None
    started: Text | None = None
    batches: tuple[tuple[Text, ...], ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts in the order of their batches."""
        return tuple(host for batch in self.batches for host in batch)


class StateRecord(Record):
    """Hold a host's state.json. `digest`: that of its run's content."""

    status: Text = "waiting"
    reason: Text = ""
    run: Text = ""
    digest: Text = ""
    batch: Whole | None = None


@dataclass(frozen=True, slots=True)
class FleetFolder:
    """Read a fleet's folder. Nothing in it is changed but `data`."""

    path: Path
    record: FleetRecord

    @classmethod
    def open(cls, path: Path) -> FleetFolder:
        """Return the fleet at a path. Raises UsageError where there is none."""
        if not (path / FLEET).is_file():
            raise UsageError(
                f"{path} is no fleet's folder: it has no {FLEET}",
                hint="Name the folder that 'labctl fleet sweep' made, results/fleet-…",
            )
        return cls(path, _record(FleetRecord, path / FLEET))

    @classmethod
    def find(cls, results: Path, name: str) -> FleetFolder:
        """Return the fleet of that name in `results`, or at that path, which has a '/' in it.
        Raises UsageError."""
        return cls.open(Path(name) if "/" in name else results / name)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def data(self) -> Path:
        return self.path / "data"

    def hosts(self) -> Iterator[str]:
        """Yield the hosts of the batches, then those that only have a folder, by name."""
        planned = dict.fromkeys(self.record.hosts)
        yield from (host for host in planned if _is_plain(host))
        try:
            found = sorted(path.name for path in (self.path / "hosts").iterdir() if path.is_dir())
        except FileNotFoundError:
            return
        yield from (host for host in found if host not in planned)

    def state(self, host: str) -> HostState:
        """Return how far a host came; what can't be read is a failure with that reason."""
        record = self._state(host)
        if isinstance(record, str):
            return HostState(host=host, status="failed", reason=record)
        return HostState(host=host, status=record.status, reason=record.reason, run=record.run)

    def digest(self, host: str) -> str:
        """Return what identifies the run of a host that is done: the digest that was verified when
        it was fetched, else the SHA-256 of its archive."""
        record = self._state(host)
        if not isinstance(record, str) and record.digest:
            return record.digest
        try:
            with open(open_regular(self._archive(host)), "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise BrokenError(
                f"{self._archive(host)} cannot be read: {error.strerror}",
                hint="'labctl fleet sweep --resume' fetches it again.",
            ) from error

    def run(self, host: str) -> RunFolder:
        """Return a host's run, in its archive. Raises BrokenError where there is none."""
        if not self._archive(host).is_file():
            raise BrokenError(
                f"its {RUN} is missing", hint="'labctl fleet sweep --resume' fetches it again."
            )
        return RunFolder.find(self.path, str(self._archive(host)))

    def _archive(self, host: str) -> Path:
        return self.path / "hosts" / host / RUN

    def _state(self, host: str) -> StateRecord | str:
        path = self.path / "hosts" / host / STATE
        if not path.is_file():
            return StateRecord(status="waiting", reason="nothing was heard of it")
        try:
            return _record(StateRecord, path)
        except BrokenError as error:
            return error.message


def _record(kind: type[R], path: Path) -> R:
    data: Any = read_json(path)
    if not isinstance(data, dict):
        raise BrokenError(f"{path} is no JSON object")
    schema = data.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise newer(path, schema, SCHEMA)
    record, unfit = as_far_as_whole(kind, data)
    if record is None or unfit:
        raise BrokenError(f"{path} is not whole: {unfit[0] if unfit else 'it holds nothing'}")
    return record


def _is_plain(host: str) -> bool:
    """Return whether a host's name is a folder's own name, which leads nowhere else."""
    return host not in ("", ".", "..") and "/" not in host and "\0" not in host
