"""Define the allow-list: everything that labctl copies from a foreign domain's XML. Pure.

It contains words and numbers of a machine, and the paths of disks, firmware and a kernel, which are
checked before use. Nothing else in it names a file, a program, a socket or a port.
https://libvirt.org/formatdomain.html explains each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from labctl.domain.foreign.rebuilt import (
    ALIAS,
    COUNT,
    CPUS,
    DISK,
    ENABLED,
    FEW,
    HEX,
    INTERFACE,
    LINE,
    MAC,
    MOST_IOTHREADS,
    MOST_VCPUS,
    NAME,
    ON,
    PLACE,
    RATE,
    SIZE,
    STATE,
    TEXT,
    UUID,
    VIRTIO,
    WORD,
    YES,
    Element,
    Grammar,
    Words,
    leaf,
    matching,
    number,
    of,
    one_of,
    path,
    words,
)

# Define which devices of a foreign domain labctl copies: their part of the allow-list. Pure.


_DEVICE = {
    "address": Element(
        {
            "type": WORD,
            "multifunction": ON,
            **dict.fromkeys(
                ("domain", "bus", "slot", "function", "controller", "target", "unit", "iobase")
                + ("irq", "base", "reg", "cssid", "ssid", "devno"),
                HEX,
            ),
            "port": matching(r"[0-9]{1,5}(\.[0-9]{1,5}){0,6}|0x[0-9a-f]{1,8}", "port"),
        }
    ),
    "alias": leaf(name=ALIAS),
    "boot": leaf(order=FEW),
    "acpi": leaf(index=FEW),
}
"""Elements that any device may have."""


def _device(
    attributes: Mapping[str, Grammar | Words] | None = None,
    only: Mapping[str, Words] | None = None,
    **children: Element,
) -> Element:
    inner = {tag.rstrip("_"): child for tag, child in children.items()}
    return Element(attributes or {}, {**_DEVICE, **inner}, only=only or {}, many=True)


_DRIVER = Element(VIRTIO)

_MAPPING = Element(
    children={
        "iothread": Element(
            {"id": number(MOST_IOTHREADS, 1)}, {"queue": leaf(many=True, id=FEW)}, many=True
        )
    }
)

_DISK_DRIVER = Element(
    {
        "name": words("qemu"),
        "type": WORD,
        "cache": WORD,
        "io": WORD,
        "error_policy": WORD,
        "rerror_policy": WORD,
        "discard": WORD,
        "detect_zeroes": WORD,
        **dict.fromkeys(("ioeventfd", "event_idx", "copy_on_read", "discard_no_unref"), ON),
        "iothread": number(MOST_IOTHREADS, 1),
        "queues": FEW,
        "queue_size": PLACE,
        **VIRTIO,
    },
    {
        "iothreads": _MAPPING,
        "metadata_cache": Element(children={"max_size": of(SIZE, unit=WORD)}),
    },
)

_LIMITS = [
    f"{which}_{what}_sec{end}"
    for which in ("total", "read", "write")
    for what in ("bytes", "iops")
    for end in ("", "_max", "_max_length")
]

DISK_ELEMENT = _device(
    {"type": WORD, "device": words("disk", "cdrom", "floppy")},
    driver=_DISK_DRIVER,
    source=leaf(file=path, dev=path),
    target=leaf(
        dev=DISK, bus=WORD, removable=ON, tray=words("open", "closed"), rotation_rate=PLACE
    ),
    iotune=Element(
        children={**dict.fromkeys(_LIMITS, of(RATE)), "size_iops_sec": of(RATE)},
    ),
    blockio=leaf(logical_block_size=COUNT, physical_block_size=COUNT),
    geometry=leaf(cyls=COUNT, heads=COUNT, secs=COUNT, trans=WORD),
    serial=of(TEXT),
    wwn=of(TEXT),
    vendor=of(TEXT),
    product=of(TEXT),
    readonly=Element(),
)

_OFFLOADS = Element(
    dict.fromkeys(("csum", "gso", "tso4", "tso6", "ecn", "ufo", "mrg_rxbuf"), ON),
)

CARD = _device(
    {"type": WORD, "trustGuestRxFilters": YES},
    mac=leaf(address=MAC),
    source=leaf(network=NAME, bridge=INTERFACE, portgroup=NAME, dev=INTERFACE, mode=WORD),
    target=leaf(dev=INTERFACE),
    model=leaf(type=WORD),
    driver=Element(
        {
            "name": words("vhost", "qemu"),
            "txmode": WORD,
            "ioeventfd": ON,
            "event_idx": ON,
            "queues": FEW,
            "rx_queue_size": PLACE,
            "tx_queue_size": PLACE,
            "rss": ON,
            "rss_hash_report": ON,
            **VIRTIO,
        },
        {"host": _OFFLOADS, "guest": _OFFLOADS},
    ),
    link=leaf(state=words("up", "down")),
    mtu=leaf(size=PLACE),
    rom=leaf(bar=ON, enabled=YES),
    port=leaf(isolated=YES),
    vlan=Element({"trunk": YES}, {"tag": leaf(many=True, id=PLACE)}),
    virtualport=Element({"type": WORD}, {"parameters": leaf(interfaceid=UUID, profileid=NAME)}),
    filterref=Element({"filter": WORD}, {"parameter": leaf(many=True, name=WORD, value=NAME)}),
)

_CONTROLLER = _device(
    {
        "type": WORD,
        "index": PLACE,
        "model": WORD,
        "ports": PLACE,
        "vectors": COUNT,
    },
    driver=Element(
        {
            "queues": FEW,
            "cmd_per_lun": COUNT,
            "max_sectors": COUNT,
            "ioeventfd": ON,
            "iothread": number(MOST_IOTHREADS, 1),
            **VIRTIO,
        },
        {"iothreads": _MAPPING},
    ),
    master=leaf(startport=PLACE),
    model=leaf(name=WORD),
    target=Element(
        {
            **dict.fromkeys(("chassisNr", "chassis", "port", "busNr", "index"), HEX),
            "hotplug": ON,
        },
        {"node": of(FEW)},
    ),
    pcihole64=of(SIZE, unit=WORD),
)

_PORT_TARGET = Element({"type": WORD, "port": PLACE, "name": WORD}, {"model": leaf(name=WORD)})

PORT = _device({"type": WORD}, target=_PORT_TARGET)
"""Serial port, console or channel: the part that the guest sees. labctl sets where it leads."""

_DIMM = _device(
    {"access": WORD, "discard": YES},
    {"model": words("dimm", "virtio-mem")},
    source=Element(children={"pagesize": of(SIZE, unit=WORD), "nodemask": of(CPUS)}),
    target=Element(
        children={
            **{tag: of(SIZE, unit=WORD) for tag in ("size", "block", "requested")},
            "node": of(FEW),
        }
    ),
)

DEVICES = Element(
    children={
        "disk": DISK_ELEMENT,
        "controller": _CONTROLLER,
        "interface": CARD,
        **dict.fromkeys(("serial", "parallel", "console", "channel"), PORT),
        "input": _device(
            {"bus": WORD, "model": WORD},
            {"type": words("mouse", "tablet", "keyboard")},
            driver=_DRIVER,
        ),
        "graphics": _device(
            only={"type": words("spice", "vnc")},
            listen=Element(
                {"type": words("none", "address", "network", "socket")},
                many=True,
            ),
        ),
        "video": _device(
            model=Element(
                {
                    "type": WORD,
                    **dict.fromkeys(("ram", "vram", "vram64", "vgamem"), SIZE),
                    "heads": FEW,
                    "primary": YES,
                },
                {"resolution": leaf(x=PLACE, y=PLACE)},
            ),
            driver=Element({"name": words("qemu"), "vgaconf": WORD, **VIRTIO}),
        ),
        "sound": _device({"model": WORD}, codec=leaf(many=True, type=WORD)),
        "hub": _device(only={"type": words("usb")}),
        "watchdog": _device(
            {
                "model": WORD,
                "action": words("reset", "shutdown", "poweroff", "pause", "none", "inject-nmi"),
            }
        ),
        "memballoon": _device(
            {"model": WORD, "autodeflate": ON, "freePageReporting": ON},
            stats=leaf(period=COUNT),
            driver=_DRIVER,
        ),
        "rng": _device(
            {"model": WORD},
            driver=_DRIVER,
            rate=leaf(bytes=COUNT, period=COUNT),
            backend=leaf(model=words("random", "builtin")),
        ),
        "panic": _device({"model": WORD}),
        "memory": _DIMM,
        "iommu": _device(
            {"model": WORD},
            driver=Element(
                {**dict.fromkeys(("intremap", "caching_mode", "eim", "iotlb"), ON)}
                | {"aw_bits": FEW}
            ),
        ),
    }
)


_CPU = Element(
    {"mode": WORD, "match": WORD, "check": WORD, "migratable": ON},
    {
        "model": of(WORD, fallback=WORD, vendor_id=NAME),
        "vendor": of(WORD),
        "topology": Element(
            dict.fromkeys(
                ("sockets", "dies", "clusters", "cores", "threads"), number(MOST_VCPUS, 1)
            )
        ),
        "cache": leaf(level=number(3, 1), mode=WORD),
        "maxphysaddr": leaf(mode=WORD, bits=number(64, 1), limit=number(64, 1)),
        "feature": leaf(many=True, policy=WORD, name=WORD),
        "numa": Element(
            children={
                "cell": Element(
                    {
                        "id": FEW,
                        "cpus": CPUS,
                        "memory": SIZE,
                        "unit": WORD,
                        "memAccess": WORD,
                        "discard": YES,
                    },
                    {"distances": Element(children={"sibling": leaf(True, id=FEW, value=FEW)})},
                    many=True,
                )
            }
        ),
    },
)

_HYPERV = Element(
    {"mode": WORD},
    {
        **dict.fromkeys(
            ("relaxed", "vapic", "vpindex", "runtime", "synic", "reset", "frequencies")
            + ("reenlightenment", "ipi", "evmcs", "avic", "emsr_bitmap", "xmm_input"),
            STATE,
        ),
        "tlbflush": Element({"state": ON}, {"direct": STATE, "extended": STATE}),
        "spinlocks": leaf(state=ON, retries=COUNT),
        "stimer": Element({"state": ON}, {"direct": STATE}),
        "vendor_id": leaf(state=ON, value=NAME),
    },
)

_KVM = ("hidden", "hint-dedicated", "poll-control", "pv-ipi")

_FEATURES = Element(
    children={
        **dict.fromkeys(("acpi", "pae", "viridian", "privnet"), Element()),
        **dict.fromkeys(("hap", "pvspinlock", "pmu", "vmport", "ps2", "vmcoreinfo"), STATE),
        "apic": leaf(eoi=ON),
        "hyperv": _HYPERV,
        "kvm": Element(
            children={**dict.fromkeys(_KVM, STATE), "dirty-ring": leaf(state=ON, size=PLACE)}
        ),
        "smm": Element({"state": ON}, {"tseg": of(SIZE, unit=WORD)}),
        "ioapic": leaf(driver=words("kvm", "qemu")),
        "msrs": leaf(unknown=words("ignore", "fault")),
    }
)

_CLOCK = Element(
    {
        "offset": words("utc", "localtime", "timezone", "variable", "absolute"),
        "adjustment": matching("-?[0-9]{1,12}|reset", "adjustment of a clock"),
        "basis": WORD,
        "start": number(1 << 40),
        "timezone": matching(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}", "time zone"),
    },
    {
        "timer": Element(
            {
                "name": WORD,
                "present": YES,
                "tickpolicy": WORD,
                "track": WORD,
                "mode": WORD,
                "frequency": RATE,
            },
            {"catchup": leaf(threshold=COUNT, slew=COUNT, limit=COUNT)},
            many=True,
        )
    },
)

_BACKING = Element(
    children={
        "hugepages": Element(children={"page": leaf(True, size=SIZE, unit=WORD, nodeset=CPUS)}),
        **dict.fromkeys(("nosharepages", "locked", "discard"), Element()),
        "source": leaf(type=words("file", "anonymous", "memfd")),
        "access": leaf(mode=words("shared", "private")),
        "allocation": leaf(mode=words("immediate", "ondemand"), threads=FEW),
    }
)

_SCHED: Final[Mapping[str, Grammar | Words]] = {
    "scheduler": words("batch", "idle", "fifo", "rr"),
    "priority": number(99),
}

_CPUTUNE = Element(
    children={
        "vcpupin": leaf(True, vcpu=number(MOST_VCPUS - 1), cpuset=CPUS),
        "iothreadpin": leaf(True, iothread=number(MOST_IOTHREADS, 1), cpuset=CPUS),
        "emulatorpin": leaf(cpuset=CPUS),
        "vcpusched": Element({"vcpus": CPUS, **_SCHED}, many=True),
        "iothreadsched": Element({"iothreads": CPUS, **_SCHED}, many=True),
        "emulatorsched": Element(_SCHED),
    }
)

_ENTRY = Element({"name": WORD}, text=TEXT, many=True)
_ENTRIES = Element(children={"entry": _ENTRY})

_SYSINFO = Element(
    children={
        **dict.fromkeys(("bios", "system", "chassis"), _ENTRIES),
        "baseBoard": replace(_ENTRIES, many=True),
        "oemStrings": Element(children={"entry": Element(text=TEXT, many=True)}),
    },
    only={"type": words("smbios")},
)

_OS = Element(
    {"firmware": words("efi", "bios")},
    {
        "type": of(WORD, arch=WORD, machine=WORD),
        "firmware": Element(
            children={"feature": leaf(True, enabled=YES, name=WORD)},
        ),
        "loader": of(
            path,
            readonly=YES,
            secure=YES,
            stateless=YES,
            type=words("rom", "pflash"),
            format=words("raw", "qcow2"),
        ),
        "nvram": of(path, template=path),
        "boot": leaf(True, dev=words("hd", "cdrom", "network", "fd")),
        "kernel": of(path),
        "initrd": of(path),
        "cmdline": of(LINE),
        "bootmenu": leaf(enable=YES, timeout=PLACE),
        "smbios": leaf(mode=words("emulate", "host", "sysinfo")),
        "bios": leaf(useserial=YES, rebootTimeout=number(65535, -1)),
    },
)

DOMAIN: Final = Element(
    {"type": words("kvm", "qemu")},
    {
        "name": of(TEXT),
        "uuid": of(UUID),
        **dict.fromkeys(("memory", "currentMemory"), of(SIZE, unit=WORD)),
        "maxMemory": of(SIZE, unit=WORD, slots=FEW),
        "memoryBacking": _BACKING,
        "vcpu": of(
            number(MOST_VCPUS, 1),
            placement=words("static"),
            cpuset=CPUS,
            current=number(MOST_VCPUS, 1),
        ),
        "iothreads": of(number(MOST_IOTHREADS)),
        "iothreadids": Element(
            children={"iothread": leaf(True, id=number(MOST_IOTHREADS, 1))},
        ),
        "cputune": _CPUTUNE,
        "numatune": Element(
            children={
                "memory": leaf(mode=WORD, nodeset=CPUS, placement=words("static")),
                "memnode": leaf(True, cellid=FEW, mode=WORD, nodeset=CPUS),
            }
        ),
        "sysinfo": _SYSINFO,
        "os": _OS,
        "features": _FEATURES,
        "cpu": _CPU,
        "clock": _CLOCK,
        "pm": Element(children=dict.fromkeys(("suspend-to-mem", "suspend-to-disk"), ENABLED)),
        "devices": DEVICES,
    },
)
"""Everything that is copied from the owner's XML."""


