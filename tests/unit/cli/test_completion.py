"""`labctl completion`: the script of each shell, and the names that a shell is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labctl.cli.help import SHELLS
from tests.unit.cli.conftest import Labctl


def completed(words: str, **environment: str) -> list[str]:
    """What bash is offered for the last of the words."""
    done = subprocess.run(
        [sys.executable, "-m", "labctl.cli.main"],
        env={
            **os.environ,
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
            "_LABCTL_COMPLETE": "bash_complete",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.split()]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_its_script(labctl: Labctl, shell: str) -> None:
    said = labctl("completion", shell)
    assert (said.code, said.err) == (0, "")
    assert f"_LABCTL_COMPLETE={shell}_complete" in said.out


def test_another_shell_is_wrong_usage(labctl: Labctl) -> None:
    assert labctl("completion", "tcsh").code == 2


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("labctl tun", {"tuning"}),
        ("labctl dom", set()),
        ("labctl sweep pinn", {"pinning"}),
        ("labctl sweep pinning --tuning pinned+f", {"pinned+fifo", "pinned+fifo+iothreads"}),
        ("labctl sweep pinning --workload hack", {"hackbench"}),
        ("labctl tuning show vcpusched-f", {"vcpusched-fifo"}),
        ("labctl tuning diff baseline vcpusched-f", {"vcpusched-fifo"}),
        ("labctl domain show vcpusched-f", {"vcpusched-fifo"}),
        ("labctl workload show hack", {"hackbench"}),
        ("labctl doctor --for pinn", {"pinning"}),
    ],
)
def test_names_are_completed(words: str, offered: set[str]) -> None:
    assert set(completed(words)) == offered


def test_runs_are_completed(tmp_path: Path) -> None:
    for name in ("2026-01-01-a", "2026-01-02-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    found = completed("labctl report 2026", LABCTL_RESULTS=str(tmp_path))
    assert found == ["2026-01-01-a", "2026-01-02-b"]
    assert completed("labctl report l", LABCTL_RESULTS=str(tmp_path)) == ["latest"]
