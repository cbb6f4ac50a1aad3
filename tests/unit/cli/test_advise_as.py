"""`labctl advise RUN --as PLATFORM`: the files, run against a fake `qm`, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.analysis.alter import with_run

from .conftest import Labctl
from .test_advise import made, stored

FIXTURES = Path(__file__).parents[1] / "fixtures" / "platforms"
TUNINGS = ("pinned+fifo+iothreads", "numa-strict", "cache-none", "net-queues", "net-e1000e")
TUNINGS += ("hugepages-2M", "hyperv-tlbflush", "cpu-maximum", "ksm-off", "mitigations-off")
CONFIG = """\
cores: 2
cpu: host,flags=+aes;+pcid
memory: current=4096
net0: virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1
scsi0: local-lvm:vm-100-disk-0,cache=writeback,size=32G,ssd=1
scsihw: virtio-scsi-single
sockets: 1
"""
QM = """#!/bin/sh
case $1 in
config) cat "$QM_CONFIG" ;;
set) shift 2; printf '%s\\n' "$1 $2" >> "$QM_CALLS" ;;
esac
"""


@pytest.fixture
def run(results: Path) -> Path:
    names = ("native", "baseline", "control", "handicap", *TUNINGS)
    found = made(dict.fromkeys(TUNINGS, 1.5), tunings=names, noise=0.01)
    settings = dict(found.run.tunings)
    host = {"ksm-off": {"host": {"ksm": "2", "tuned": "virtual-host"}}}
    host["cache-none"] = {"host": {"tuned": "labctl-virtual-host"}}
    host["mitigations-off"] = {"requires": {"command_line": ["mitigations=off"]}}
    return stored(results, with_run(found, tunings={**settings, **host})).path


def given(labctl: Labctl, platform: str, tuning: str, *words: str) -> Any:
    said = labctl("advise", "r1", "--as", platform, "--tuning", tuning, "--json", *words)
    assert said.code == 0, said.err
    return json.loads(said.out)


def proxmox_misfit(option: str, value: str) -> str:
    """Return the part of an option that Proxmox's grammar refuses; "" if there is none."""
    grammar = json.loads((FIXTURES / "qemu-server-9.2.6-options.json").read_text())
    if option in grammar["options"]:
        return "" if re.fullmatch(grammar["options"][option], value) else value
    parts = grammar["parts"].get(option.rstrip("0123456789"))
    if parts is None:
        return option
    first, *others = value.split(",")
    if not re.fullmatch(parts[""], first):
        return first
    for part in others:
        key, _, given = part.partition("=")
        if key not in parts or not re.fullmatch(parts[key], given):
            return part
    return ""


@pytest.mark.parametrize(
    ("option", "value"),
    [("hugepages", "3"), ("scsi0", "local:x,cache=no"), ("affinities", "1"), ("net0", "virtio")],
)
def test_proxmox_s_grammar_refuses_other_values(option: str, value: str) -> None:
    assert proxmox_misfit(option, value) != ""


