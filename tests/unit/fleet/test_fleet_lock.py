from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from labctl.base.errors import BusyError
from labctl.fleet.fleet_folder import fleet_locked


def test_a_second_control_node_is_told_who_has_the_fleet(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet-1"
    fleet.mkdir()
    with (
        fleet_locked(fleet, "labctl fleet sweep fleet-1"),
        pytest.raises(BusyError) as caught,
        fleet_locked(fleet, "labctl fleet rollout fleet-1"),
    ):
        pass
    message = str(caught.value)
    assert "the fleet fleet-1 is in use by" in message
    assert f"'labctl fleet sweep fleet-1' (process {os.getpid()})" in message
    with fleet_locked(fleet, "labctl fleet rollout fleet-1"):
        said = json.loads((fleet / ".lock").read_text())
        assert said["what"] == "labctl fleet rollout fleet-1"
    assert (fleet / ".lock").read_text() == ""


@pytest.mark.parametrize("text", ["", "{", "[]", '{"user": 7}', "\x1b[31m"])
def test_a_lock_that_says_nothing_is_held_all_the_same(tmp_path: Path, text: str) -> None:
    with fleet_locked(tmp_path, "labctl"):
        (tmp_path / ".lock").write_text(text)
        with pytest.raises(BusyError, match="another labctl"), fleet_locked(tmp_path, "labctl"):
            pass
