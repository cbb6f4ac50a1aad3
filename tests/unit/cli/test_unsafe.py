"""No command prints or applies a configuration that a sweep refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

from labctl.base.errors import ExitCode
from labctl.cli import advise
from labctl.cli.main import cli
from labctl.host.topology import Topology
from tests.unit.analysis.alter import with_run
from tests.unit.domain import hosts

from .conftest import Labctl
from .test_advise import GOLDEN, made, stored

BY_PLAN = {"strategy": "compact", "vcpus": "plan", "emulator": "plan", "iothreads": "plan"}
TWO = hosts.topology([[0], [1]])
FOUR = hosts.topology([[0], [1], [2], [3]])


@dataclass(frozen=True)
class Unsafe:
    """A tuning for a VM that a host must not have. `pins`: the owner's <cputune>; `says`: part of
    the reason."""

    says: str
    host: Topology = TWO
    vcpus: int = 2
    tuning: str = "pinned+fifo"
    pins: str = ""
    rt_runtime_us: int = 950_000
    file: Mapping[str, str] = field(default_factory=dict)


def pin(*cpus: str, emulator: str = "") -> str:
    said = "".join(f"<vcpupin vcpu='{n}' cpuset='{cpu}'/>" for n, cpu in enumerate(cpus))
    return said + (f"<emulatorpin cpuset='{emulator}'/>" if emulator else "")


FIFO_ALONE = {"tuning": "vcpusched-fifo"}
UNSAFE = {
    "FIFO on all CPUs": Unsafe("the emulator threads can run only on CPU 0"),
    "FIFO on all CPUs, pinned by a lab's file": Unsafe(
        "the emulator threads can run only on CPU",
        tuning="mine",
        file={"mine": "extends: pinned\nvcpu_sched: {policy: fifo, priority: 1}\n"},
    ),
    "free helpers where all CPUs are taken": Unsafe(
        "the emulator threads can run only on CPU 0-1", pins=pin("0", "1"), **FIFO_ALONE
    ),
    "own emulatorpin on a taken CPU": Unsafe(
        "the emulator threads can run only on CPU 2",
        host=FOUR,
        pins=pin("1", "2", emulator="2"),
        **FIFO_ALONE,
    ),
    "two FIFO vCPUs on one CPU": Unsafe(
        "2 vCPUs under SCHED_FIFO on CPU 1", host=FOUR, pins=pin("1", "1"), **FIFO_ALONE
    ),
    "three FIFO vCPUs on two CPUs": Unsafe(
        "3 vCPUs under SCHED_FIFO on CPU 1-2",
        host=FOUR,
        vcpus=3,
        pins=pin("1-2", "1-2", "1-2"),
        **FIFO_ALONE,
    ),
    "a pin on a CPU that is absent": Unsafe(
        "cannot pin vCPU 1 to CPU 9", host=FOUR, pins=pin("1", "9"), **FIFO_ALONE
    ),
    "a pin on a CPU that is offline": Unsafe(
        "it is offline",
        host=hosts.topology([[0], [1], [2], [3]], offline=[3]),
        pins=pin("1", "3"),
        **FIFO_ALONE,
    ),
    "no CPU time for real-time threads": Unsafe(
        "sched_rt_runtime_us is 0", host=FOUR, rt_runtime_us=0
    ),
    "throttling off and housekeeping taken": Unsafe(
        "real-time throttling is off", host=FOUR, vcpus=4, rt_runtime_us=-1, **FIFO_ALONE
    ),
    "the host's only CPU": Unsafe(
        "the host's only CPU", host=hosts.topology([[0]]), vcpus=1, **FIFO_ALONE
    ),
}
"""Ten and one: of the owner's pins, of the host, of the plan."""