@pytest.mark.parametrize(
    ("tuning", "calls"),
    [
        ("numa-strict", {"--numa": "1", "--numa0": "cpus=0-1,hostnodes=0,memory=4096,policy=bind"}),
        ("cache-none", {"--scsi0": "local-lvm:vm-100-disk-0,size=32G,ssd=1,cache=none"}),
        ("net-queues", {"--net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,queues=4"}),
        ("net-e1000e", {"--net0": "e1000e=BC:24:11:00:00:01,bridge=vmbr0,firewall=1"}),
        ("hugepages-2M", {"--numa": "1", "--hugepages": "2"}),
        ("hyperv-tlbflush", {"--cpu": "host,flags=+aes;+pcid;+hv-tlbflush"}),
        ("cpu-maximum", {"--cpu": "max,flags=+aes;+pcid"}),
    ],
)
def test_proxmox_s_script_changes_one_part_of_an_option(
    labctl: Labctl, run: Path, tmp_path: Path, tuning: str, calls: dict[str, str]
) -> None:
    out = tmp_path / "out"
    words = ("advise", "r1", "--as", "proxmox", "--tuning", tuning, "--out", str(out))
    assert labctl(*words).code == 0
    script = (out / "proxmox.sh").read_text()
    for path in ("/var/backups", "/var/lib/vz"):
        script = script.replace(path, str(tmp_path))
    (out / "proxmox.sh").write_text(script)
    (tmp_path / "qm").write_text(QM)
    (tmp_path / "qm").chmod(0o755)
    (tmp_path / "config").write_text(CONFIG)
    made_calls = tmp_path / "calls"
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "QM_CONFIG": str(tmp_path / "config"),
        "QM_CALLS": str(made_calls),
    }
    subprocess.run(["sh", out / "proxmox.sh", "100"], env=environment, check=True)
    found = dict(line.split(" ", 1) for line in made_calls.read_text().splitlines())
    hook = found.pop("--hookscript", None)
    assert (hook is not None) == (tuning == "numa-strict")
    assert found == calls
    assert (tmp_path / f"100-before-{tuning}.conf").read_text() == CONFIG
    for option, value in found.items():
        assert proxmox_misfit(option.removeprefix("--"), value) == ""
    if tuning == "numa-strict":
        hooked = f"hookscript: local:snippets/labctl-{tuning}.sh\n{CONFIG}"
        (tmp_path / "config").write_text(hooked)
        subprocess.run(["sh", out / "proxmox.sh", "100"], env=environment, check=True)  # again
        (tmp_path / "config").write_text(CONFIG.replace("cores: 2", "cores: 4"))
        done = subprocess.run(
            ["sh", out / "proxmox.sh", "100"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (
            1,
            "VM 100 does not have the 2 vCPU(s) that this was made for\n",
        )


@pytest.mark.parametrize(
    ("platform", "file", "said"),
    [
        ("kubevirt", "kubelet.yaml", "unless CPUs are reserved for the host (reservedSystemCPUs)"),
        ("kubevirt", "kubevirt.yaml", "Add to the list: a patch would replace it."),
        ("openstack", "nova.conf", "these CPUs and those of other pinned instances."),
    ],
)
def test_a_fragment_says_how_it_is_joined(
    labctl: Labctl, run: Path, platform: str, file: str, said: str
) -> None:
    assert said in given(labctl, platform, "pinned+fifo+iothreads")["files"][file]


def test_proxmox_s_hookscript_sets_policies_after_pins(labctl: Labctl, run: Path) -> None:
    files = given(labctl, "proxmox", "pinned+fifo+iothreads")["files"]
    lines = files["labctl-pinned+fifo+iothreads.sh"].splitlines()
    calls = [line for line in lines if line.startswith(("each '", "others "))]
    assert [("chrt" in line) for line in calls] == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("platform", "tuning"),
    [
        ("proxmox", "pinned+fifo+iothreads"),
        ("proxmox", "hyperv-tlbflush"),
        ("proxmox", "net-e1000e"),
        ("openstack", "net-e1000e"),
        ("virsh", "numa-strict"),
        ("virt-xml", "numa-strict"),
        ("cockpit", "ksm-off"),
    ],
)
def test_each_script_passes_shellcheck(
    labctl: Labctl, run: Path, tmp_path: Path, platform: str, tuning: str
) -> None:
    # Functions are called by name, and virt-xml's values that are the VM's may be unused.
    accepted = "SC2317,SC2329" + (",SC2034" if platform == "virt-xml" else "")
    for name, text in given(labctl, platform, tuning, "--domain", "web 1")["files"].items():
        if name.endswith(".sh"):
            (tmp_path / name).write_text(text)
            done = subprocess.run(
                ["shellcheck", "-e", accepted, tmp_path / name],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            assert done.stdout == "", f"{platform} {tuning} {name}"


def test_kubevirt_s_nodes_get_objects_of_the_node_tuning_operator(
    labctl: Labctl, run: Path
) -> None:
    found = given(labctl, "kubevirt", "ksm-off")["files"]
    tuned, config = yaml.safe_load_all(found["nodes.yaml"])
    assert tuned["kind"] == "Tuned"
    assert "include=virtual-host" in tuned["spec"]["profile"][0]["data"]
    [file] = config["spec"]["config"]["storage"]["files"]
    assert file["path"] == "/etc/tmpfiles.d/90-labctl-ksm-off.conf"
    found = given(labctl, "kubevirt", "cache-none")["files"]
    tuned, *_ = yaml.safe_load_all(found["nodes.yaml"])
    assert "include=virtual-host" not in tuned["spec"]["profile"][0]["data"]
    assert "[main]" in tuned["spec"]["profile"][0]["data"]
    found = given(labctl, "kubevirt", "mitigations-off")["files"]
    assert yaml.safe_load(found["nodes.yaml"])["spec"]["kernelArguments"] == ["mitigations=off"]


def test_what_is_not_expressed_is_listed(labctl: Labctl, run: Path) -> None:
    found = given(labctl, "kubevirt", "pinned+fifo+iothreads")
    assert {one["key"] for one in found["left"]} == {"pin.iothreads", "vcpu_sched"}
    shown = labctl("advise", "r1", "--as", "cockpit", "--tuning", "numa-strict").out
    assert "numa-strict changes nothing that can be set there." in shown
    assert "pin.vcpus: 1,5, memory.numa: strict (no such field; use" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--card", "card.md"), "--as and --card exclude each other"),
        (("--apply",), "--as and --apply exclude each other"),
        (("--as", "xen"), "'xen' is not one of"),
    ],
)
def test_options_that_do_not_go_together(
    labctl: Labctl, run: Path, words: tuple[str, ...], said: str
) -> None:
    found = labctl("advise", "r1", "--as", "virsh", *words)
    assert found.code == 2
    assert said in found.err
