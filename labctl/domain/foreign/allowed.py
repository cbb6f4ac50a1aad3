"""Define the allow-list: all that labctl takes over from a foreign domain's XML. Pure.

Words and numbers of a machine, and the paths of disks, firmware and a kernel, which are looked at
before they are used. Nothing else that names a file, a program, a socket or a port is in it.
https://libvirt.org/formatdomain.html has what each means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from labctl.domain.foreign.devices import CARD, DEVICES, DISK_ELEMENT, PORT
from labctl.domain.foreign.rebuilt import Element, Grammar, Words, matching, number, one_of, path
from labctl.domain.foreign.vocabulary import (
    COUNT,
    CPUS,
    ENABLED,
    FEW,
    INTERFACE,
    LINE,
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
    WORD,
    YES,
    leaf,
    of,
    words,
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
"""Names all that is taken over of the owner's XML."""


def copy_table(paths: frozenset[str], label: str) -> Element:
    """Return what labctl's finished copy may hold: that, and in the places of files `paths` alone.
    The ports, the network's plug, the sound's end and the `label`, whom QEMU runs as, are labctl's
    own."""
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
