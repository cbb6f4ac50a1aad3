"""Write a roll-out's folder: what was planned, and how each host stands.

fleet-ID/rollouts/ID/rollout.json             the tuning, the seed, the batches of hosts
fleet-ID/rollouts/ID/hosts/NAME/state.json    how the host stands
fleet-ID/rollouts/ID/hosts/NAME/run.tar.xz    the run that measured the tuning once more
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from labctl.base.errors import HostError
from labctl.fleet.sweep_folder import STATE
from labctl.store.jsonfile import write_json
from labctl.store.records.tolerant import Record, Text, Whole

SCHEMA: Final = 1
ROLLOUT: Final = "rollout.json"


class Stand(StrEnum):
    """Say how a host stands in a roll-out."""

    WAITING = "waiting"
    MEASURING = "measuring"
    CHANGED = "changed"
    KEPT = "kept"
    NOT_CHANGED = "not changed"
    UNDONE = "undone"
    UNKNOWN = "unknown"
    """It can't be reached: what is changed on it nobody knows, until its timer has undone it."""
    NOT_TOUCHED = "not touched"


class HostStand(Record):
    """Hold a host's state.json. `batch`: the number of its batch, from 1."""

    stand: Stand = Stand.WAITING
    reason: Text = ""
    batch: Whole


class Rollout(Record):
    """Hold rollout.json. `runs`: host to its run in the fleet's sweep; `left_out`: hosts that
    don't get the tuning, with the reason."""

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
    """Keep how the hosts of a roll-out stand, in memory and on the disk."""

    path: Path
    record: Rollout
    stands: dict[str, HostStand]

    @classmethod
    def create(cls, path: Path, record: Rollout) -> RolloutFolder:
        """Return a new folder with every host waiting. Raises HostError where it can't be made."""
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
        """Change how a host stands; returns that."""
        before = self.stands[host]
        after = before.model_copy(update=changes)
        if after != before:
            self._set(host, after)
        return after

    def _set(self, host: str, stand: HostStand) -> None:
        self.stands[host] = stand
        path = self.path / "hosts" / host / STATE
        write_json(path, {"schema": SCHEMA, **stand.model_dump(mode="json")}, below=self.path)
