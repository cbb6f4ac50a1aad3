"""Let a guest's threads move freely among some CPUs and no others. Pure."""

from __future__ import annotations

from lxml import etree

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.xmldiff import parse

_PINS = ("vcpupin", "emulatorpin", "iothreadpin", "vcpusched", "iothreadsched", "emulatorsched")


def confined_to(xml: str, cpus: CpuSet) -> str:
    """Return a domain's XML whose threads have these CPUs and the usual policy, whatever it asked
    for them: libvirt gives every thread that has no pin of its own the CPUs of <vcpu>."""
    root = parse(xml)
    vcpu = root.find("vcpu")
    assert vcpu is not None  # every XML of labctl's has one
    vcpu.set("cpuset", format_cpus(cpus))
    for tune in root.findall("cputune"):
        for element in [element for element in tune if element.tag in _PINS]:
            tune.remove(element)
        if len(tune) == 0:
            root.remove(tune)
    return etree.tostring(root, encoding="unicode")