def copy_table(paths: frozenset[str], label: str) -> Element:
    """Return the allowed content of labctl's finished copy: that of TABLE, with `paths` as the only
    files. The ports, the network's plug, the sound's backend and the `label` (the user of QEMU) are
    labctl's own."""
    here = one_of(paths)
    devices = DEVICES.children
    port = replace(
        PORT,
        children={
            **PORT.children,
            "source": leaf(path=here, append=ON, mode=words("bind")),
        },
    )
    card = replace(
        CARD,
        children={**CARD.children, "target": leaf(dev=INTERFACE, managed=YES)},
    )
    disk = replace(
        DISK_ELEMENT,
        children={
            **DISK_ELEMENT.children,
            "source": Element(
                {"file": here, "dev": here},
                {"seclabel": leaf(model=words("dac"), relabel=words("no"))},
            ),
        },
    )
    rng = devices["rng"]
    backend = Element(
        {"model": words("random", "builtin")}, text=one_of(frozenset({"/dev/urandom"}))
    )
    system = {
        **_OS.children,
        "nvram": of(here, template=here),
        "kernel": of(here),
        "initrd": of(here),
        "loader": replace(_OS.children["loader"], text=here),
    }
    return replace(
        DOMAIN,
        children={
            **DOMAIN.children,
            "os": replace(_OS, children=system),
            "seclabel": Element(
                {"type": words("static"), "model": words("dac"), "relabel": words("no")},
                {"label": of(matching(re.escape(label), "label of QEMU's user"))},
            ),
            "devices": Element(
                children={
                    **devices,
                    **dict.fromkeys(("serial", "parallel", "console", "channel"), port),
                    "disk": disk,
                    "interface": card,
                    "rng": replace(rng, children={**rng.children, "backend": backend}),
                    "audio": leaf(id=number(1, 1), type=words("none")),
                }
            ),
        },
    )


