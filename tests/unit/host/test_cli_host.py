from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labctl.base.errors import BrokenError, HostError
from labctl.cli.host import command
from labctl.host.machines import boot_id


def labctl_host(state: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, obj={"state_dir": state})


@pytest.fixture(autouse=True)
def _no_real_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests change nothing of the host, whoever measures on it."""
    monkeypatch.setattr("labctl.run.commands.host_tuning.host_lock", lambda: tmp_path / "lock")


@pytest.fixture
def left_behind(tmp_path: Path) -> Path:
    """A setting that a labctl which is no more had changed from 60 to 10."""
    setting = tmp_path / "swappiness"
    setting.write_text("10")
    entry = {
        "op": "change",
        "id": "a",
        "name": "swappiness",
        "kind": "file-value",
        "arguments": {"path": str(setting)},
        "old": "60",
        "new": "10",
        "pid": os.getpid(),
        "pid_start": 1,
        "boot_id": boot_id(),
        "time": "2026-01-01T00:00:00+00:00",
    }
    (tmp_path / "journal.jsonl").write_text(json.dumps(entry) + "\n")
    return setting


def test_the_journal_lists_what_is_changed(tmp_path: Path, left_behind: Path) -> None:
    [entry] = json.loads(labctl_host(tmp_path, "journal", "--json").output)
    assert (entry["name"], entry["old"], entry["owner_lives"]) == ("swappiness", "60", False)
    assert "swappiness" in labctl_host(tmp_path, "journal").output


def test_restore_puts_back_and_says_so(tmp_path: Path, left_behind: Path) -> None:
    result = labctl_host(tmp_path, "restore")
    assert result.output == "restored: swappiness = 60 (was '10')\n"
    assert left_behind.read_text() == "60"
    assert labctl_host(tmp_path, "restore").output == "nothing to restore\n"
    assert labctl_host(tmp_path, "journal").output == "nothing is changed\n"


def test_restore_fails_when_something_could_not_be_put_back(
    tmp_path: Path, left_behind: Path
) -> None:
    left_behind.unlink()
    left_behind.mkdir()
    result = labctl_host(tmp_path, "restore", "--json")
    assert isinstance(result.exception, BrokenError)
    report = json.loads(result.output)
    assert report["results"][0]["outcome"] == "failed"
    assert len(report["pending"]) == 1


def test_the_probe_without_a_kernel_says_what_to_build(tmp_path: Path) -> None:
    result = labctl_host(tmp_path, "accel")
    assert isinstance(result.exception, HostError)
    assert "labctl image build" in (result.exception.hint or "")


def test_emulation_can_be_asked_for(tmp_path: Path) -> None:
    kernel = tmp_path / "vmlinuz"
    kernel.touch()
    arguments = ("accel", "--accel", "tcg", "--kernel", str(kernel), "--json")
    assert json.loads(labctl_host(tmp_path, *arguments).output)["accelerator"] == "tcg"


def test_facts_are_printed_one_a_line_or_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {
        "cpus": 2,
        "isolated": "",
        "smt": {"unavailable": "no file"},
        "sets": {"a": ["x", "y"], "b": True},
    }
    monkeypatch.setattr("labctl.host.facts.host_facts", lambda places: facts)
    assert json.loads(labctl_host(tmp_path, "facts", "--json").output) == facts
    assert labctl_host(tmp_path, "facts").output.splitlines() == [
        "cpus      2",
        "isolated  none",
        "smt       unavailable: no file",
        "sets      a: x y; b: yes",
    ]
