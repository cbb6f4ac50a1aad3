"""What `labctl fleet sweep` refuses before it talks to any host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labctl.fleet import sweep_hosts as sweeping
from labctl.fleet.ansible import Ended
from tests.unit.cli.conftest import Labctl

TINY = str(Path(__file__).parents[2] / "guest/tiny.yaml")


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {h1: {}, h2: {}, h3: {}}}\n")
    return str(path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the study is missing"),
        (("--seed", "1", TINY), "the study is missing, or comes after its options"),
        (("no-such-study",), "no-such-study"),
        ((TINY, "--blocks", "many"), "many"),
        ((TINY, "--no-such-option"), "--no-such-option"),
        ((TINY, "--plan-only"), "does not work with labctl fleet sweep"),
        ((TINY, "--detach"), "does not work with labctl fleet sweep"),
        ((TINY, "--serial", "0"), "--serial"),
        ((TINY, "--limit", "rack7"), "rack7"),
        ((TINY, "--set", "x"), "NAME=VALUE"),
        ((TINY, "--resume", "fleet-1"), "--resume continues"),
        (("--resume", "fleet-1"), "not the folder of a fleet"),
    ],
)
def test_what_is_wrong_is_said_before_any_host_is_asked(
    labctl: Labctl, inventory: str, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    results = str(tmp_path / "results")
    done = labctl("fleet", "sweep", "--inventory", inventory, "--results", results, *words)
    assert done.code == 2, done.err
    assert said in done.err
    assert not Path(results).exists()


def test_an_inventory_is_asked_for(labctl: Labctl) -> None:
    done = labctl("fleet", "sweep", TINY)
    assert done.code == 2
    assert "--inventory" in done.err


def test_a_playbook_that_reaches_no_host_is_a_fault_with_ansibles_words(
    labctl: Labctl, inventory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(playbook: str, **_: object) -> Ended:
        return Ended(4, "the role 'labctl_sweep' was not found")

    monkeypatch.setattr(sweeping, "play", broken)
    words = ("--inventory", inventory, "--results", str(tmp_path), "--serial", "1,100%")
    done = labctl("fleet", "sweep", *words, TINY, "--seed", "7")
    assert done.code == 4
    assert "status 4: the role 'labctl_sweep' was not found" in done.err


def test_the_seed_is_the_fleets_and_the_rest_the_hosts(
    labctl: Labctl, inventory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, object]] = []

    def play(playbook: str, **more: object) -> Ended:
        given.append(more)
        return Ended(4, "")

    monkeypatch.setattr(sweeping, "play", play)
    words = ("--inventory", inventory, "--results", str(tmp_path), "--serial", "1,100%")
    labctl("fleet", "sweep", *words, TINY, "--seed", "7", "--blocks", "3")
    [fleet] = tmp_path.glob("fleet-*")
    record = json.loads((fleet / "fleet.json").read_text())
    assert record["seed"] == 7
    assert record["batches"] == [["h1"], ["h2", "h3"]]
    variables = given[0]["variables"]
    assert isinstance(variables, dict)
    assert variables["labctl_sweep_seed"] == 7
    assert variables["labctl_sweep_options"] == ["--blocks", "3"]
    assert variables["labctl_serial"] == [1, 2]
    assert variables["labctl_sweep_study"] == TINY
