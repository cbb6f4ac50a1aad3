"""`labctl domain show` says what labctl understands of a VM's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Labctl

VMS = Path(__file__).parents[1] / "fixtures" / "platforms" / "vms"


def test_it_names_what_was_replaced_and_left_out(labctl: Labctl) -> None:
    shown = labctl("domain", "show", "--domain", str(VMS / "proxmox-05-gpu.conf")).out
    assert shown.startswith("form: Proxmox VE, configuration\nname: gpu\nvcpus: 8\n")
    assert "hostpci0: left out\n" in shown
    found = labctl("domain", "show", "--domain", str(VMS / "openstack-09-ceph.xml"), "--json").out
    facts = json.loads(found)
    assert (facts["form"], facts["vcpus"], facts["refused"]) == ("Nova", 2, [])
    assert "stand-in /var/lib/labctl/disks/instance-0000000a-vda.qcow2" in facts["notes"][0]


def test_its_xml_is_a_file_for_domain_again(labctl: Labctl, tmp_path: Path) -> None:
    xml = labctl("domain", "show", "--domain", str(VMS / "kubevirt-06-hostdisk.yaml"), "--xml").out
    (tmp_path / "vm.xml").write_text(xml)
    shown = labctl("domain", "show", "--domain", str(tmp_path / "vm.xml")).out
    assert shown.startswith("form: libvirt\nname: hostdisk\nvcpus: 2\nmemory_mib: 978\n")


def test_why_a_libvirt_domain_cannot_be_measured_is_said(labctl: Labctl, tmp_path: Path) -> None:
    (tmp_path / "vm.xml").write_text(
        "<domain type='kvm'><name>a</name><memory>1</memory><os><type>hvm</type></os>"
        "<devices><hostdev/><disk><target dev='vdx'/></disk></devices></domain>"
    )
    shown = labctl("domain", "show", "--domain", str(tmp_path / "vm.xml")).out
    assert "\n<hostdev> (line 1): left out (a passed-through device)\n" in shown
    assert "cannot be measured: <disk dev='vdx'> (line 1): it names no file" in shown


def test_an_instance_comes_with_its_flavor(labctl: Labctl, tmp_path: Path) -> None:
    specs = {"hw:cpu_policy": "dedicated"}
    flavor = tmp_path / "flavor.json"
    flavor.write_text(json.dumps({"vcpus": 2, "ram": 2048, "properties": specs}))
    instance = str(VMS / "openstack-10-local.xml")
    shown = labctl("domain", "show", "--domain", f"{flavor},{instance}").out
    assert shown.startswith("form: Nova, with its flavor\nname: instance-0000000a\n")
    assert "hw:cpu_policy=dedicated: left out (Nova places it" in shown
    assert "disks: vda /var/lib/nova/instances/1/disk (qcow2)" in shown
    assert "machine: " not in shown
    flavor.write_text(json.dumps({"vcpus": 4, "ram": 2048}))
    said = labctl("domain", "show", "--domain", f"{flavor},{instance}")
    assert (said.code, "expected a flavor and the domain XML" in said.err) == (2, True)


def test_a_stand_in_that_is_missing_is_asked_for(labctl: Labctl, results: Path) -> None:
    vm = str(VMS / "proxmox-04-ceph.conf")
    said = labctl("sweep", "pinning", "--domain", vm, "--plan-only", "--accel", "tcg")
    assert said.code == 2
    assert "Put a copy of the disk there: qemu-img convert -O qcow2 DISK /var/lib/" in said.err


def test_a_plan_names_what_the_copy_leaves_out(
    labctl: Labctl, results: Path, tmp_path: Path
) -> None:
    (tmp_path / "disk.img").write_bytes(b"\0" * 4096)
    (tmp_path / "vm.xml").write_text(
        "<domain type='kvm'><name>web</name><memory unit='GiB'>1</memory><vcpu>1</vcpu>"
        "<os><type arch='x86_64'>hvm</type></os><devices><hostdev/>"
        f"<disk><source file='{tmp_path}/disk.img'/><target dev='vda'/></disk></devices></domain>"
    )
    words = ("sweep", "pinning", "--domain", str(tmp_path / "vm.xml"), "--plan-only")
    said = "In labctl's copy of 'web', <hostdev> (line 1): left out (a passed-through device)."
    plan = labctl(*words, "--accel", "tcg")
    assert said in plan.out, plan.err
    assert json.loads(labctl(*words, "--accel", "tcg", "--json").out)["domain"]["notes"] == [said]


@pytest.mark.parametrize("name", ["proxmox-01-plain.conf", "kubevirt-01-plain.yaml"])
def test_a_tuning_is_compared_with_the_vm(labctl: Labctl, name: str) -> None:
    said = labctl(
        "tuning", "diff", "cache-unsafe", "--domain", str(VMS / name), "--accel", "kvm", "--json"
    )
    assert said.code == 0, said.err
    changes = json.loads(said.out)["changes"]
    assert [one["after"] for one in changes if one["path"].endswith("driver/@cache")] == ["unsafe"]
