"""The runner with a working folder of the test's own."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import labctl.base.runner_messages
from tests.unit.runner.runners import Runner, running_runner


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    monkeypatch.setattr(labctl.base.runner_messages, "WORK", str(tmp_path / "work"))
    monkeypatch.setattr(labctl.base.runner_messages, "CWD", str(tmp_path / "work/run"))
    # Commands of other users pass through.
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode | 0o755 != mode:
            folder.chmod(mode | 0o755)
    with running_runner() as found:
        yield found