# Say why parts of the owner's XML are not copied. Pure.


_LIMIT = "shares and limits depend on the host's other guests"
_HOST = "it belongs to the host"
_WHO = ("global", "emulator", "iothread")

_REASONS = {
    "devices/emulator": "labctl runs this host's own QEMU",
    "devices/audio": "sound has no output here",
    "devices/tpm": "its state belongs to the original: a guest with a sealed disk does not boot",
    "devices/vsock": "its number belongs to the original",
    "devices/smartcard": _HOST,
    "devices/input": _HOST,
    "devices/pstore": "the guest would write to the file behind it",
    "devices/redirdev": "its device belongs to a user's display",
    "devices/redirfilter": "its device belongs to a user's display",
    **dict.fromkeys((f"cputune/{tag}" for tag in ("shares", "period", "quota")), _LIMIT),
    **{f"cputune/{who}_{tag}": _LIMIT for who in _WHO for tag in ("period", "quota")},
    **dict.fromkeys(("blkiotune", "memtune", "cputune/cachetune", "cputune/memorytune"), _LIMIT),
}
"""Elements below the domain to the reason why they are left out. A share is relative to the host's
own guests, and a cap is not part of the machine. If the kernel keeps real-time policies out of cpu
cgroups, libvirt starts no domain that has one."""

