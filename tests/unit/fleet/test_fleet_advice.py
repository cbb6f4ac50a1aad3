"""The steps of a fleet's advice: one list for hosts alike, each of the host's own run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.analysis.hosts.judge import judge_fleet
from labctl.base.errors import UsageError
from labctl.fleet.advice import FleetAdvice, advise_fleet
from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.table import taken
from labctl.store.archive import RunArchive
from tests.unit.fleet.fleets import hosts, make_fleet, with_rollout

GAIN = {"pinned": 1.2}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five hosts; 'pinned' pins h2 and h4 to other CPUs."""
    folder = make_fleet(tmp_path_factory.mktemp("fleets") / "fleet-1", hosts(5), effects=GAIN)
    for one in hosts(5):
        with_rollout(folder, one.name, cpu="11" if one.name in ("h2", "h4") else "1")
    return folder


@pytest.fixture
def copy(fleet: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fleet, tmp_path / "fleet-2"))


def advised(folder: Path, before: Callable[[], None] = lambda: None) -> FleetAdvice:
    """The advice, where something becomes of the runs after they were taken in."""
    fleet = FleetFolder.open(folder)
    found = taken(fleet)
    before()
    return advise_fleet(fleet, judge_fleet(found.rows, found.states), "pinned")


def test_hosts_of_equal_steps_share_one_list(fleet: Path) -> None:
    advice = advised(fleet)
    assert [of for _, of in advice.rollouts] == [("h1", "h3", "h5"), ("h2", "h4")]
    pins = [steps.rollout.live[0].argv[2:] for steps, _ in advice.rollouts]
    assert pins == [("@domain@", "0", "1", "--live"), ("@domain@", "0", "11", "--live")]
    assert "vCPU 0 on CPU 11" in advice.rollouts[1][0].takes[0]
    assert advice.risks == ("the neighbour waits",)
    assert advice.unread == ()


def test_trials_are_not_read_for_steps(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the whole archive is read")

    found = advised(copy, lambda: monkeypatch.setattr(RunArchive, "files", never))
    assert len(found.rollouts) == 2


def test_a_host_whose_run_cannot_be_read_is_named_and_the_others_are_advised(copy: Path) -> None:
    def damage() -> None:
        (copy / "hosts/h1/run.tar.xz").unlink()
        (copy / "hosts/h2/run.tar.xz").write_bytes(b"no archive")

    advice = advised(copy, damage)
    assert [host for host, _ in advice.unread] == ["h1", "h2"]
    assert dict(advice.unread)["h1"] == "its run.tar.xz is missing"
    assert [of for _, of in advice.rollouts] == [("h3", "h5"), ("h4",)]


def test_a_run_of_another_study_gives_no_steps(copy: Path) -> None:
    other = copy.with_name("fleet-3")
    make_fleet(other, hosts(1), effects=GAIN)

    def swapped() -> None:
        with_rollout(other, "h1", plan={"study_digest": "1" * 64})
        shutil.copy(other / "hosts/h1/run.tar.xz", copy / "hosts/h3/run.tar.xz")

    advice = advised(copy, swapped)
    [(host, why)] = advice.unread
    assert host == "h3"
    assert "another study" in why


def test_settings_that_are_none_give_no_steps(copy: Path) -> None:
    evil = {"host": {"swappiness": "10\nLABCTL-END\ntouch X\n"}}
    advice = advised(copy, lambda: with_rollout(copy, "h1", settings=evil))
    [(host, why)] = advice.unread
    assert host == "h1"
    assert "'host.swappiness'" in why


def test_a_name_that_no_tuning_has_ends_the_advice(fleet: Path) -> None:
    opened = FleetFolder.open(fleet)
    judged = judge_fleet(taken(opened).rows)
    with pytest.raises(UsageError, match="is not a valid name for a tuning"):
        advise_fleet(opened, judged, "../../etc/cron.d/x")


def test_a_run_without_recorded_xml_says_so(copy: Path) -> None:
    advice = advised(copy, lambda: with_rollout(copy, "h1", run={"xml": {}, "tunings": {}}))
    [steps] = [of for of, members in advice.rollouts if members == ("h1",)]
    assert steps.risks is None
    assert any("has no domain XML" in note for note in steps.rollout.notes)


def test_the_neighbours_loss_is_a_part_of_the_price(tmp_path: Path) -> None:
    folder = make_fleet(
        tmp_path / "fleet", hosts(4), effects=GAIN, primary_only=False, blocks=6, boots=2
    )
    found = {one.place.metric: one for one in advised(folder).worse}
    assert not found["neighbour_ops_per_s"].judged
    assert found["neighbour_ops_per_s"].pooled.mean < -0.05


def test_reading_goes_host_by_host(fleet: Path) -> None:
    opened, told = FleetFolder.open(fleet), []
    judged = judge_fleet(taken(opened).rows)
    advise_fleet(opened, judged, "pinned", told.append)
    assert told == ["h1", "h2", "h3", "h4", "h5"]
