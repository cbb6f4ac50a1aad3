"""Run tests with guests and hosts in two lanes: workers of xdist, each with a host's lock of its
own (tools/lane.sh).

A test marked `alone` waits for the other lane's test to end, and holds its next one up: it changes
the host's own settings, or counts who had how much of its CPUs, labctl itself included. Those of
one file wait once, and files of such tests come first, while unit tests have the CPUs that they
leave.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


class Lane:
    """Hold the host for the tests of this process, fixtures included, as the other lane lets it."""

    def __init__(self, turn: Path = _HERE / "guest", host: Path = _HERE / "fleet") -> None:
        """`turn`, `host`: folders that lanes lock. Whoever waits for the host has the turn, so that
        it comes next."""
        self._turn, self._host = turn, host
        self._holds: int | None = None

    def before(self, item: pytest.Item) -> None:
        """Wait until this test may run. Any that is in no lane may."""
        in_lane = any(item.get_closest_marker(name) for name in ("guest", "fleet"))
        if self._holds is None and in_lane and hasattr(item.config, "workerinput"):
            turn = _locked(self._turn, fcntl.LOCK_EX)
            how = fcntl.LOCK_EX if _is_alone(item) else fcntl.LOCK_SH
            self._holds = _locked(self._host, how)
            os.close(turn)

    def after(self, item: pytest.Item, following: pytest.Item | None) -> None:
        """Let the other lane go on, unless the next test belongs to this one."""
        goes_on = following and following.path == item.path and _is_alone(following)
        if self._holds is not None and not (_is_alone(item) and goes_on):
            os.close(self._holds)
            self._holds = None


def alone_first(items: list[pytest.Item]) -> None:
    """Put the tests of files in which each is alone before all others."""
    shared = {item.path for item in items if not _is_alone(item)}
    items.sort(key=lambda item: item.path in shared)


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def _locked(folder: Path, how: int) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, how)
    return descriptor
