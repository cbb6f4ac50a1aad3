"""The administrator's own domain: read, refused, copied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lxml import etree

from labctl.base.errors import UsageError
from labctl.base.xmldiff import changes, parse
from labctl.domain.foreign.foreign_domain import (
    OwnDisk,
    check_copyable,
    expected_threads,
    own_domain,
)
from labctl.domain.schema import validate
from tests.unit.domain.own import BY_HAND, VIRT_INSTALL, copy_of, copy_xml, own

ALL = (*VIRT_INSTALL, "by hand")


def found(root: etree._Element, path: str) -> list[str]:
    """Values at an XPath."""
    return [str(getattr(value, "text", value)) for value in root.xpath(path)]


def test_what_a_run_must_know_of_a_domain_is_read() -> None:
    domain = own("server")
    assert (domain.name, domain.vcpus, domain.memory_mib) == ("web1", 4, 4096)
    assert domain.disks == (
        OwnDisk("vda", Path("/srv/web1.qcow2"), "qcow2"),
        OwnDisk("sda", Path("/srv/data.img"), "raw"),
    )
    assert domain.networks == {"bridge"}
    assert not domain.is_uefi
    assert not domain.has_command_line


def test_vcpus_are_those_it_starts_with_and_units_of_memory_are_libvirts() -> None:
    domain = own()
    assert (domain.vcpus, domain.memory_mib) == (2, 3816)  # whole huge pages of 2 MiB
    assert domain.disks[0] == OwnDisk("vda", Path("/dev/vg/web"), "raw")


def test_uefi_variables_are_found() -> None:
    domain = own("uefi")
    assert domain.is_uefi
    assert domain.nvram == Path("/var/lib/libvirt/qemu/nvram/uefi1_VARS.fd")
    automatic = own_domain(BY_HAND.replace("<os>", "<os firmware='efi'>"), "x")
    assert (automatic.is_uefi, automatic.nvram) == (True, None)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_a_copy_is_a_valid_domain_and_the_original_is_as_before(
    name: str, accelerator: str
) -> None:
    domain = own(name)
    before = domain.xml
    check_copyable(domain)
    validate(copy_of(domain, accelerator=accelerator).xml)
    assert domain.xml == before


@pytest.mark.parametrize("name", ALL)
def test_nothing_that_identifies_the_original_is_in_its_copy(name: str) -> None:
    domain = own(name)
    root = parse(domain.xml)
    copy = copy_of(domain).xml
    for value in (*found(root, "name"), *found(root, "uuid"), *found(root, "//mac/@address")):
        assert not re.search(rf">{value}<|'{value}'|\"{value}\"", copy)
    for path in ("resource", "genid", "vsock", "tpm", "@id"):
        assert found(parse(copy), f"//{path}" if path != "@id" else path) == []


@pytest.mark.parametrize("name", ALL)
def test_a_copy_opens_no_file_of_the_originals_but_read_only(name: str) -> None:
    root = copy_xml(own(name))
    for read_only in root.xpath("//disk[readonly]"):
        read_only.getparent().remove(read_only)
    places = [*found(root, "//devices//@file"), *found(root, "//@dev[contains(., '/')]")]
    places += [*found(root, "//@path"), *found(root, "//nvram")]
    assert places
    assert [place for place in places if not place.startswith("/lab/")] == []


@pytest.mark.parametrize("name", ALL)
def test_a_copy_opens_no_port_and_joins_no_network(name: str) -> None:
    root = copy_xml(own(name))
    assert set(found(root, "//interface/@type")) <= {"user"}
    assert found(root, "//@service") == []
    assert found(root, "//graphics[not(listen/@type='none')]") == []


def test_written_disks_are_overlays_and_keep_what_else_is_said_of_them() -> None:
    root = copy_xml(own())
    assert found(root, "//disk[target/@dev='vda']/@type") == ["file"]
    assert found(root, "//disk[target/@dev='vda']/serial") == ["abc"]
    assert found(root, "//disk[target/@dev='vda']/shareable") == []
    assert found(root, "//disk[target/@dev='vda']/driver/@type") == ["qcow2"]
    log = "//disk[target/@dev='vdb']"
    assert found(root, f"{log}/source/@file") == ["/lab/vdb.qcow2"]
    assert found(root, f"{log}/driver/@*") == ["qemu", "qcow2", "writeback", "2"]
    assert found(root, f"{log}/source/@startupPolicy") == []


def test_read_only_disks_stay_and_a_drive_of_the_hosts_is_emptied() -> None:
    root = copy_xml(own())
    assert found(root, "//disk[target/@dev='vdc']/source/@file") == ["/srv/shared.img"]
    assert found(root, "//disk[target/@dev='sda']/source/@file") == ["/srv/setup.iso"]
    assert found(root, "//disk[target/@dev='sdb']/source") == []
    assert "the cdrom drive 'sdb' is empty" in copy_of(own()).notes


def test_a_network_card_keeps_what_the_guest_sees_of_it() -> None:
    (card,) = copy_xml(own()).xpath("//interface")
    assert [child.tag for child in card] == ["mac", "model", "address", "link"]
    assert found(card, "link/@state") == ["down"]  # nothing of the host is reached from it
    assert found(card, "address/@bus") == ["0x01"]
    macs = found(copy_xml(own("old")), "//interface/mac/@address")
    assert len(set(macs)) == 2
    assert macs == found(copy_xml(own("old")), "//interface/mac/@address")


def test_a_kept_network_has_another_mac_and_all_else() -> None:
    (card,) = copy_xml(own(), keep_network=True).xpath("//interface")
    assert card.get("type") == "network"
    assert found(card, "source/@network") == ["default"]
    assert found(card, "driver/@queues") == ["4"]
    assert found(card, "mac/@address") != ["52:54:00:aa:bb:cc"]


def test_the_agents_channel_is_labctls_whether_there_was_one_or_not() -> None:
    for name in ALL:
        root = copy_xml(own(name))
        for port, socket in (
            ("org.qemu.guest_agent.0", "agent"),
            ("org.labctl.runner.0", "runner"),
        ):
            channel = f"//channel[target/@name='{port}']"
            assert found(root, f"{channel}/source/@path") == [f"/lab/{socket}.sock"]


def test_other_ports_stay_in_their_places_and_lead_nowhere() -> None:
    root = copy_xml(own())
    assert found(root, "//serial/@type") == ["file", "null"]
    assert found(root, "//console") == []
    assert found(root, "//serial/protocol | //log") == []
    assert found(root, "//channel[target/@name='com.example.monitoring']/@type") == ["null"]
    assert found(copy_xml(own("old")), "//serial/source/@path") == ["/lab/console.log"]
    assert found(copy_xml(own("server")), "//console/source/@path") == ["/lab/console.log"]


def test_displays_go_only_if_they_would_open_a_port() -> None:
    root = copy_xml(own())
    assert found(root, "//graphics/@type") == ["spice"]
    assert found(root, "//channel[@type='spicevmc']/target/@name") == ["com.redhat.spice.0"]
    assert found(root, "//redirdev") == []
    assert found(root, "//sound/@model") == ["ich9"]
    assert found(root, "//audio/@type") == ["none"]
    spice = copy_xml(own("uefi"))
    assert found(spice, "//graphics | //redirdev | //channel[@type='spicevmc']") == []
    assert found(spice, "//video/model/@type") == ["virtio"]


def test_a_copy_has_room_for_no_more_vcpus_than_it_starts_with() -> None:
    root = copy_xml(own())
    assert found(root, "vcpu") == ["2"]
    assert found(root, "vcpu/@current") == []
    assert found(root, "cpu/topology") == []


def test_what_is_said_of_absent_vcpus_goes_with_them() -> None:
    pins = "<vcpupin vcpu='7' cpuset='5'/><vcpusched vcpus='1-7' scheduler='fifo' priority='1'/>"
    text = BY_HAND.replace("<vcpupin", f"{pins}<vcpupin").replace("<vcpusched vcpus='1' s", "<x s")
    root = copy_xml(own_domain(text, "x"))
    assert found(root, "cputune/vcpupin/@vcpu") == ["0"]
    assert found(root, "cputune/vcpusched/@vcpus") == ["1"]
    assert found(root, "cpu/numa/cell/@cpus") == ["0-1"]


def test_sizes_are_whole_huge_pages_which_qemu_10_asks_for() -> None:
    root = copy_xml(own())
    rounded = str(-(-3906250 // 2048) * 2048)
    assert found(root, "memory") == [rounded]
    assert found(root, "memory/@unit") == ["KiB"]
    assert found(root, "cpu/numa/cell/@memory") == [rounded]
    gigabyte = own_domain(BY_HAND.replace("size='1048576' unit='KiB'", "size='1' unit='G'"), "x")
    assert found(copy_xml(gigabyte), "memoryBacking/hugepages/page/@*") == ["1048576", "KiB"]


def test_limits_of_control_groups_are_left_out_and_told() -> None:
    limits = "<shares>512</shares><quota>50000</quota><iothread_period>1000</iothread_period>"
    text = BY_HAND.replace("<cputune>", f"<cputune>{limits}")
    text = text.replace("<os>", "<blkiotune><weight>800</weight></blkiotune><os>")
    copy = copy_of(own_domain(text, "x"))
    root = parse(copy.xml)
    assert found(root, "//shares | //quota | //iothread_period | //blkiotune") == []
    assert found(root, "cputune/emulatorpin/@cpuset") == ["0-1,3"]
    (note,) = (note for note in copy.notes if "limits" in note)
    assert "<shares>, <quota>, <iothread_period>, <blkiotune>" in note


def test_firmware_is_opened_read_only_whatever_is_said_of_it() -> None:
    flash = "<os><loader type='pflash'>/usr/share/OVMF/OVMF_CODE.fd</loader>"
    root = copy_xml(own_domain(BY_HAND.replace("<os>", flash), "x"))
    assert found(root, "os/loader/@readonly") == ["yes"]


def test_a_topology_that_fits_stays() -> None:
    assert found(copy_xml(own("server")), "cpu/topology/@threads") == ["2"]


def test_free_threads_stay_within_what_labctl_may_use() -> None:
    confined = {"confined_to": frozenset({0, 1})}
    assert found(copy_xml(own("server"), **confined), "vcpu/@cpuset") == ["0-1"]
    assert found(copy_xml(own(), **confined), "vcpu/@cpuset") == ["0-2,4-7"]


def test_under_tcg_what_only_kvm_has_goes_and_is_told() -> None:
    copy = copy_of(own(), accelerator="tcg")
    root = parse(copy.xml)
    assert root.get("type") == "qemu"
    assert found(root, "//hyperv | //ioapic | cpu/model | cpu/feature | cpu/@mode") == []
    assert found(root, "//timer/@name") == ["hpet"]
    assert found(root, "cpu/numa/cell/@id") == ["0"]
    assert any("<cpu>" in note and "<hyperv>" in note for note in copy.notes)


def test_under_kvm_a_feature_that_does_not_start_here_is_left_out() -> None:
    broken = {"disabled_features": ("arch-capabilities",)}
    root = copy_xml(own("old"), **broken)
    assert found(root, "cpu/feature[@name='arch-capabilities']/@policy") == ["disable"]
    assert found(copy_xml(own(), **broken), "cpu/feature/@name") == ["vmx"]


def test_the_copy_runs_with_labels_that_change_no_owner() -> None:
    (label,) = copy_xml(own()).xpath("seclabel")
    assert (label.get("model"), label.get("relabel")) == ("dac", "no")


def test_an_smbios_uuid_follows_the_domains() -> None:
    root = copy_xml(own())
    assert found(root, "sysinfo//entry[@name='uuid']") == found(root, "uuid")


def test_a_password_gets_nowhere() -> None:
    assert "secret" not in own().xml


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ("<disk type='file'><source file='x.img'/><target dev='vde'/></disk>", "names no file"),
        ("<disk><target dev='vde'/></disk>", "names no file"),
        ("<disk device='tape'><target dev='vde'/></disk>", "disks of the kind 'tape'"),
        ("<disk><source file='/x'/><mirror/><target dev='vde'/></disk>", "a block job"),
    ],
)
def test_a_device_that_no_copy_can_have_is_refused_by_name(element: str, reason: str) -> None:
    domain = own_domain(BY_HAND.replace("<sound", f"{element}<sound"), "x")
    with pytest.raises(UsageError, match=f"can't copy x: .*{re.escape(reason)}") as caught:
        check_copyable(domain)
    assert "dumpxml" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("<os>", "<os><loader readonly='no' type='pflash'>/x</loader>", "firmware's own file"),
        ("arch='x86_64'", "arch='aarch64'", "x86_64"),
        (">hvm<", ">xen<", "hvm"),
        ("</iothreads>", "</iothreads><iothreadids><iothread id='5'/></iothreadids>", "from 1"),
    ],
)
def test_a_setting_that_no_copy_can_have_is_refused(before: str, after: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"can't copy x: .*{reason}"):
        check_copyable(own_domain(BY_HAND.replace(before, after), "x"))


def test_everything_that_is_refused_is_told_at_once() -> None:
    both = "<disk><target dev='vde'/></disk><disk><target dev='vdf'/></disk>"
    with pytest.raises(UsageError, match="dev='vde'>.*dev='vdf'>"):
        check_copyable(own_domain(BY_HAND.replace("<sound", f"{both}<sound"), "x"))


@pytest.mark.parametrize(
    ("xml", "sentence"),
    [
        ("", "is not XML"),
        ("<domain", "is not XML"),
        (
            "<network><name>default</name></network>",
            "file 'x.xml' is not a QEMU domain: its root is <network>",
        ),
        ("<domain type='xen'/>", "its root is <domain type='xen'>"),
        ("<domain type='kvm'/>", "has no <vcpu>|has neither <memory>"),
        (BY_HAND.replace("current='2'>8", ">many"), "<vcpu.* .line 60.: 'many' is not a number"),
        (BY_HAND.replace("unit='GB'>4", "unit='GB'>much"), "is not a size of memory"),
        (BY_HAND.replace("unit='GB'>4", "unit='stone'>4"), "is not a size of memory"),
        (
            BY_HAND.replace("cpuset='4'", "cpuset='four'"),
            "<vcpupin> .line 62.: cpuset: not a CPU list",
        ),
    ],
)
def test_what_is_no_domain_is_refused(xml: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        own_domain(xml, "the file 'x.xml'")


def test_expected_threads_are_what_the_xml_says_whoever_wrote_it() -> None:
    threads = {
        (t.role, t.index): (sorted(t.cpus), t.policy, t.priority)
        for t in expected_threads(own().xml, 2, frozenset({0, 1}))
    }
    rest = [0, 1, 2, 4, 5, 6, 7]
    assert threads == {
        ("vcpu", 0): ([4], "other", 0),
        ("vcpu", 1): (rest, "rr", 5),
        ("emulator", 0): ([0, 1, 3], "other", 0),
        ("iothread", 1): (rest, "other", 0),
        ("iothread", 2): (rest, "other", 0),
    }


def test_threads_that_nothing_is_said_about_may_run_where_labctl_may() -> None:
    (*vcpus, emulator) = expected_threads(own("server").xml, 4, frozenset({0, 1}))
    assert [thread.cpus for thread in vcpus] == [{0, 1}] * 4
    assert emulator.cpus == {0, 1}


def test_a_read_domain_differs_from_what_was_given_only_in_cpu_sets() -> None:
    paths = {c.path for c in changes(BY_HAND, own().xml)}
    assert paths == {
        "vcpu/@cpuset",
        "cputune/emulatorpin/@cpuset",
        "devices/graphics/@passwd",
    }
