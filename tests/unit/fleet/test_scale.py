"""What docs/scale.md measures on many hosts, on a few."""

from __future__ import annotations

import shutil
from pathlib import Path

from click.testing import CliRunner

from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.table import EFFECTS, SAMPLES, pieces, taken
from tools.fleet_scale import main


def test_a_report_reads_effects_alone(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [str(tmp_path / "fleet"), "--hosts", "3", "--trials", "160"])
    assert done.exit_code == 0, done.output
    fleet = FleetFolder.open(tmp_path / "fleet")
    assert len(pieces(fleet.data, SAMPLES)) == 3
    assert len(pieces(fleet.data, EFFECTS)) == 3
    whole = taken(fleet)
    shutil.rmtree(fleet.data / SAMPLES)
    without = taken(fleet)
    assert len(whole.rows) > 0
    assert sorted(map(repr, whole.rows)) == sorted(map(repr, without.rows))
    assert {row.effect.blocks for row in whole.rows} == {10}
