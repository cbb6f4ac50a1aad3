"""What every unit test has: a state folder of its worker's own; the user's stays as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from labctl.base.paths import StatePaths


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if "LABCTL_STATE_DIR" not in os.environ:
            patch.setenv("LABCTL_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder that a reboot leaves; pytest's own may be in memory."""
    with TemporaryDirectory(prefix="labctl-unit-", dir="/var/tmp") as made:
        yield Path(made)


@pytest.fixture
def places(tmp_path: Path) -> StatePaths:
    return StatePaths(tmp_path / "state")
