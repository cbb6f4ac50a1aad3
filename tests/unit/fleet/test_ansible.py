"""A playbook's end at a signal, with a stand-in for ansible-runner, and inventories that Ansible is
not asked about."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import UsageError
from labctl.fleet.ansible import Ended, inventory_hosts, play


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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that are run: Ansible would read `/` for minutes, and run the programs in it."""
    argvs: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> Any:
        argvs.append(argv)
        return SimpleNamespace(returncode=0, stdout="  hosts (1):\n    h1\n", stderr="")

    monkeypatch.setattr("labctl.base.process.run", run)
    return argvs


def test_a_folder_that_is_not_one_of_inventories_is_refused_before_ansible_reads_it(
    tmp_path: Path, asked: list[list[str]]
) -> None:
    for number in range(501):
        (tmp_path / f"{number}.txt").touch()
    for folder in ("/", str(tmp_path)):
        with pytest.raises(UsageError, match="has more than 500 files and folders, too many"):
            inventory_hosts([folder], None)
    assert asked == []


def test_a_folder_of_inventories_may_have_many_variables(
    tmp_path: Path, asked: list[list[str]]
) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {h1: }}")
    (tmp_path / "host_vars").mkdir()
    for number in range(501):
        (tmp_path / f"host_vars/h{number}.yml").touch()
    assert inventory_hosts([str(tmp_path)], None) == ["h1"]
    assert len(asked) == 1
