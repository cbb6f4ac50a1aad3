"""`labctl fleet advise` as a command: whom it advises what, and what it says where it can't."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.fleet.fleets import MadeHost, hosts, make_fleet, with_rollout

from .conftest import Labctl

DOCUMENTED = Path(__file__).parents[3] / "docs/fleet.md"
TUNINGS = ("native", "baseline", "control", "handicap", "pinned", "pinned+fifo")
KERNELS = {"kernel_release": "6.1.0"}


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """'pinned' gains, 'pinned+fifo' loses; h7 was lost, and h2 did not pass its gate."""
    lost = MadeHost(name="h7", status="unreachable", reason="no route to host")
    place = tmp_path_factory.mktemp("fleets") / "fleet-1"
    members = hosts(6)
    members[1] = replace(members[1], reason="its gate did not let it pass")
    folder = make_fleet(
        place,
        [*members, lost],
        effects={"pinned": 1.2, "pinned+fifo": 0.8},
        tunings=TUNINGS,
        primary_only=False,
    )
    for one in hosts(6):
        with_rollout(folder, one.name)
    return folder


@pytest.fixture(scope="module")
def two_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """'pinned' gains on hosts with one kernel, and loses on those with another."""
    old = [replace(one, facts=KERNELS, effects={"pinned": 0.8}) for one in hosts(12)[:6]]
    new = [replace(one, effects={"pinned": 1.2}) for one in hosts(12)[6:]]
    place = tmp_path_factory.mktemp("fleets") / "fleet-2"
    return make_fleet(place, [*old, *new], effects={"pinned": 1.0})


def test_the_answer_its_price_the_others_the_steps_and_the_next_command(
    labctl: Labctl, fleet: Path
) -> None:
    said = labctl("fleet", "advise", str(fleet))
    assert said.code == 0, said.err
    out = squeezed(said.out)
    parts = [
        "Roll out 'pinned' on 6 of 7 hosts: the prediction for a host that was not measured is +",
        "▲ All hosts may take 'pinned'",
        "Note: Guests were emulated (TCG)",
        "Cost",
        "neighbour ops/s, sysbench-cpu with",
        "Risk: the neighbour waits.",
        "Check first",
        "h2 its gate did not let it pass",
        "Hosts left out",
        "h7 was not measured: unreachable, no route to host",
        "Steps on 6 hosts: h1, h2, h3, h4, h5, h6",
        "Change the domain; in force after the next start of the guest",
        "virt-xml NAME --edit --print-diff --define",
        f"labctl fleet rollout {fleet} --tuning pinned --inventory /hosts.yml",
    ]
    places = [out.find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    assert places == sorted(places)
    assert "pinned+fifo" not in out


def test_only_the_group_that_may_take_it_is_advised(labctl: Labctl, two_kernels: Path) -> None:
    said = labctl("fleet", "advise", str(two_kernels), "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["hosts"] == ["h7", "h8", "h9", "h10", "h11", "h12"]
    assert {one["host"] for one in found["others"]} == {f"h{number}" for number in range(1, 7)}
    assert "with kernel 6.12.0 that was not measured" in found["headline"]
    shown = squeezed(labctl("fleet", "advise", str(two_kernels)).out)
    assert "Roll out 'pinned' on 6 of 12 hosts" in shown
    assert shown.count("does harm for hosts") == 1, "hosts with one reason share a row"


def test_a_tuning_that_may_not_be_taken_exits_with_1_and_says_why(
    labctl: Labctl, fleet: Path
) -> None:
    said = labctl("fleet", "advise", str(fleet), "--tuning", "pinned+fifo")
    assert said.code == 1
    assert "Do not roll out 'pinned+fifo': no host may take it." in said.out
    assert "▼ All hosts must not take 'pinned+fifo'" in said.out
    assert "Its mean effect is a loss" in said.out
    assert "'pinned'" not in said.out
    found = labctl("fleet", "advise", str(fleet), "--tuning", "pinned+fifo", "--json")
    assert found.code == 1
    told = json.loads(found.out)
    assert (told["tuning"], told["hosts"], told["next"]) == ("pinned+fifo", [], None)
    assert told["advised"] == ["pinned"]
    assert [one["code"] for one in told["answers"]] == ["does harm"]


def test_where_nothing_is_advised_each_tuning_has_its_reason(
    labctl: Labctl, tmp_path: Path
) -> None:
    folder = make_fleet(
        tmp_path / "fleet", hosts(3), effects={"pinned": 1.0, "pinned+fifo": 0.8}, tunings=TUNINGS
    )
    said = labctl("fleet", "advise", str(folder))
    assert said.code == 1
    assert "Roll out nothing: no host may take any of the tunings." in said.out
    assert "▼ All hosts must not take 'pinned+fifo'" in said.out
    assert "'pinned' was not shown to be safe and useful for all hosts" in said.out
    assert "virt-xml" not in said.out


def test_an_unknown_tuning_is_wrong_usage(labctl: Labctl, fleet: Path) -> None:
    said = labctl("fleet", "advise", str(fleet), "--tuning", "pined")
    assert (said.code, said.out) == (2, "")
    assert "did not measure a tuning 'pined'" in said.err
    assert "Did you mean 'pinned'?" in said.err


def test_a_fleet_without_effects_is_wrong_usage(labctl: Labctl, tmp_path: Path) -> None:
    members = [replace(one, status="waiting") for one in hosts(2)]
    said = labctl("fleet", "advise", str(make_fleet(tmp_path / "fleet", members)))
    assert said.code == 2
    assert "no host of fleet has an effect to pool" in said.err


def test_the_next_command_names_the_folder_of_runs(labctl: Labctl, fleet: Path) -> None:
    said = labctl("fleet", "advise", fleet.name, "--results", str(fleet.parent), "--json")
    assert json.loads(said.out)["next"] == (
        "labctl fleet rollout fleet-1 --tuning pinned --inventory /hosts.yml "
        f"--results {fleet.parent}"
    )


def test_the_json_has_steps_and_every_key_is_documented(labctl: Labctl, fleet: Path) -> None:
    found = json.loads(labctl("fleet", "advise", str(fleet), "--json").out)
    assert found["schema"] == 1
    [rollout] = found["rollouts"]
    assert rollout["hosts"] == found["hosts"] == [f"h{number}" for number in range(1, 7)]
    assert rollout["steps"][0]["commands"][0][:2] == ["virt-xml", "NAME"]
    text = DOCUMENTED.read_text().partition("## Choose a tuning and its hosts")[2]
    keys: set[str] = {*found, *rollout}
    assert found["worse"]
    for name in ("others", "answers", "worse", "look_first", "unread"):
        keys |= {key for one in found[name] for key in one}
    assert {key for key in keys if f"`{key}`" not in text} == set()


def test_a_host_on_which_the_tuning_would_be_unsafe_gets_no_steps(
    labctl: Labctl, tmp_path: Path
) -> None:
    folder = make_fleet(tmp_path / "unsafe", hosts(5), effects={"pinned": 1.2})
    for one in hosts(5):
        with_rollout(folder, one.name, golden="pinned+fifo", cpu="2" if one.name == "h2" else "1")
    said = labctl("fleet", "advise", str(folder), "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    taking = [host for one in found["rollouts"] for host in one["hosts"]]
    assert taking == ["h1", "h3", "h4", "h5"]
    assert "can run only on CPU 2, which a vCPU under SCHED_FIFO takes" in str(found["unread"])


def _evil(folder: Path, text: str) -> None:
    """A host says it in its state, and in what it recorded of its CPU, its tunings and itself."""
    for one in hosts(4):
        with_rollout(
            folder, one.name, settings={"risks": [text]}, run={"host": {"cpu_model": text}}
        )
    state: dict[str, Any] = {"schema": 1, "status": "failed", "reason": text, "batch": 1}
    (folder / "hosts/h5/state.json").write_text(json.dumps(state))
    (folder / "hosts/h4").rename(folder / "hosts" / f"h4{text}")


def test_what_hosts_say_is_text_on_a_terminal_and_in_json(labctl: Labctl, tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "evil", hosts(5), effects={"pinned": 1.2})
    _evil(folder, "[red]x\x1b[31m\u202e")
    said = labctl("fleet", "advise", str(folder))
    assert said.code == 0, said.err
    assert said.out.count("[red]x\N{REPLACEMENT CHARACTER}[31m") >= 3, "reason, host and risk"
    found = labctl("fleet", "advise", str(folder), "--json")
    assert "[red]x" in found.out
    for text in (said.out, said.err, found.out):
        assert not set("\x1b\u202e") & set(text)
