from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from labctl.cli.main import main


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Labctl = Callable[..., Said]


@pytest.fixture
def labctl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Labctl:
    """The whole command, from its argv to its exit code, in this process."""

    def call(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["labctl", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        code = caught.value.code
        captured = capsys.readouterr()
        return Said(int(code or 0), captured.out, captured.err)

    return call


def own_files(folder: Path) -> None:
    """Write the files of their own that the pages' readers have."""
    (folder / "w.py").write_text("#!/usr/bin/env python3\nimport helper\nprint(helper.text)\n")
    (folder / "helper.py").write_text("text='x'")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"
