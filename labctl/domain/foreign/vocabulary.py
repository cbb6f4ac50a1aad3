"""Define the words, numbers and names in which the allow-list of domain XML is written. Pure."""

from __future__ import annotations

from typing import Final

from labctl.base.cpus import MOST_CPUS
from labctl.domain.foreign.rebuilt import Element, Grammar, Words, matching, number

MOST_VCPUS: Final = 1024
"""Beyond any host that labctl knows; each vCPU has a CPU of its own in any case."""
MOST_IOTHREADS: Final = 256
MOST_MEMORY: Final = 1 << 46
"""Limit on one size, in bytes or in a larger unit of libvirt's: 64 TiB."""

WORD = matching(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,127}", "word of up to 128 letters and digits")
NAME = matching(r"[A-Za-z0-9][\w .:+@()-]{0,127}", "name of up to 128 letters and digits")
TEXT = matching(r"[^\x00-\x1f\x7f/][^\x00-\x1f\x7f]{0,255}", "line of up to 256 characters")
LINE = matching(r"[^\x00-\x1f\x7f]{0,4096}", "line of up to 4096 characters")
INTERFACE = matching(r"[A-Za-z0-9][\w.@-]{0,63}", "name of a network interface")
MAC = matching("[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}", "MAC address")
UUID = matching("[0-9A-Fa-f-]{32,36}", "UUID")
HEX = matching("0[xX][0-9a-fA-F]{1,16}|[0-9]{1,10}", "number in a bus address")
DISK = matching("(vd|sd|hd|xvd|fd)[a-z]{1,3}", "name of a disk such as vda")
CPUS = matching(r"[0-9,^ -]{0,4096}", "list of CPUs")
ALIAS = matching(r"[A-Za-z0-9_-]{1,128}", "alias")
SIZE, COUNT = number(MOST_MEMORY), number((1 << 32) - 1)
FEW, PLACE = number(MOST_CPUS), number(65535)
RATE = number((1 << 63) - 1)
ON, YES = Words({"on", "off"}), Words({"yes", "no"})


def words(*values: str) -> Words:
    return Words(values)


def leaf(many: bool = False, **attributes: Grammar | Words) -> Element:
    return Element({key.rstrip("_"): value for key, value in attributes.items()}, many=many)


def of(text: Grammar, **attributes: Grammar | Words) -> Element:
    return Element(attributes, text=text)


STATE = leaf(state=ON)
ENABLED = leaf(enabled=YES)
VIRTIO: Final = {"iommu": ON, "ats": ON, "packed": ON, "page_per_vq": ON}