COMMANDS = {
    "tuning diff": ["tuning", "diff", "TUNING", "--domain", "FILE"],
    "tuning diff as JSON": ["tuning", "diff", "TUNING", "--domain", "FILE", "--json"],
    "sweep": ["sweep", "pinning", "--domain", "FILE", "--tuning", "TUNING", "--plan-only"],
    "advise into files": ["advise", "r1", "--domain", "FILE", "--out", "OUT"],
    "advise as a card": ["advise", "r1", "--domain", "FILE", "--card", "OUT"],
    "advise as Proxmox": [
        *("advise", "r1", "--domain", "FILE", "--as", "proxmox", "--tuning", "TUNING"),
    ],
    "advise and apply": ["advise", "r1", "--domain", "FILE", "--apply", "--tuning", "TUNING"],
    "advise and look": [
        *("advise", "r1", "--domain", "FILE", "--apply", "--check", "--tuning", "TUNING"),
    ],
}
OWN_GUEST = {
    "tuning render": ["tuning", "render", "TUNING", "--vcpus", "VCPUS"],
    "tuning diff of two": ["tuning", "diff", "baseline", "TUNING", "--vcpus", "VCPUS"],
    "ab": [
        *("ab", "--tuning", "baseline", "--tuning", "TUNING", "sysbench-cpu"),
        *("--vcpus", "VCPUS", "--plan-only"),
    ],
}
"""Of labctl's own guest, which has no pins of an owner's."""

CONFIGURE = {
    "ab": "the rows above",
    "advise": "the rows above",
    "sweep": "the rows above",
    "tuning diff": "the rows above",
    "tuning render": "the rows above",
    "tuning validate": "says what is wrong, and prints no XML",
    "pins": "a test below",
    "fleet advise": "a test of its own (test_fleet_advise.py)",
    "fleet rollout": "runs 'labctl advise --apply' on each host",
    "fleet sweep": "runs 'labctl sweep' on each host",
    "density": "plans as a sweep does, for guests of labctl's own",
    "host tune": "sets knobs of the host, no guest's pins",
    "host keep": "sets nothing",
    "host restore": "puts old values back",
}
HARMLESS = {
    *("collectors", "compare", "completion", "condition", "doctor", "domain", "exits", "explain"),
    *("gate", "help", "history", "image", "init", "lesson", "lint", "report", "run", "schema"),
    *("selftest", "setup", "study", "timeline", "workload"),
}
"""Commands that print or apply no configuration of a guest; `lesson` runs 'labctl sweep'."""


def words(command: list[str], unsafe: Unsafe, folder: Path) -> list[str]:
    filled = {
        "TUNING": unsafe.tuning,
        "FILE": str(folder / "web.xml"),
        "OUT": str(folder / "out"),
        "VCPUS": str(unsafe.vcpus),
    }
    return [filled.get(word, word) for word in command]


@pytest.fixture
def prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> tuple[Unsafe, Path]:
    """The host, the VM's file, a run that advises the tuning, a lab folder with its file."""
    unsafe: Unsafe = request.param
    disk = tmp_path / "web.img"
    disk.write_bytes(bytes(1 << 20))
    (tmp_path / "web.xml").write_text(
        f"<domain type='kvm'><name>web</name><memory unit='MiB'>512</memory>"
        f"<vcpu>{unsafe.vcpus}</vcpu><cputune>{unsafe.pins}</cputune>"
        "<os><type arch='x86_64'>hvm</type></os><devices><disk type='file' device='disk'>"
        f"<driver name='qemu' type='raw'/><source file='{disk}'/>"
        "<target dev='vda' bus='virtio'/></disk></devices></domain>"
    )
    monkeypatch.setattr("labctl.host.topology.read_topology", lambda: unsafe.host)
    monkeypatch.setattr("labctl.run.planning.plan.read_topology", lambda: unsafe.host)
    for module in ("labctl.host.topology", "labctl.run.planning.host"):
        monkeypatch.setattr(f"{module}.read_rt_runtime_us", lambda: unsafe.rt_runtime_us)
    monkeypatch.setattr(advise, "other_host", lambda run: "")
    lab = tmp_path / "lab"
    (lab / "domains").mkdir(parents=True)
    (lab / ".labctl-lab").touch()
    for name, text in unsafe.file.items():
        about = "description: A tuning of a lab's.\n"
        (lab / "domains" / f"{name}.yaml").write_text(about + text)
    monkeypatch.setenv("LABCTL_LAB", str(lab))
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path / "results"))
    arms = ("native", "baseline", "control", "handicap", unsafe.tuning)
    run = made({unsafe.tuning: 1.6}, tunings=arms)
    pins = {} if unsafe.tuning == "vcpusched-fifo" else {"pin": BY_PLAN}
    folder = stored(tmp_path / "results", with_run(run, vcpus=1, tunings={unsafe.tuning: pins}))
    golden = "vcpusched-fifo" if unsafe.tuning == "vcpusched-fifo" else "pinned+fifo"
    for name, source in (("baseline", "baseline"), (unsafe.tuning, golden)):
        xml = (GOLDEN / f"{source}.kvm.xml").read_text()
        (folder.path / "xml").mkdir(exist_ok=True)
        (folder.path / "xml" / f"{name}.xml").write_text(one_vcpu(xml))
    return unsafe, tmp_path


