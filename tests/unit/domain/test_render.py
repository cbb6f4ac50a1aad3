"""Domain XML: the golden files, and what rendering refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from labctl.base.errors import HostError, UsageError
from labctl.base.tuning import Disk, Kind, Policy, Sched
from labctl.domain import schema
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.domain.render import guest_data_paths, render
from labctl.host.facts import libvirt_version
from labctl.study.tunings import load_tuning, tuning_names

from . import hosts

GOLDEN = Path(__file__).parents[2] / "golden" / "domain"
INSTALLED = libvirt_version()
GUESTS = [name for name in tuning_names() if load_tuning(name).kind is Kind.GUEST]


def valid(xml: str) -> None:
    try:
        schema.schema_path()
    except HostError as error:
        pytest.skip(f"libvirt's schemas are not installed: {error.message}")
    schema.validate(xml)


def tree(**request: Any) -> etree._Element:
    tuning = request.pop("tuning", None) or load_tuning("baseline")
    return etree.fromstring(render(hosts.request(tuning, **request)).encode())


@pytest.mark.parametrize("accelerator", ["tcg", "kvm"])
@pytest.mark.parametrize("name", GUESTS)
def test_a_tuning_renders_as_recorded(name: str, accelerator: str, regenerate_golden: bool) -> None:
    golden = GOLDEN / f"{name}.{accelerator}.xml"
    tuning = load_tuning(name)
    xml = render(hosts.request(tuning, accelerator=accelerator))
    if regenerate_golden:
        golden.write_text(xml)
    assert xml == golden.read_text(), "run pytest with --regenerate-golden and read the difference"
    if not schema.covers(tuning, INSTALLED):
        pytest.skip(f"needs the schema of libvirt {tuning.requires.libvirt}, here is {INSTALLED}")
    valid(xml)


def test_there_is_no_golden_file_without_a_tuning() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {
        f"{name}.{accelerator}.xml" for name in GUESTS for accelerator in ("tcg", "kvm")
    }


def test_a_native_tuning_has_no_xml() -> None:
    with pytest.raises(UsageError, match="tuning 'native' is native"):
        render(hosts.request(load_tuning("native")))


def test_an_unknown_accelerator_is_refused() -> None:
    with pytest.raises(UsageError, match="no accelerator 'xen'") as caught:
        render(hosts.request(load_tuning("baseline"), accelerator="xen"))
    assert caught.value.hint == "Allowed: kvm, tcg."


def test_a_plan_for_another_number_of_vcpus_is_refused() -> None:
    plan = pin_plan(hosts.FOUR_CPUS, 3, 0)
    with pytest.raises(UsageError, match="has 2 vCPUs and the pin plan places 3"):
        render(hosts.request(load_tuning("baseline"), plan=plan))


def test_what_xml_cannot_say_plainly_is_escaped() -> None:
    line = """root=/dev/vda dyndbg="file x.c +p" a<b & c>'d' ü"""
    assert tree(cmdline=line, name="a<&>b").findtext("os/cmdline") == line
    odd = Path('/var/lib/a "quoted" & <odd> folder/root.qcow2')
    source = tree(root_disk=odd).find("devices/disk/source")
    assert source is not None
    assert source.get("file") == str(odd)


def test_the_files_that_a_root_disk_is_based_on_keep_their_owners_where_it_is_asked_for() -> None:
    xml = render(hosts.request(load_tuning("baseline"), keeps_owners=True))
    valid(xml)
    root, data = etree.fromstring(xml.encode()).iterfind("devices/disk/source")
    assert [dict(label.attrib) for label in root] == [{"model": "dac", "relabel": "no"}]
    assert len(data) == 0  # it is based on nothing, and the daemon's QEMU writes to it


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\ud800", "\ufffe"])
def test_what_xml_cannot_say_at_all_is_refused(character: str) -> None:
    with pytest.raises(UsageError, match="XML cannot hold"):
        render(hosts.request(load_tuning("baseline"), cmdline=f"a{character}b"))


def test_optional_files_leave_no_trace_when_absent() -> None:
    xml = tree(initrd=None, data_disks=(), seed_disk=None)
    assert xml.find("os/initrd") is None
    assert [t.get("dev") for t in xml.iterfind("devices/disk/target")] == ["vda"]


def test_the_seed_is_read_only_and_the_other_disks_are_not() -> None:
    disks = tree(seed_disk=Path("/seed.img")).findall("devices/disk")
    assert [disk.find("readonly") is not None for disk in disks] == [False, False, True]


def _of(disk: etree._Element, tag: str) -> etree._Element:
    found = disk.find(tag)
    assert found is not None
    return found


DISKS = (Path("/data.img"), Path("/data2.img"))


def test_each_of_two_data_disks_has_an_iothread_of_its_own() -> None:
    tuning = load_tuning("cache-none+iothreads-3")
    xml = render(hosts.request(tuning, data_disks=DISKS, seed_disk=Path("/seed.img")))
    valid(xml)
    disks = etree.fromstring(xml.encode()).findall("devices/disk")
    told = [
        (
            _of(disk, "target").get("dev"),
            disk.findtext("serial"),
            _of(disk, "driver").get("iothread"),
        )
        for disk in disks
    ]
    assert told == [
        ("vda", "labctl-root", "1"),
        ("vdb", "labctl-data", "2"),
        ("vdc", "labctl-data2", "3"),
        ("vdd", "labctl-seed", None),
    ]
    caches = [_of(disk, "driver").get("cache") for disk in disks]
    assert caches == [None, "none", "none", None]


def test_more_disks_than_iothreads_share_the_last_one() -> None:
    xml = tree(tuning=load_tuning("iothreads-2"), data_disks=DISKS)
    assert [d.get("iothread") for d in xml.iterfind("devices/disk/driver")] == ["1", "2", "2"]


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("baseline", ("virtio-labctl-data", "virtio-labctl-data2")),
        (
            "disk-scsi",
            tuple(f"scsi-0QEMU_QEMU_HARDDISK_labctl-data{n}" for n in ("", "2")),
        ),
    ],
)
def test_a_guest_finds_its_data_disks_by_their_serials(name: str, paths: tuple[str, ...]) -> None:
    tuning = load_tuning(name)
    valid(render(hosts.request(tuning, data_disks=DISKS)))
    found = guest_data_paths(tuning.disk, 2)
    assert found == tuple(f"/dev/disk/by-id/{path}" for path in paths)
    assert guest_data_paths(tuning.disk, 1) == found[:1]


def test_all_policies_and_numbers_of_iothreads_are_valid() -> None:
    tuning = replace(
        load_tuning("pinned+iothreads"),
        iothreads=3,
        vcpu_sched=Sched(policy=Policy.BATCH),
        emulator_sched=Sched(policy=Policy.RR, priority=7),
        iothread_sched=Sched(policy=Policy.IDLE),
        disk=Disk(cache="none", io="native", iothread=True),
    )
    xml = render(hosts.request(tuning))
    valid(xml)
    assert '<vcpusched vcpus="0-1" scheduler="batch"/>' in xml
    assert '<iothreadsched iothreads="1-3" scheduler="idle"/>' in xml
    assert '<emulatorsched scheduler="rr" priority="7"/>' in xml
    assert 'cache="none" io="native" discard="unmap" iothread="2"' in xml


def test_the_ordinary_policy_is_left_to_the_kernel() -> None:
    tuning = replace(load_tuning("baseline"), vcpu_sched=Sched(policy=Policy.OTHER))
    assert tree(tuning=tuning).find("cputune") is None


def test_a_confined_labctl_confines_the_threads_that_are_free() -> None:
    host = hosts.topology([[n] for n in range(4)], allowed=[1, 2, 3])
    vcpu = tree(host=host).find("vcpu")
    assert vcpu is not None
    assert vcpu.get("cpuset") == "1-3"


def test_two_domains_have_two_addresses_and_one_keeps_its_own() -> None:
    first = hosts.request(load_tuning("baseline"))
    assert first.mac == hosts.request(load_tuning("pinned")).mac == "52:54:00:5f:0c:1a"
    assert first.mac != replace(first, uuid="11111111-2222-4333-8444-555555555555").mac


def test_a_users_own_template_shadows_the_one_that_labctl_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/domain.xml.j2").write_text("<domain>{{ request.nmae }}</domain>")
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    with pytest.raises(UsageError, match="the domain template does not render.*nmae"):
        render(hosts.request(load_tuning("baseline")))


def test_features_that_this_hosts_kvm_cannot_give_are_left_out() -> None:
    cpu = tree(accelerator="kvm", disabled_features=("arch-capabilities",)).find("cpu")
    assert cpu.get("mode") == "host-passthrough"
    assert [(f.get("policy"), f.get("name")) for f in cpu] == [("disable", "arch-capabilities")]
    assert tree(accelerator="tcg", disabled_features=("arch-capabilities",)).find("cpu") is None


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        ("baseline", None),
        ("pinned", None),
        ("net-e1000e", None),
        ("net-vhost", {"name": "vhost"}),
        ("net-no-vhost", {"name": "qemu"}),
        ("net-queues", {"name": "vhost", "queues": "4"}),
        # libvirt would take vhost-net where it can, and that serves split rings without a word.
        ("net-packed", {"name": "qemu", "packed": "on"}),
    ],
)
def test_a_guest_with_a_tap_is_plugged_into_it_and_changes_nothing_else(
    name: str, driver: dict[str, str] | None
) -> None:
    tuning = load_tuning(name)
    with_tap = render(hosts.request(tuning, tap="labctl4194304"))
    valid(with_tap)
    [card] = (plugged := etree.fromstring(with_tap.encode())).iterfind("devices/interface")
    assert card.get("type") == "ethernet"
    assert [dict(target.attrib) for target in card.iterfind("target")] == [
        {"dev": "labctl4194304", "managed": "no"}
    ]
    assert [dict(found.attrib) for found in card.iterfind("driver")] == ([driver] if driver else [])
    plain = tree(tuning=tuning)
    for root in (plain, plugged):
        devices = root.find("devices")
        assert devices is not None
        for found in devices.findall("interface"):
            devices.remove(found)
    assert etree.tostring(plain) == etree.tostring(plugged)


@pytest.mark.parametrize("name", ["baseline", "net-e1000e"])
def test_a_guest_that_nothing_is_sent_to_reaches_no_network_of_the_hosts(name: str) -> None:
    [card] = tree(tuning=load_tuning(name)).iterfind("devices/interface")
    assert (card.get("type"), card.find("link").get("state")) == ("user", "down")  # type: ignore[union-attr]
