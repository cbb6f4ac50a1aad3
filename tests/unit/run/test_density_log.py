"""The record of a density run is true however the run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.run.commands.density import folder_path, recorded
from labctl.run.planning.density import DensityPlan, plan_density
from labctl.store.density_record import DensityFolder
from tests.unit.density_records import count_record
from tests.unit.domain import hosts
from tests.unit.run.asked import plan_on
from tests.unit.run.test_density_plan import available, request

WORDS = ("labctl", "density", "frame-loop", "--limit", "frame_p95 < 16 ms")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DensityPlan:
    plan_on(monkeypatch, hosts.TWO_CPUS)
    available(monkeypatch, 8192)
    return plan_density(request(tmp_path))


def test_a_run_that_goes_on_is_on_disk_from_its_first_moment(
    plan: DensityPlan, tmp_path: Path
) -> None:
    path = folder_path(tmp_path / "results", "frame-loop")
    assert path.name.endswith("Z-density-frame-loop")
    with recorded(path, plan, WORDS):
        written = DensityFolder(path).read()
        assert (written.status, written.most, written.seed) == ("running", 7, 7)
        assert written.command == "labctl density frame-loop --limit 'frame_p95 < 16 ms'"
        assert str(written.limit.limit()) == "frame_p95 < 16.0 ms"
    done = DensityFolder(path).read()
    assert (done.status, done.ended_at is not None) == ("done", True)


def test_what_was_counted_stays_and_ctrl_c_says_how_to_see_it(
    plan: DensityPlan, tmp_path: Path
) -> None:
    path = tmp_path / "results" / "one"

    def interrupted() -> None:
        with recorded(path, plan, WORDS) as log:
            log.add_count(count_record("baseline", 1, 3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted()
    written = DensityFolder(path).read()
    assert (written.status, written.counts[0].number) == ("interrupted", 3)
    assert caught.value.__notes__ == [f"Show the result with: labctl density --show {path}"]


def test_a_run_that_fails_says_why(plan: DensityPlan, tmp_path: Path) -> None:
    path = tmp_path / "results" / "one"
    with pytest.raises(BrokenError), recorded(path, plan, WORDS):
        raise BrokenError("2 counts failed in a row")
    written = DensityFolder(path).read()
    assert (written.status, written.failure) == ("failed", "2 counts failed in a row")


def test_a_folder_that_can_not_be_made_is_the_hosts_refusal(
    plan: DensityPlan, tmp_path: Path
) -> None:
    (tmp_path / "results").write_text("a file")
    with (
        pytest.raises(HostError, match="cannot make the run's folder"),
        recorded(tmp_path / "results" / "one", plan, WORDS),
    ):
        pass
