"""What of somebody else's domain gets into labctl's copy: what the allow-list names alone."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from lxml import etree

from labctl.base.errors import LabctlError, UsageError
from labctl.base.xmldiff import parse
from labctl.domain.foreign.allowed import DOMAIN
from labctl.domain.foreign.copied import confirmed
from labctl.domain.foreign.foreign_domain import MOST_BYTES, check_copyable, own_domain
from labctl.domain.foreign.graft import grafted, tuned, with_data_disk
from labctl.domain.foreign.rebuilt import Element, path, rebuilt
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.domain.render import render
from labctl.domain.schema import validate
from labctl.study.tunings import load_tuning
from tests.unit.domain import hosts
from tests.unit.domain.own import BY_HAND, LABEL, VIRT_INSTALL, copy_of, own

EVIL = "/tmp/planted"


def with_device(element: str) -> str:
    return BY_HAND.replace("<sound", f"{element}<sound")


def with_part(element: str) -> str:
    return BY_HAND.replace("<genid>", f"{element}<genid>")


NAMED_FILES = {
    "emulator": with_device(f"<emulator>{EVIL}</emulator>"),
    "an emulator among other devices": with_part(f"<devices><emulator>{EVIL}</emulator></devices>"),
    "an interface's script": BY_HAND.replace(
        "<target dev='web0'/>", f"<script path='{EVIL}'/><downscript path='{EVIL}'/>"
    ),
    "an interface's backend": BY_HAND.replace(
        "<target dev='web0'/>", f"<backend tap='{EVIL}' vhost='{EVIL}' logFile='{EVIL}'/>"
    ),
    "a vhost-user card": with_device(
        f"<interface type='vhostuser'><source type='unix' path='{EVIL}' mode='client'/></interface>"
    ),
    "a card's ROM": BY_HAND.replace("<target dev='web0'/>", f"<rom file='{EVIL}'/>"),
    "a card over another guest's": with_device(
        f"<interface type='vdpa'><source dev='{EVIL}'/></interface>"
    ),
    "audio to a file": with_device(f"<audio id='2' type='file' path='{EVIL}'/>"),
    "audio from a device": with_device(
        f"<audio id='3' type='oss'><input dev='{EVIL}'/><output dev='{EVIL}'/></audio>"
    ),
    "random numbers": with_device(
        f"<rng model='virtio'><backend model='random'>{EVIL}</backend></rng>"
    ),
    "random numbers of a daemon": with_device(
        "<rng model='virtio'><backend model='egd' type='unix'>"
        f"<source mode='connect' path='{EVIL}'/></backend></rng>"
    ),
    "a serial port": with_device(f"<serial type='dev'><source path='{EVIL}'/></serial>"),
    "a serial port's log": with_device(f"<serial type='pty'><log file='{EVIL}'/></serial>"),
    "a pipe": with_device(f"<serial type='pipe'><source path='{EVIL}'/></serial>"),
    "a parallel port": with_device(f"<parallel type='file'><source path='{EVIL}'/></parallel>"),
    "a console": with_device(
        f"<console type='file'><source path='{EVIL}'/><target type='virtio'/></console>"
    ),
    "a channel": with_device(
        f"<channel type='unix'><source mode='bind' path='{EVIL}'/>"
        "<target type='virtio' name='x'/></channel>"
    ),
    "a TPM of the host": with_device(
        f"<tpm><backend type='passthrough'><device path='{EVIL}'/></backend></tpm>"
    ),
    "a TPM's state": with_device(
        f"<tpm><backend type='emulator'><source type='file' path='{EVIL}'/></backend></tpm>"
    ),
    "a smartcard": with_device(
        f"<smartcard mode='host-certificates'><database>{EVIL}</database></smartcard>"
    ),
    "a redirected device": with_device(
        f"<redirdev bus='usb' type='unix'><source mode='connect' path='{EVIL}'/></redirdev>"
    ),
    "an input device": with_device(f"<input type='evdev'><source dev='{EVIL}'/></input>"),
    "a passed input device": with_device(
        f"<input type='passthrough' bus='virtio'><source evdev='{EVIL}'/></input>"
    ),
    "a display's GPU": with_device(
        "<graphics type='spice'><listen type='none'/>"
        f"<gl enable='yes' rendernode='{EVIL}'/></graphics>"
    ),
    "a display without a window": with_device(
        f"<graphics type='egl-headless'><gl rendernode='{EVIL}'/></graphics>"
    ),
    "a display's socket": with_device(f"<graphics type='vnc' socket='{EVIL}'/>"),
    "a display's bus": with_device(f"<graphics type='dbus' address='unix:path={EVIL}'/>"),
    "a window": with_device(
        f"<graphics type='sdl' display=':0' xauth='{EVIL}'><listen type='none'/></graphics>"
    ),
    "a video card's helper": with_device(
        "<video><driver name='vhostuser'/><model type='virtio'>"
        f"<acceleration accel3d='yes' rendernode='{EVIL}'/></model></video>"
    ),
    "a store of panics": with_device(f"<pstore backend='acpi-erst'><path>{EVIL}</path></pstore>"),
    "a crypto device": with_device(
        f"<crypto model='virtio' type='qemu'><backend model='lkcf' path='{EVIL}'/></crypto>"
    ),
    "a socket of reservations": BY_HAND.replace(
        "<source dev='/dev/vg/web'/>",
        "<source dev='/dev/vg/web'><reservations managed='no'>"
        f"<source type='unix' path='{EVIL}' mode='client'/></reservations></source>",
    ),
    "a backing file that the XML says": BY_HAND.replace(
        "<backingStore/>",
        f"<backingStore type='file'><format type='raw'/><source file='{EVIL}'/></backingStore>",
    ),
    "ACPI tables": BY_HAND.replace("<os>", f"<os><acpi><table type='slic'>{EVIL}</table></acpi>"),
    "a device tree": BY_HAND.replace("<os>", f"<os><dtb>{EVIL}</dtb>"),
    "a container's init": BY_HAND.replace("<os>", f"<os><init>{EVIL}</init>"),
    "a boot loader": with_part(f"<bootloader>{EVIL}</bootloader>"),
    "files for the firmware": with_part(
        f"<sysinfo type='fwcfg'><entry name='opt/x' file='{EVIL}'/></sysinfo>"
    ),
    "SMBIOS from a file": BY_HAND.replace("<system>", f"<system file='{EVIL}'>"),
    "files that keep variables": BY_HAND.replace(
        "<os>", f"<os firmware='efi'><varstore path='{EVIL}' template='{EVIL}'/>"
    ),
    "QEMU options of another spelling": BY_HAND.replace(
        "<genid>",
        "<q:override xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'>"
        f"<q:device alias='x'><q:frontend><q:property name='p' value='{EVIL}'/></q:frontend>"
        "</q:device></q:override><genid>",
    ),
    "an element that nobody knows yet": with_device(f"<future program='{EVIL}'/>"),
    "an attribute that nobody knows yet": BY_HAND.replace(
        "<memballoon", f"<memballoon program='{EVIL}'"
    ),
}
"""What names a file of the host and isn't a disk, firmware or a kernel."""


