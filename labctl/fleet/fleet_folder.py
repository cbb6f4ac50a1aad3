"""Read a fleet's folder to pool its runs: the plan, and each host's progress."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labctl.analysis.hosts.fleet import HostState
from labctl.base.errors import BrokenError
from labctl.base.trust import open_regular
from labctl.fleet.sweep_hosts import (
    RUN,
    STATE,
    FleetSweep,
    Status,
    fleet_path,
    read_fleet,
    read_state,
)
from labctl.store.run_folder import RunFolder
from labctl.store.run_places import find_run


@dataclass(frozen=True, slots=True)
class FleetFolder:
    """Read a fleet's folder. Only `data` is written."""

    path: Path
    record: FleetSweep

    @classmethod
    def open(cls, path: Path) -> FleetFolder:
        """Return the fleet at a path. Raises UsageError if there is none."""
        return cls(path, read_fleet(path))

    @classmethod
    def find(cls, results: Path, name: str) -> FleetFolder:
        """Return the fleet of that name in `results`, or at that path (a name with a '/'). Raises
        UsageError."""
        return cls.open(fleet_path(results, name))

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
        """Return a host's progress; an unreadable state is a failure with that reason."""
        path = self._state(host)
        if not path.is_file():
            why = "no news"
            return HostState(host=host, status=str(Status.WAITING), reason=why)
        try:
            of = read_state(path)
        except BrokenError as error:
            return HostState(host=host, status=str(Status.FAILED), reason=error.message)
        return HostState(host=host, status=str(of.status), reason=of.reason, run=of.run)

    def digest(self, host: str) -> str:
        """Return the digest of a finished host's run: the one verified when it was fetched, else
        the SHA-256 of its archive."""
        if known := read_state(self._state(host)).digest:
            return known
        try:
            with open(open_regular(self._archive(host)), "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise BrokenError(
                f"{self._archive(host)} cannot be read: {error.strerror}",
                hint="'labctl fleet sweep --resume' fetches it again.",
            ) from error

    def run(self, host: str) -> RunFolder:
        """Return a host's run, in its archive. Raises BrokenError if there is none."""
        if not self._archive(host).is_file():
            raise BrokenError(
                f"its {RUN} is missing", hint="'labctl fleet sweep --resume' fetches it again."
            )
        return find_run(self.path, str(self._archive(host)))

    def _archive(self, host: str) -> Path:
        return self.path / "hosts" / host / RUN

    def _state(self, host: str) -> Path:
        return self.path / "hosts" / host / STATE


def _is_plain(host: str) -> bool:
    """Return whether a host's name is a plain folder name, which leads nowhere else."""
    return host not in ("", ".", "..") and "/" not in host and "\0" not in host
