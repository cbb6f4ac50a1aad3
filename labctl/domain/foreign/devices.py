"""Define which devices of a foreign domain labctl takes over: their part of the allow-list.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from labctl.domain.foreign.rebuilt import Element, Grammar, Words, matching, number, path
from labctl.domain.foreign.vocabulary import (
    ALIAS,
    COUNT,
    CPUS,
    DISK,
    FEW,
    HEX,
    INTERFACE,
    MAC,
    MOST_IOTHREADS,
    NAME,
    ON,
    PLACE,
    RATE,
    SIZE,
    TEXT,
    UUID,
    VIRTIO,
    WORD,
    YES,
    leaf,
    of,
    words,
)

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
        "iothreads": Element(
            children={
                "iothread": Element(
                    {"id": number(MOST_IOTHREADS, 1)},
                    {"queue": leaf(many=True, id=FEW)},
                    many=True,
                )
            }
        ),
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
        }
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
"""A serial port, console or channel: what the guest sees of it. Where it leads, labctl says."""

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