@pytest.mark.parametrize("keep_network", [False, True])
@pytest.mark.parametrize("what", NAMED_FILES)
def test_what_names_a_file_gets_into_no_copy(what: str, keep_network: bool) -> None:
    domain = own_domain(NAMED_FILES[what], "x")
    try:
        check_copyable(domain)
    except UsageError:
        return
    copy = copy_of(domain, keep_network=keep_network).xml
    assert EVIL not in copy
    validate(copy)


@pytest.mark.parametrize("name", [*VIRT_INSTALL, "by hand"])
def test_the_emulator_is_this_hosts_own(name: str) -> None:
    copy = copy_of(own(name))
    assert parse(copy.xml).findall(".//emulator") == []


def test_a_planted_emulator_is_said_to_be_left_out() -> None:
    notes = copy_of(own_domain(NAMED_FILES["emulator"], "x")).notes
    assert "<emulator> is left out: labctl runs this host's own QEMU" in notes


def test_what_is_taken_over_and_what_is_left_out_is_said() -> None:
    first, *others = copy_of(own_domain(with_device("<future/>"), "x")).notes
    assert first.startswith("copied from its XML: ")
    for part in ("<vcpu>", "<cputune>", "5 <disk>", "<interface>", "<memballoon>"):
        assert part in first
    (unknown,) = [note for note in others if "<future>" in note]
    assert unknown.endswith("left out: labctl copies only elements that it knows")