_UNKNOWN = "labctl copies only elements that it knows"

_REPLACED = frozenset(
    ("@id", "genid", "resource", "seclabel", "vcpus", "title", "description", "metadata")
    + ("on_poweroff", "on_reboot", "on_crash", "on_lockfailure")
    + tuple(
        f"devices/disk/{tag}"
        for tag in ("backingStore", "transient", "shareable", "source/seclabel", "source/@index")
    )
    + tuple(
        f"devices/{port}/{tag}"
        for port in ("serial", "parallel", "console", "channel")
        for tag in ("source", "protocol", "log", "@tty")
    )
    + tuple(f"devices/graphics/@{key}" for key in ("port", "tlsPort", "autoport", "listen"))
    + tuple(f"devices/graphics/listen/@{key}" for key in ("address", "network", "socket"))
    + ("devices/rng/backend/text",)
)
"""Elements without a note: labctl puts its own in their places, or they are a name, a label, or an
action of libvirt when a guest ends."""


def left_out_notes(left_out: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each reason why something is left out. `left_out`: as in Rebuilt."""
    reasons: dict[str, list[str]] = {}
    for place in (name.partition("/")[2] for name in left_out):
        if place not in _REPLACED:
            reasons.setdefault(_REASONS.get(place, _UNKNOWN), []).append(place)
    for reason, paths in reasons.items():
        names = [_placeholder(path, is_known=reason != _UNKNOWN) for path in paths]
        verb = "is" if len(names) == 1 else "are"
        yield f"{', '.join(names)} {verb} left out: {reason}"


def _placeholder(path: str, *, is_known: bool) -> str:
    if is_known:
        return f"<{path.rpartition('/')[2]}>"
    owner, _, key = path.rpartition("/")
    tag = owner.rpartition("/")[2] or "domain"
    if key.startswith("@"):
        return f"<{tag} {key[1:]}=…>"
    return f"the text of <{tag}>" if key == "text" else f"<{key}>"