def one_vcpu(xml: str) -> str:
    """A golden domain as it is rendered for one vCPU."""
    from lxml import etree

    root = etree.fromstring(xml.encode())
    for element in root.findall("cputune/vcpupin"):
        if element.get("vcpu") != "0":
            element.getparent().remove(element)  # type: ignore[union-attr]
    for element in root.findall("cputune/vcpusched"):
        element.set("vcpus", "0")
    root.find("vcpu").text = "1"  # type: ignore[union-attr]
    return etree.tostring(root, encoding="unicode")


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("prepared", UNSAFE.values(), ids=UNSAFE, indirect=True)
def test_what_is_unsafe_is_refused_with_the_reason(
    labctl: Labctl, prepared: tuple[Unsafe, Path], command: list[str]
) -> None:
    unsafe, folder = prepared
    said = labctl(*words(command, unsafe, folder))
    assert said.code in (2, 3), said.out
    assert unsafe.says in said.err or "bound to CPU" in said.err
    assert "cpuset" not in said.out
    assert not (folder / "out").exists()


@pytest.mark.parametrize("command", OWN_GUEST.values(), ids=OWN_GUEST)
@pytest.mark.parametrize(
    "prepared", [u for u in UNSAFE.values() if not u.pins], ids=lambda u: u.says, indirect=True
)
def test_an_unsafe_guest_of_labctls_own_is_refused_as_well(
    labctl: Labctl, prepared: tuple[Unsafe, Path], command: list[str]
) -> None:
    unsafe, folder = prepared
    said = labctl(*words(command, unsafe, folder))
    assert (said.code, said.out) == (ExitCode.OPEN if command[0] == "ab" else 2, "")
    assert unsafe.says in said.err


@pytest.mark.parametrize("prepared", UNSAFE.values(), ids=UNSAFE, indirect=True)
def test_advice_explains_the_refusal_and_has_no_steps(
    labctl: Labctl, prepared: tuple[Unsafe, Path]
) -> None:
    unsafe, folder = prepared
    said = labctl("advise", "r1", "--domain", str(folder / "web.xml"), "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    rollout = found["advised"][0]["rollout"]
    assert any(unsafe.says in one["text"] for one in rollout["refused"])
    assert not any(rollout[key] for key in ("steps", "live", "fragment"))
    assert set(rollout["ansible"].values()) == {""}
    assert found["card"] is None
    shown = labctl("advise", "r1", "--domain", str(folder / "web.xml"))
    assert "must not be applied" in shown.out
    assert "virt-xml" not in shown.out


def test_a_pin_plan_says_that_it_allows_no_real_time_policy(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labctl.host.topology.read_topology", lambda: TWO)
    refused = json.loads(labctl("pins", "--vcpus", "2", "--json").out)["refused_realtime"]
    assert any("the emulator threads can run only on CPU 0" in one for one in refused)
    assert json.loads(labctl("pins", "--vcpus", "1", "--json").out)["refused_realtime"] == []


def test_every_command_is_known_here() -> None:
    """A new command either prints and applies no configuration, or has its rows above."""
    context = click.Context(cli)
    known = {name.split()[0] for name in CONFIGURE} | HARMLESS
    assert set(cli.list_commands(context)) - known == set()
    for group in ("tuning", "fleet", "host"):
        command = cli.get_command(context, group)
        assert isinstance(command, click.Group)
        listed = {f"{group} {name}" for name in command.list_commands(context)}
        told = {"list", "show", "add", "compare", "report", "wheelhouse", "facts", "status"}
        told |= {"accel", "journal", "tuned"}
        unknown = {name for name in listed if name not in CONFIGURE} - {
            f"{group} {n}" for n in told
        }
        assert unknown == set()