REFUSED = {
    "two lists of devices": (with_part("<devices/>"), "more than one in its <domain>"),
    "two systems": (with_part("<os><type>hvm</type></os>"), "more than one"),
    "two sources of a disk": (
        BY_HAND.replace("<source dev='/dev/vg/web'/>", "<source dev='/a'/><source dev='/b'/>"),
        "<source> (line 5): more than one in its <disk>",
    ),
    "a disk whose name is a path": (
        BY_HAND.replace("dev='vda'", "dev='../../etc/x'"),
        "<target> (line 7): dev='../../etc/x' is not a name of a disk",
    ),
    "a path with ..": (BY_HAND.replace("/srv/log", "/srv/../etc/log"), "is not an absolute path"),
    "a kernel by a relative path": (
        BY_HAND.replace("<os>", "<os><kernel>vmlinuz</kernel>"),
        "'vmlinuz' is not an absolute path",
    ),
    "variables by a relative path": (
        BY_HAND.replace("<os>", "<os><nvram>vars.fd</nvram>"),
        "no absolute path",
    ),
    "a CD image of a format with references": (
        BY_HAND.replace(
            "<source file='/srv/setup.iso'/>", "<driver type='vmdk'/><source file='/x'/>"
        ),
        "labctl supports raw and qcow2, but it is 'vmdk'",
    ),
    "a disk of an unknown kind": (
        BY_HAND.replace("device='cdrom'", "device='cdxrom'"),
        "does not support disks of the kind 'cdxrom'",
    ),
    "iothreads without end": (BY_HAND.replace(">2</ioth", ">99999</ioth"), "at most 256"),
    "queues without end": (BY_HAND.replace("queues='4'", "queues='99999'"), "from 0 to 16384"),
    "a priority beyond the kernel's": (
        BY_HAND.replace("priority='5'", "priority='100'"),
        "priority='100' is not from 0 to 99",
    ),
    "a topology without end": (
        BY_HAND.replace("sockets='8'", "sockets='88888888888888888888'"),
        "is not from 1 to 1024",
    ),
    "an option of QEMU's behind a comma": (
        BY_HAND.replace(">Nehalem<", ">host,x=y<"),
        "'host,x=y' is not a word",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_beyond_the_limits_is_refused_with_its_line(what: str) -> None:
    xml, reason = REFUSED[what]
    with pytest.raises(UsageError) as caught:
        check_copyable(own_domain(xml, "x"))
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("xml", "reason"),
    [
        (with_part(f"<x>{'x' * MOST_BYTES}</x>"), "larger than 1048576 bytes"),
        (with_part("<x>" * 40 + "</x>" * 40), "nested deeper than 32 levels"),
        (with_part("<x/>" * 5000), "more than 4096 elements"),
        (BY_HAND.replace("'2'>8<", "'1025'>8<"), "'1025' is not a number of vCPUs from 1 to 1024"),
        (BY_HAND.replace("unit='GB'>4<", "unit='TiB'>65<"), "65 is more than 64 TiB"),
        (BY_HAND.replace("unit='GB'>4<", f"unit='KiB'>{'9' * 9999}<"), "more than 64 TiB"),
        (
            BY_HAND.replace("<emulatorpin", "<vcpupin vcpu='1' cpuset='0-16383'/>" * 70 + "<emu"),
            "more than 1000000 CPUs in its sets",
        ),
        (f"<!DOCTYPE domain [<!ENTITY x SYSTEM 'file://{EVIL}'>]>{BY_HAND}", "document type"),
        ("<!DOCTYPE domain SYSTEM 'http://localhost/x'>" + BY_HAND, "document type"),
    ],
    ids=["size", "levels", "elements", "vcpus", "memory", "digits", "cpus", "entity", "dtd"],
)
def test_the_limit_is_in_the_message(xml: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        own_domain(xml, "x")
    assert reason in caught.value.message


def test_entities_that_stand_for_gigabytes_are_not_expanded() -> None:
    bomb = "<!ENTITY a 'aaaaaaaaaa'>" + "".join(
        f"<!ENTITY {name} '{f'&{of};' * 10}'>"
        for of, name in zip("abcdefghi", "bcdefghij", strict=True)
    )
    for place in ("<name>&j;", "<title x='&j;'/><name>"):
        with pytest.raises(UsageError):
            own_domain(f"<!DOCTYPE d [{bomb}]>{BY_HAND.replace('<name>', place)}", "x")


def test_a_card_stays_only_on_a_network_that_labctl_knows() -> None:
    card = "<interface type='vhostuser'><source type='unix' path='/x' mode='client'/></interface>"
    root = parse(copy_of(own_domain(with_device(card), "x"), keep_network=True).xml)
    assert root.xpath("//interface/@type") == ["network", "user"]


@pytest.mark.parametrize("name", ["old", "by hand", "uefi", "direct"])
def test_a_finished_copy_names_labctls_files_and_those_that_were_looked_at(name: str) -> None:
    domain = own(name)
    chosen = load_tuning("pinned+fifo+iothreads")
    plan = pin_plan(hosts.TWO_SOCKETS_SMT, domain.vcpus, chosen.iothreads, chosen.pin.strategy)
    plain, rendered = (
        render(hosts.request(t, plan=plan, vcpus=domain.vcpus))
        for t in (load_tuning("baseline"), chosen)
    )
    xml = with_data_disk(grafted(copy_of(domain).xml, chosen, plain, rendered), rendered)
    places = [e.text or "" for tag in ("loader", "kernel", "initrd") for e in parse(xml).iter(tag)]
    places += [str(at) for at in parse(xml).xpath("//@file | //nvram/@template")]
    allowed = {"/lab/agent.sock", "/lab/runner.sock", "/lab/console.log", "/lab/nvram.fd", *places}
    again = confirmed(xml, frozenset(allowed), LABEL, "the copy")
    assert etree.tostring(parse(again), method="c14n2") == etree.tostring(
        parse(xml), method="c14n2"
    )
    with pytest.raises(UsageError, match="not a file that labctl has checked"):
        confirmed(xml, frozenset(allowed - {"/lab/agent.sock"}), LABEL, "the copy")
    with pytest.raises(UsageError, match="<label>"):
        confirmed(xml, frozenset(allowed), "+0:+0", "the copy")


@pytest.mark.parametrize("added", ["<emulator>/x</emulator>", "<filesystem/>", "<future/>"])
def test_a_template_puts_nothing_into_a_copy_that_is_not_in_the_table(added: str) -> None:
    xml = copy_of(own("server")).xml.replace("</devices>", f"{added}</devices>")
    with pytest.raises(UsageError, match="must not contain: .*domain/devices/(emu|file|fut)"):
        confirmed(xml, frozenset({"/lab/x"}), LABEL, "the copy")


def places_of(table: Element, name: str = "domain") -> list[str]:
    """Where the table takes a path."""
    found = [f"{name}/@{key}" for key, grammar in table.attributes.items() if grammar is path]
    found += [name] if table.text is path else []
    for tag, inside in table.children.items():
        found += places_of(inside, f"{name}/{tag}")
    return found


def test_the_table_takes_paths_of_disks_firmware_and_a_kernel_alone() -> None:
    assert places_of(DOMAIN) == [
        "domain/os/loader",
        "domain/os/nvram/@template",
        "domain/os/nvram",
        "domain/os/kernel",
        "domain/os/initrd",
        "domain/devices/disk/source/@file",
        "domain/devices/disk/source/@dev",
    ]


@pytest.mark.parametrize("value", ["/bin/sh", "../x", "a,b=c", "x\x7f", "$(x)"])
def test_no_other_value_of_the_table_takes_a_path_or_an_option(value: str) -> None:
    """Each attribute and text of the table, given that value: it is refused or left out."""

    def filled(table: Element, tag: str) -> etree._Element:
        made = etree.Element(tag, dict.fromkeys(table.attributes, value))
        made.attrib.update({key: min(words) for key, words in table.only.items()})
        made.text = value if table.text else None
        made.extend(filled(inside, inner) for inner, inside in table.children.items())
        return made

    free = {"cmdline", "serial", "wwn", "vendor", "product", "entry", "name", "source"}
    free |= {"loader", "nvram", "kernel", "initrd"}
    for element in rebuilt(filled(DOMAIN, "domain"), DOMAIN).root.iter():
        said = [*element.attrib.values(), element.text]
        assert value not in said or element.tag in free


def damaged(xml: str, chance: random.Random) -> str:
    """The domain with a few changes such as a hand or a disk makes, or somebody on purpose."""
    numbers = ["-1", "0", "9" * 40, "0-99999999999", "1e9", "٣", "", "^", "0x", "../..", "\ud7ff"]
    for _ in range(chance.randint(1, 6)):
        at, to = sorted(chance.randrange(len(xml)) for _ in range(2))
        match chance.randrange(6):
            case 0:
                xml = xml[:at] + xml[min(to, at + 40) :]
            case 1:
                xml = xml[:at] + xml[at : at + 200] + xml[at:]
            case 2:
                xml = xml[:at] + chance.choice("<>&'\"/ \x01é") + xml[at + 1 :]
            case 3:
                values = list(re.finditer("'([^']*)'", xml))
                found = chance.choice(values) if values else None
                if found:
                    xml = xml[: found.start(1)] + chance.choice(numbers) + xml[found.end(1) :]
            case 4:
                tags = list(re.finditer("<(/?)([a-z]+)", xml))
                one, other = chance.choice(tags), chance.choice(tags)
                xml = xml[: one.start(2)] + other[2] + xml[one.end(2) :]
            case _:
                texts = list(re.finditer(">([^<]+)<", xml))
                found = chance.choice(texts) if texts else None
                if found:
                    xml = xml[: found.start(1)] + chance.choice(numbers) + xml[found.end(1) :]
        if not xml:
            return "<"
    return xml


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_domain_is_copied_or_refused_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    baseline, tuning = load_tuning("baseline"), load_tuning("pinned+fifo")
    copies = 0
    for _ in range(60):
        try:
            domain = own_domain(damaged(BY_HAND, chance), "x")
            check_copyable(domain)
            xml = copy_of(domain, disks={d.name: Path("/lab/x") for d in domain.disks}).xml
            assert set(parse(xml).xpath("//@path")) <= {
                "/lab/console.log",
                "/lab/agent.sock",
                "/lab/runner.sock",
            }
            plan = pin_plan(hosts.TWO_SOCKETS_SMT, domain.vcpus, 1, tuning.pin.strategy)
            tuned(domain, tuning, plan, baseline, "kvm", 950_000)
            copies += 1
        except LabctlError:
            continue
    assert copies
