"""A tuning put into somebody's own domain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lxml import etree

from labctl.base.tuning import Cpu, Disk, GuestSide, Kind, Strategy, Tuning
from labctl.base.xmldiff import XmlChange, changes, parse
from labctl.domain.foreign.foreign_domain import own_domain
from labctl.domain.foreign.graft import durability, grafted, tuned, with_data_disk
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.domain.render import render
from labctl.domain.schema import validate
from labctl.study.tunings import load_tuning, load_tunings, tuning_names
from tests.unit.domain import hosts
from tests.unit.domain.own import BY_HAND, VIRT_INSTALL, copy_of, own

BASELINE = load_tuning("baseline")
TUNINGS = {n: t for n, t in load_tunings(tuning_names()).items() if t.kind is Kind.GUEST}


def with_tuning(name: str, tuning: Tuning | str, accelerator: str = "kvm") -> str:
    """The domain `name` with a tuning."""
    domain = own(name)
    chosen = load_tuning(tuning) if isinstance(tuning, str) else tuning
    plan = pin_plan(
        hosts.TWO_SOCKETS_SMT, domain.vcpus, max(1, chosen.iothreads), chosen.pin.strategy
    )
    return tuned(domain, chosen, plan, BASELINE, accelerator, 950_000)


def changed(name: str, tuning: Tuning | str, accelerator: str = "kvm") -> dict[str, str | None]:
    """Path to its new value, of all that a tuning changes in the domain."""
    found = changes(own(name).xml, with_tuning(name, tuning, accelerator))
    return {change.path: change.after for change in found}


def tuning(**fields: object) -> Tuning:
    return replace(BASELINE, name="mine", **fields)  # type: ignore[arg-type]


def newer_libvirt(of: Tuning) -> bool:
    return of.requires.libvirt is not None and of.requires.libvirt.split(".")[0] not in ("8", "9")


@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
@pytest.mark.parametrize("name", [*VIRT_INSTALL, "by hand"])
def test_every_tuning_fits_into_every_domain(name: str, accelerator: str) -> None:
    copy = copy_of(own(name), accelerator=accelerator)
    for chosen in TUNINGS.values():
        if newer_libvirt(chosen):
            continue  # the schema that is installed doesn't know it
        vcpus = own(name).vcpus
        if vcpus == 1 and chosen.pin.strategy is Strategy.SIBLINGS:
            continue  # there is no pair
        plan = pin_plan(hosts.TWO_SOCKETS_SMT, vcpus, chosen.iothreads, chosen.pin.strategy)
        plain, rendered = (
            render(hosts.request(t, plan=plan, vcpus=vcpus, accelerator=accelerator))
            for t in (BASELINE, chosen)
        )
        xml = with_data_disk(grafted(copy.xml, chosen, plain, rendered), rendered)
        validate(xml, what=f"{name} with {chosen.name}")


@pytest.mark.parametrize("name", [*VIRT_INSTALL, "by hand"])
@pytest.mark.parametrize("same", ["baseline", "control", "handicap"])
def test_the_roles_change_nothing(name: str, same: str) -> None:
    assert changed(name, same) == {}


def test_an_enlightenment_comes_beside_those_that_a_domain_has() -> None:
    assert changed("by hand", "hyperv-relaxed") == {}
    assert changed("by hand", "hyperv-stimer-direct") == {
        "features/hyperv/vpindex/@state": "on",
        "features/hyperv/synic/@state": "on",
        "features/hyperv/stimer/@state": "on",
        "features/hyperv/stimer/direct/@state": "on",
        "clock/timer[@name='hypervclock']/@present": "yes",
    }


def test_a_domain_that_passes_all_enlightenments_through_gets_those_of_the_tuning() -> None:
    text = own("by hand").xml.replace(
        '<hyperv mode="custom"><relaxed state="on"/></hyperv>', '<hyperv mode="passthrough"/>'
    )
    assert 'mode="passthrough"' in text
    chosen = load_tuning("hyperv-vapic")
    plan = pin_plan(hosts.TWO_SOCKETS_SMT, own("by hand").vcpus, 1)
    plain, rendered = (
        render(hosts.request(t, plan=plan, vcpus=own("by hand").vcpus, accelerator="kvm"))
        for t in (BASELINE, chosen)
    )
    hyperv = parse(grafted(text, chosen, plain, rendered)).find("features/hyperv")
    assert hyperv is not None
    assert hyperv.get("mode") is None
    assert [child.tag for child in hyperv] == ["vapic"]


def test_a_disk_with_an_iothread_has_several_instead() -> None:
    domain = own("server").xml
    assert 'bus="virtio"' in domain
    name, plan = "iothreads-4-mapped", pin_plan(hosts.TWO_SOCKETS_SMT, own("server").vcpus, 4)
    text = domain.replace("<driver ", '<driver iothread="1" ')
    plain, rendered = (
        render(hosts.request(t, plan=plan, vcpus=own("server").vcpus, accelerator="kvm"))
        for t in (BASELINE, load_tuning(name))
    )
    drivers = [
        disk.find("driver")
        for disk in parse(grafted(text, load_tuning(name), plain, rendered)).iterfind(
            "devices/disk[@device='disk']"
        )
        if disk.find("target[@bus='virtio']") is not None
    ]
    assert drivers
    for driver in drivers:
        assert driver is not None
        assert driver.get("iothread") is None
        assert len(driver.findall("iothreads/iothread")) == 4


def test_a_tuning_changes_what_it_is_about_and_nothing_else() -> None:
    assert changed("server", "vcpupin") == {
        f"cputune/vcpupin[@vcpu='{n}']/@cpuset": cpu for n, cpu in enumerate(("1", "9", "2", "10"))
    }
    assert changed("old", "emulatorpin") == {"cputune/emulatorpin/@cpuset": "2"}


def test_own_pins_and_policies_give_way_where_the_tuning_has_some_and_stay_elsewhere() -> None:
    found = changed("by hand", "pinned+fifo")
    assert found["cputune/vcpupin[@vcpu='0']/@cpuset"] == "1"
    assert found["cputune/vcpusched[@vcpus='1']/@scheduler"] is None
    assert found["cputune/vcpusched[@vcpus='0-1']/@scheduler"] == "fifo"
    root = parse(with_tuning("by hand", "vcpupin"))
    assert root.xpath("cputune/emulatorpin/@cpuset") == ["0-1,3"]
    assert root.xpath("cputune/vcpusched/@scheduler") == ["rr"]


def test_iothreads_are_added_and_never_taken_away() -> None:
    assert changed("server", "iothreads-1")["iothreads"] == "1"
    assert "iothreads" not in changed("by hand", "iothreads-1")


def test_disks_that_the_guest_writes_to_get_the_tunings_driver() -> None:
    found = changed("by hand", "cache-none")
    assert found == {
        "devices/disk[target/@dev='vda']/driver/@name": "qemu",
        "devices/disk[target/@dev='vda']/driver/@type": "raw",
        "devices/disk[target/@dev='vda']/driver/@cache": "none",
        "devices/disk[target/@dev='vdb']/driver/@cache": "none",
    }


def test_only_virtio_disks_get_what_only_they_have() -> None:
    found = changed("server", tuning(iothreads=1, disk=Disk(iothread=True, packed=True, queues=2)))
    assert {path for path in found if "sda" in path} == set()
    assert found["devices/disk[target/@dev='vda']/driver/@iothread"] == "1"


def test_native_io_goes_where_a_cache_mode_can_not_have_it() -> None:
    assert changed("server", "cache-writeback") == {
        "devices/disk[target/@dev='vda']/driver/@cache": "writeback",
        "devices/disk[target/@dev='vda']/driver/@io": None,
        "devices/disk[target/@dev='sda']/driver/@cache": "writeback",
    }


def test_format_and_bus_of_own_disks_stay() -> None:
    assert changed("server", tuning(disk=Disk(format="qcow2", bus="scsi"))) == {}


def test_another_cpu_takes_the_old_models_features_away_and_leaves_the_topology() -> None:
    found = changed("server", tuning(cpu=Cpu(mode="host-model")))
    assert found["cpu/@mode"] == "host-model"
    assert found["cpu/model"] is None
    assert found["cpu/feature[@name='ibpb']/@policy"] is None
    assert not any("topology" in path for path in found)
    named = changed("server", tuning(cpu=Cpu(mode="custom", model="Nehalem")))
    assert named["cpu/model"] == "Nehalem"
    assert named["cpu/feature[@name='ssbd']/@policy"] is None


def test_what_labctls_baseline_has_anyway_is_still_asked_of_a_domain_that_has_not() -> None:
    assert changed("server", tuning(cpu=Cpu(mode="host-passthrough")))["cpu/@mode"] == (
        "host-passthrough"
    )
    assert changed("old", tuning(cpu=Cpu(mode="host-passthrough"))) == {}
    no_hpet = tuning(timers={"hpet": False})
    assert changed("by hand", no_hpet) == {"clock/timer[@name='hpet']/@present": "no"}
    assert changed("server", no_hpet) == {}


def test_huge_pages_replace_those_of_another_size() -> None:
    assert changed("by hand", "hugepages-2M") == {
        "memoryBacking/hugepages/page[@size='1048576']/@unit": None,
        "memoryBacking/hugepages/page[@size='2048']/@unit": "KiB",
    }


def test_an_own_network_stays_what_it_is_when_its_card_is_tuned() -> None:
    assert changed("server", "net-vhost") == {"devices/interface/driver/@name": "vhost"}
    assert changed("server", "net-e1000e") == {"devices/interface/model/@type": "e1000e"}


def test_a_kernel_command_line_is_lengthened_only_where_the_xml_has_it() -> None:
    words = tuning(guest=GuestSide(command_line=("mitigations=off",)))
    assert changed("server", words) == {}
    boots = "<os><kernel>/vmlinuz</kernel><cmdline>root=/dev/vda</cmdline>"
    direct = own_domain(BY_HAND.replace("<os>", boots), "x")
    plan = pin_plan(hosts.TWO_SOCKETS_SMT, direct.vcpus, 1)
    after = tuned(direct, words, plan, BASELINE, "kvm", 950_000)
    assert changes(direct.xml, after) == [
        XmlChange("os/cmdline", "root=/dev/vda", "root=/dev/vda mitigations=off")
    ]


def test_labctls_data_disk_takes_a_name_that_is_free() -> None:
    rendered = render(hosts.request(BASELINE))
    root = parse(with_data_disk(copy_of(own()).xml, rendered))
    (disk,) = root.xpath("//disk[serial='labctl-data']")
    assert disk.xpath("target/@dev") == ["vdd"]
    scsi = render(hosts.request(tuning(disk=Disk(bus="scsi"))))
    root = parse(with_data_disk(copy_of(own("server")).xml, scsi))
    (disk,) = root.xpath("//disk[serial='labctl-data']")
    assert disk.xpath("target/@dev | target/@bus") == ["sdc", "scsi"]
    assert root.xpath("//controller[@type='scsi']/@model") == ["virtio-scsi"]


def with_cache(xml: str, *caches: str) -> str:
    """The domain with these cache modes on its first disks."""
    root = parse(xml)
    disks = [d for d in root.iterfind("devices/disk") if d.find("readonly") is None]
    for disk, cache in zip(disks, caches, strict=False):
        driver = disk.find("driver")
        assert driver is not None
        driver.set("cache", cache)
    return etree.tostring(root, encoding="unicode")


@pytest.mark.parametrize(
    ("of_the_domain", "of_the_tuning", "expected"),
    [
        ({}, {}, (None, None)),
        ({"cache": "none", "io": "native"}, {}, ("none", "native")),
        ({"cache": "default"}, {}, (None, None)),
        ({"cache": "none", "io": "native"}, {"cache": "unsafe"}, ("unsafe", None)),
        ({}, {"cache": "none", "io": "native"}, ("none", "native")),
    ],
)
def test_labctls_data_disk_has_the_durability_of_the_domains_own_disk(
    of_the_domain: dict[str, str],
    of_the_tuning: dict[str, str],
    expected: tuple[str | None, str | None],
) -> None:
    root = parse(copy_of(own()).xml)
    first = next(root.iterfind("devices/disk/driver"))
    first.attrib.update(of_the_domain)
    chosen = tuning(disk=Disk(**of_the_tuning))
    plan = pin_plan(hosts.TWO_SOCKETS_SMT, own().vcpus, 0)
    plain, rendered = (render(hosts.request(t, plan=plan, vcpus=2)) for t in (BASELINE, chosen))
    xml = grafted(etree.tostring(root, encoding="unicode"), chosen, plain, rendered)
    moved = parse(xml)
    disks = moved.find("devices")
    disks.append(disks.find("disk"))  # the first by its name, whatever their order
    complete = with_data_disk(etree.tostring(moved, encoding="unicode"), rendered)
    (data,) = parse(complete).xpath("devices/disk[serial='labctl-data']")
    driver = data.find("driver")
    assert (driver.get("cache"), driver.get("io")) == expected


@pytest.mark.parametrize(
    ("caches", "expected"),
    [
        (("none", "none"), "none"),
        (("directsync", "writethrough"), "writethrough"),
        (("none", "writeback"), "none, writeback"),
    ],
)
def test_disks_that_differ_have_the_durability_of_each(
    caches: tuple[str, str], expected: str
) -> None:
    assert durability(with_cache(copy_of(own()).xml, *caches)) == expected


def test_a_domain_that_says_no_cache_mode_has_qemus_default() -> None:
    assert durability(own().xml) == "writeback"
