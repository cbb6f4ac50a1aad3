"""A playbook's end at a signal, with a stand-in for ansible-runner."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.fleet.ansible import Ended, play


def _played(monkeypatch: pytest.MonkeyPatch, number: int, *, asks: bool = False) -> Ended:
    """Play a playbook that gets a signal. `asks`: the runner asks afterwards whether to cancel it;
    else its last task had ended."""

    def run(*, cancel_callback: Callable[[], bool], **_: Any) -> Any:
        os.kill(os.getpid(), number)
        status = "canceled" if asks and cancel_callback() else "successful"
        return SimpleNamespace(status=status, rc=0)

    monkeypatch.setitem(sys.modules, "ansible_runner", SimpleNamespace(run=run))
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/bin/ansible-playbook")
    return play(
        "labctl.lab.sweep",
        inventory=["hosts.yml"],
        limit=["h1"],
        forks=1,
        variables={},
        handler=lambda event: None,
    )


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_also_where_it_came_too_late_to_cancel_anything(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        _played(monkeypatch, number)
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("hangup")
def test_a_signal_that_was_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under nohup."""
    assert _played(monkeypatch, signal.SIGHUP, asks=True) == Ended(0, "")
