"""The runner's archive as native machines mount it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from labctl.base.runner_messages import runner_archive
from labctl.run.guests.bench import runner_file


def test_only_root_can_change_what_it_runs_in_machines(tmp_path: Path) -> None:
    lab: Any = SimpleNamespace(work=tmp_path)
    before = os.umask(0)
    try:
        path = runner_file(lab)
    finally:
        os.umask(before)
    assert path.read_bytes() == runner_archive()
    assert path.stat().st_mode & 0o777 == 0o600
    assert runner_file(lab) == path
    assert [*tmp_path.iterdir()] == [path]
