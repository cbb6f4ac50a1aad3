"""Advice that fits the virtual machine that it is for, and says which sizes were measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import UsageError
from labctl.base.xmldiff import parse
from labctl.cli import advise
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.rollout.fitted import Pins, UnfitError, fitted, iothreads_of
from labctl.store.records.run_record import PinChoice
from tests.unit.analysis.alter import with_run
from tests.unit.domain import hosts

from .conftest import Labctl
from .test_advise import GOLDEN, advised, made, stored

BY_PLAN = {"strategy": "compact", "vcpus": "plan", "emulator": "plan", "iothreads": "plan"}
OWN = GOLDEN.parents[1] / "unit/domain/fixtures/virt-install-4.1.0-own-server.xml"


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host has eight cores, and is the one that was measured."""
    topology = hosts.topology([[n] for n in range(8)])
    monkeypatch.setattr("labctl.host.topology.read_topology", lambda: topology)
    monkeypatch.setattr(advise, "other_host", lambda run: "")


def recorded(results: Path) -> None:
    run = made({"pinned": 1.0})
    stored(results, with_run(run, tunings={"pinned+fifo": {"pin": BY_PLAN}}, memory_mib=2048))


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.kvm.xml").read_text()


def pins(vcpus: int) -> Pins:
    plan = pin_plan(hosts.TWO_SOCKETS_SMT, vcpus, 1)
    return Pins(
        vcpus=plan.vcpus,
        nodes=frozenset(plan.vcpu_nodes),
        guest_topology=plan.guest_topology,
        emulator=plan.emulator,
        iothreads=plan.iothreads,
        online=plan.online,
    )


def attributes(xml: str, path: str, name: str) -> list[str | None]:
    return [element.get(name) for element in parse(xml).findall(path)]


@pytest.mark.usefixtures("eight_cores")
def test_pins_fit_the_number_of_vcpus_that_is_asked_for(labctl: Labctl, results: Path) -> None:
    recorded(results)
    found = advised(labctl, "--vcpus", "4")
    rollout = found["advised"][0]["rollout"]
    assert rollout["vcpus"] == 4
    assert [command[3:5] for command in rollout["live"]] == [
        ["0", "1"],
        ["1", "2"],
        ["2", "3"],
        ["3", "4"],
        ["5", "--live"],
    ]
    assert 'vcpus="0-3"' in rollout["fragment"]
    assert any("a new pin plan for this host and 4 vCPUs" in note for note in rollout["notes"])


@pytest.mark.usefixtures("eight_cores")
def test_a_domain_gives_its_name_and_size(labctl: Labctl, results: Path) -> None:
    recorded(results)
    found = advised(labctl, "--domain", str(OWN))
    root = parse(OWN.read_text())
    assert found["domain"] == root.findtext("name")
    assert found["advised"][0]["rollout"]["vcpus"] == int(root.findtext("vcpu") or 0)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "For a virtual machine of another size, pass --vcpus or --domain to fit"),
        (["--vcpus", "2"], "2 vCPUs and 2,048 MiB, the size of yours."),
        (
            ["--vcpus", "4"],
            "Yours has 4 vCPUs: the pins fit it, but the effect at that size was not",
        ),
    ],
)
def test_the_advice_names_the_size_that_was_measured(
    labctl: Labctl, results: Path, options: list[str], says: str
) -> None:
    recorded(results)
    [caution] = [c for c in advised(labctl, *options)["cautions"] if "was measured with" in c]
    assert says in caution


def test_a_name_that_no_libvirt_here_knows_stays_a_name(labctl: Labctl, results: Path) -> None:
    recorded(results)
    found = advised(labctl, "--domain", "web1")
    assert found["domain"] == "web1"
    assert found["advised"][0]["rollout"]["vcpus"] == 2, "as was measured"


def test_pins_are_not_planned_for_a_host_that_was_not_measured(
    labctl: Labctl, results: Path
) -> None:
    recorded(results)
    said = labctl("advise", "r1", "--vcpus", "4")
    assert said.code == 2
    assert "run r1 measured another host" in said.err


def test_policy_topology_and_nodes_follow_the_vcpus() -> None:
    choice = PinChoice.model_validate(BY_PLAN)
    found = fitted(golden("pinned+fifo+iothreads"), 2, choice, pins(4))
    assert attributes(found, "cputune/vcpupin", "cpuset") == ["1", "9", "2", "10"]
    assert attributes(found, "cputune/vcpupin", "vcpu") == ["0", "1", "2", "3"]
    assert attributes(found, "cputune/vcpusched", "vcpus") == ["0-3"]
    assert attributes(found, "cputune/emulatorpin", "cpuset") == ["3"]
    siblings = fitted(golden("vcpupin-siblings"), 2, choice, pins(4))
    assert attributes(siblings, "cpu/topology", "cores") == ["2"]
    far = fitted(golden("numa-strict"), 2, choice, pins(8))
    assert attributes(far, "numatune/memory", "nodeset") == ["1"]


def test_cpus_that_a_tuning_names_itself_stay() -> None:
    both = golden("pinned").replace('cpuset="5"', 'cpuset="1"')
    found = fitted(both, 2, PinChoice(), pins(4))
    assert attributes(found, "cputune/vcpupin", "cpuset") == ["1"] * 4
    assert attributes(found, "cputune/emulatorpin", "cpuset") == ["2"]


@pytest.mark.parametrize(
    ("xml", "says"),
    [
        (golden("pinned"), "the CPUs of single vCPUs"),
        (golden("guest-numa-cells"), "NUMA cells"),
        (golden("vcpusched-fifo").replace('vcpus="0-1"', 'vcpus="1"'), "some of the vCPUs"),
    ],
)
def test_what_follows_from_no_number_of_vcpus_is_not_fitted(xml: str, says: str) -> None:
    with pytest.raises(UnfitError, match=says):
        fitted(xml, 2, PinChoice(), pins(4))


@pytest.mark.usefixtures("eight_cores")
def test_a_tuning_that_cannot_be_fitted_keeps_the_measured_pins_and_says_why(
    labctl: Labctl, results: Path
) -> None:
    run = with_run(made({"pinned": 1.0}), tunings={}, memory_mib=2048)
    stored(results, run)
    rollout: Any = advised(labctl, "--vcpus", "4")["advised"][0]["rollout"]
    assert rollout["vcpus"] == 2
    assert any("names the CPUs of single vCPUs" in note for note in rollout["notes"])


@pytest.mark.usefixtures("eight_cores")
def test_more_vcpus_than_the_host_has_are_refused(labctl: Labctl, results: Path) -> None:
    recorded(results)
    said = labctl("advise", "r1", "--vcpus", "9")
    assert said.code == UsageError.exit_code
    assert "cannot place 9 vCPUs" in said.err


@pytest.mark.usefixtures("eight_cores")
def test_a_strategy_that_there_is_not_is_refused(labctl: Labctl, results: Path) -> None:
    run = made({"pinned": 1.0})
    pin = {**BY_PLAN, "strategy": "; reboot"}
    stored(results, with_run(run, tunings={"pinned+fifo": {"pin": pin}}, memory_mib=2048))
    said = labctl("advise", "r1", "--vcpus", "4")
    assert said.code == UsageError.exit_code
    assert "which is not a strategy" in said.err


def test_sizes_that_no_guest_has_are_not_believed() -> None:
    with pytest.raises(UnfitError, match="1000000000000 vCPUs were measured"):
        fitted(golden("pinned"), 10**12, PinChoice(), pins(4))
    assert iothreads_of("<domain><iothreads>99999999999</iothreads></domain>") == 0
