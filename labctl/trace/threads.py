"""Whose threads a trace's events are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labctl.base.errors import BrokenError
from labctl.store.trial import TrialFolder
from labctl.trace import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """`role`: vcpu, emulator, iothread, vhost or workload. `index`: among those of its role."""

    tid: int
    pid: int
    role: str
    index: int
    name: str


def stored_threads(raw: TrialFolder) -> list[Thread]:
    """Of a trial. Raises BrokenError naming the file when it is missing or isn't what was
    written."""
    data: Any = raw.read_json(files.THREADS)
    try:
        return [
            Thread(
                tid=int(row["tid"]),
                pid=int(row["pid"]),
                role=str(row["role"]),
                index=int(row["index"]),
                name=str(row["name"]),
            )
            for row in data
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenError(
            f"{raw.path / files.THREADS}: expected threads with tid, pid, role, index and name, "
            f"found something else ({error!r})"
        ) from error
