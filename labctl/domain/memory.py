"""Compare a guest's huge pages: those that its XML requests, and those that the kernel reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lxml import etree

from labctl.base.cpus import parse_cpus
from labctl.base.errors import BrokenError
from labctl.base.xmldiff import parse
from labctl.domain.foreign.foreign_domain import memory_kib
from labctl.domain.guestcpu import PAGE_KIB

KIB = 1024
_SIZES = {kib: name for name, kib in PAGE_KIB.items()}

_FIELD = re.compile(r"^(KernelPageSize|Shared_Hugetlb|Private_Hugetlb):\s+(\d+) kB$", re.M)


def huge_page_kib(smaps: str) -> dict[int, int]:
    """Return the KiB that a process really has in huge pages, by the size of a page in KiB, from
    the text of its /proc/PID/smaps (proc(5))."""
    found: Counter[int] = Counter()
    size = 0
    # Each mapping's page size comes before what it has of them.
    for name, value in _FIELD.findall(smaps):
        if name == "KernelPageSize":
            size = int(value)
        else:
            found[size] += int(value)
    return {size: kib for size, kib in found.items() if kib}


@dataclass(frozen=True, slots=True)
class Pages:
    """Describe memory that a guest requests in huge pages. `size`: of a page, a key of PAGE_KIB;
    `node`: the host's NUMA node that they must come from, None for any."""

    size: str
    node: int | None
    size_bytes: int


def default_page(meminfo: str) -> str | None:
    """Return the size that `<hugepages/>` means where it names none, from the text of
    /proc/meminfo; None where the kernel has no huge pages."""
    found = re.search(r"^Hugepagesize:\s+(\d+) kB$", meminfo, re.M)
    return _SIZES.get(int(found[1])) if found else None


def pages_asked(xml: str, default: str | None) -> list[Pages]:
    """Return the huge pages that a guest with this XML takes (formatdomain.html#memory-backing).

    `default`: see default_page. A size that no host has asks for none: libvirt refuses it. Memory
    that may come from several nodes is taken from each in equal shares.
    """
    root = parse(xml)
    backing = root.find("memoryBacking/hugepages")
    if backing is None:
        return []
    found: Counter[tuple[str, int | None]] = Counter()
    for cell, size_kib in _cells(root):
        if (size := _page_of(backing, cell, default)) is None:
            continue
        nodes = _host_nodes(root, cell)
        for node in nodes:
            found[size, node] += size_kib * KIB // len(nodes)
    return [Pages(size, node, size_bytes) for (size, node), size_bytes in found.items()]


def _cells(root: etree._Element) -> Iterator[tuple[int, int]]:
    """Number of each of the guest's NUMA nodes, and its memory in KiB."""
    cells = root.findall("cpu/numa/cell")
    memory = root.find("memory")
    if not cells and memory is not None:
        yield 0, memory_kib(memory, "the domain XML")
    for number, cell in enumerate(cells):
        index = int(cell.get("id", number))
        devices = root.iterfind("devices/memory[@model='dimm']/target")
        plugged = [d.find("size") for d in devices if d.findtext("node", "0") == str(index)]
        sizes = [memory_kib(size, "the domain XML") for size in plugged if size is not None]
        yield index, memory_kib(cell, "the domain XML", "memory") + sum(sizes)


def _page_of(backing: etree._Element, cell: int, default: str | None) -> str | None:
    """Return the size of the pages that a NUMA node of the guest is in: its own, or everybody's."""
    pages = backing.findall("page")
    if not pages:
        return default
    own = [p for p in pages if cell in parse_cpus(p.get("nodeset", ""))]
    everybodys = [p for p in pages if p.get("nodeset") is None]
    for page in (*own, *everybodys):
        return _SIZES.get(memory_kib(page, "the domain XML", "size"))
    return None


def _host_nodes(root: etree._Element, cell: int) -> list[int | None]:
    own = root.find(f"numatune/memnode[@cellid='{cell}']")
    policy = own if own is not None else root.find("numatune/memory")
    nodes = parse_cpus(policy.get("nodeset", "")) if policy is not None else frozenset()
    return [*sorted(nodes)] or [None]


def memory_problems(asked: Iterable[Pages], pid: int) -> list[str]:
    """Return what QEMU's memory is not that was asked, one sentence each. Raises BrokenError when
    QEMU is gone."""
    wanted: Counter[str] = Counter()
    for pages in asked:
        wanted[pages.size] += pages.size_bytes // KIB
    if not wanted:
        return []
    try:
        found = huge_page_kib(Path(f"/proc/{pid}/smaps").read_text())
    except OSError as error:
        raise BrokenError(f"/proc/{pid}/smaps can't be read: {error.strerror}") from error
    return [
        f"{found.get(PAGE_KIB[size], 0) // KIB} MiB of the guest's memory are in huge pages of "
        f"{size}, asked were {kib // KIB}"
        for size, kib in wanted.items()
        if found.get(PAGE_KIB[size], 0) < kib
    ]
