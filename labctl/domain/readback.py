"""Read the running state back from XML, libvirt and the kernel, and compare it with the request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lxml import etree

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.errors import BrokenError
from labctl.base.placement import Placed, known_slice_ns, name_of, parse_placed, read_placed
from labctl.base.process import thread_ids
from labctl.base.tuning import Sched, Tuning
from labctl.base.xmldiff import parse, unit_bytes
from labctl.domain.asked import (
    EMULATOR,
    IOTHREAD,
    VCPU,
    VHOST,
    WORKLOAD,
    ThreadState,
    expected_workload,
    mismatches,
)
from labctl.domain.foreign.foreign_domain import memory_kib
from labctl.domain.guestcpu import PAGE_KIB

# Read from a domain's XML everything that a tuning can change, as words to compare.


Facts = dict[str, str]
"""Map from names to values: `vcpupin of vCPU 0` to `1`."""

_DISK = ("type", "cache", "io", "discard", "iothread", "queues", "packed")
_CONTROLLER = ("iothread", "queues", "packed")
_INTERFACE = ("name", "queues", "packed")

_CPU = "CPU "
_MODE, _MODEL = f"{_CPU}mode", f"{_CPU}model"

_Named = Iterator[tuple[str, str]]


def facts(xml: str, which: str) -> Facts:
    """Return accelerator, vCPUs, memory with its backing and policy, CPU, KVM features, timers,
    iothreads, pins, policies, and the drivers' options of disks, their controller, network card and
    balloon. `which` names the XML in errors.

    Raises BrokenError if it is not XML.
    """
    try:
        root = etree.fromstring(xml.encode())
    except etree.XMLSyntaxError as error:
        raise BrokenError(f"the {which} domain XML cannot be read: {error.msg}") from error
    found = {"accelerator": root.get("type", "none")}
    for what, path in (("vCPUs", "vcpu"), ("iothreads", "iothreads")):
        if (text := root.findtext(path)) is not None and text.strip() != "0":
            found[what] = text.strip()
    if (memory := root.find("memory")) is not None:
        found["memory"] = f"{_kib(memory.text, memory)} KiB"
    for part in (_memory, _cpu, _features, _cputune, _disks, _devices):
        found.update(part(root))
    return found


def is_filled_in(what: str, asked: str | None, live: str | None) -> bool:
    """Return whether a difference is only a default that libvirt has written down."""
    if what == _MODE:
        # A host-model is replaced by its model and features.
        return asked is None or (asked == "host-model" and live == "custom")
    return what.startswith(_CPU) and asked is None


def _kib(number: str | None, element: etree._Element) -> int:
    return int(number or "0") * unit_bytes(element) // 1024


def _memory(root: etree._Element) -> _Named:
    for page in root.iterfind("memoryBacking/hugepages/page"):
        yield "huge pages", f"{_kib(page.get('size'), page)} KiB"
    for what in ("locked", "nosharepages"):
        if root.find(f"memoryBacking/{what}") is not None:
            yield what, "yes"
    for what, path, key in (
        ("memory source", "memoryBacking/source", "type"),
        ("memory access", "memoryBacking/access", "mode"),
    ):
        if (element := root.find(path)) is not None:
            yield what, element.get(key, "none")
    for element in root.iterfind("numatune/*"):
        where = f" of cell {cell}" if (cell := element.get("cellid")) is not None else ""
        nodes = format_cpus(parse_cpus(element.get("nodeset", "")))
        yield f"memory policy{where}", f"{element.get('mode')} from nodes {nodes}"


def _cpu(root: etree._Element) -> _Named:
    cpu = root.find("cpu")
    if cpu is None:
        return
    if (mode := cpu.get("mode")) is not None:
        yield _MODE, mode
    if model := cpu.findtext("model"):
        yield _MODEL, model
    if (topology := cpu.find("topology")) is not None:
        # libvirt adds levels of its own (dies, clusters), one of each.
        shape = (topology.get(key, "?") for key in ("sockets", "cores", "threads"))
        yield f"{_CPU}sockets, cores, threads", ", ".join(shape)
    if (cache := cpu.find("cache")) is not None:
        yield f"{_CPU}cache", cache.get("mode", "none")
    for feature in cpu.iterfind("feature"):
        # libvirt writes the result: an optional feature may be present or not.
        policy = feature.get("policy", "require")
        if policy != "optional":
            policy = {"force": "require", "forbid": "disable"}.get(policy, policy)
            yield f"{_CPU}feature {feature.get('name')}", policy
    for number, cell in enumerate(cpu.iterfind("numa/cell")):
        cpus = format_cpus(parse_cpus(cell.get("cpus", "")))
        memory = _kib(cell.get("memory"), cell)
        yield f"cell {cell.get('id', number)}", f"vCPUs {cpus}, {memory} KiB"


def _features(root: etree._Element) -> _Named:
    for feature in root.iterfind("features/kvm/*"):
        yield f"KVM feature {feature.tag!s}", feature.get("state", "on")
    for feature in root.iterfind("features/hyperv/*"):
        name, value = f"Hyper-V feature {feature.tag!s}", feature.get("state", "on")
        yield name, " ".join([value, *filter(None, [feature.get("retries")])])
        for inner in feature:
            yield f"{name} {inner.tag!s}", inner.get("state", "on")
    for timer in root.iterfind("clock/timer"):
        yield f"timer {timer.get('name')}", timer.get("present", "yes")


def _cputune(root: etree._Element) -> _Named:
    for element in root.iterfind("cputune/*"):
        tag = str(element.tag)
        cpus = format_cpus(parse_cpus(element.get("cpuset", "")))
        policy = f"{element.get('scheduler')} {element.get('priority', '0')}"
        if tag == "vcpupin":
            yield f"vcpupin of vCPU {element.get('vcpu')}", cpus
        elif tag == "iothreadpin":
            yield f"iothreadpin of iothread {element.get('iothread')}", cpus
        elif tag == "emulatorpin":
            yield "emulatorpin", cpus
        elif tag == "emulatorsched":
            yield "emulatorsched", policy
        elif tag in ("vcpusched", "iothreadsched"):
            # libvirt may join or split the numbers of such an element.
            key, name = ("vcpus", "vCPU") if tag == "vcpusched" else ("iothreads", "iothread")
            for number in sorted(parse_cpus(element.get(key, ""))):
                yield f"{tag} of {name} {number}", policy


def _disks(root: etree._Element) -> _Named:
    for disk in root.iterfind("devices/disk"):
        target, source = disk.find("target"), disk.find("source")
        name = f"disk {target.get('dev', '?') if target is not None else '?'}"
        yield f"{name} file", source.get("file", "none") if source is not None else "none"
        if target is not None and (bus := target.get("bus")) is not None:
            yield f"{name} bus", bus
        yield from _driver(name, disk, _DISK)


def _devices(root: etree._Element) -> _Named:
    for controller in root.iterfind("devices/controller[@type='scsi']"):
        name = f"SCSI controller {controller.get('index', '0')}"
        yield f"{name} model", controller.get("model", "none")
        yield from _driver(name, controller, _CONTROLLER)
    for number, card in enumerate(root.iterfind("devices/interface")):
        name = f"network card {number}"
        model = card.find("model")
        yield f"{name} type", card.get("type", "none")
        yield f"{name} model", model.get("type", "none") if model is not None else "none"
        link = card.find("link")
        yield f"{name} link", link.get("state", "up") if link is not None else "up"
        yield from _driver(name, card, _INTERFACE)
    if (balloon := root.find("devices/memballoon")) is not None:
        yield "balloon", balloon.get("model", "none")
        if (reporting := balloon.get("freePageReporting")) is not None:
            yield "free page reporting", reporting


def _driver(name: str, device: etree._Element, keys: tuple[str, ...]) -> _Named:
    driver = device.find("driver")
    for key in keys:
        if driver is not None and (value := driver.get(key)) is not None:
            yield f"{name} {key}", value
    if mapped := [thread.get("id", "?") for thread in device.iterfind("driver/iothreads/*")]:
        yield f"{name} iothreads", ", ".join(mapped)


# Read the state back from the kernel and from libvirt, and compare it with the request.


_PROC = Path("/proc")


def read_threads(
    pid: int,
    vcpu_tids: Mapping[int, int],
    iothread_tids: Mapping[int, int],
    proc_root: Path = _PROC,
) -> list[ThreadState]:
    """Return every thread of the QEMU process, and the kernel's vhost workers for it.

    `vcpu_tids` and `iothread_tids`: number to thread id, from QMP query-cpus-fast and
    query-iothreads. A thread that ends meanwhile is left out.
    """
    known = {tid: (VCPU, number) for number, tid in vcpu_tids.items()}
    known |= {tid: (IOTHREAD, number) for number, tid in iothread_tids.items()}
    tasks = proc_root / str(pid) / "task"
    tids = thread_ids(pid, proc_root)
    states: list[ThreadState] = []
    helpers = vhosts = 0
    for tid in sorted(tids, key=lambda tid: (tid != pid, tid)):
        if (read := read_placed(tasks / str(tid))) is None:
            continue
        role, index = known.get(tid, (EMULATOR, helpers))
        # Since Linux 6.4 vhost workers are threads of the process that requested them.
        if role == EMULATOR and read[0].startswith("vhost-"):
            role, index = VHOST, vhosts
            vhosts += 1
        helpers += role == EMULATOR
        states.append(_state(tid, role, index, *read))
    for tid in _kernel_vhosts(pid, proc_root):
        if (read := read_placed(proc_root / str(tid) / "task" / str(tid))) is not None:
            states.append(_state(tid, VHOST, vhosts, *read))
            vhosts += 1
    return _with_slices(states, proc_root)


def native_mismatches(
    pid: int,
    cpus: CpuSet,
    sched: Sched | None,
    proc_root: Path = _PROC,
    *,
    tuning: Tuning | None = None,
) -> list[str]:
    """Return a sentence for each thread of a native workload whose CPUs or state differ from its
    twin's request. `tuning`: the twin, of which the slice and the nice value are read back."""
    tasks = proc_root / str(pid) / "task"
    states = [
        _state(tid, WORKLOAD, index, *read)
        for index, tid in enumerate(thread_ids(pid, proc_root))
        if (read := read_placed(tasks / str(tid))) is not None
    ]
    asked = expected_workload(cpus, sched, tuning)
    return mismatches([asked], _with_slices(states, proc_root))


def workload_states(told: Sequence[Mapping[str, Any]]) -> list[ThreadState]:
    """Return a command's threads as its runner has read them (`labctl/runner`, `threads`). Those
    that ended while they were read are left out. Raises LookupError, TypeError or ValueError if the
    form is not a runner's: a guest is not trusted."""
    states = []
    for index, row in enumerate(told):
        stat, status = str(row["stat"]), str(row["status"])
        if (placed := parse_placed(stat, status)) is not None:
            states.append(_state(int(row["tid"]), WORKLOAD, index, name_of(stat), placed))
    return states


def row_states(rows: Iterable[Mapping[str, Any]], roles: Collection[str]) -> list[ThreadState]:
    """Return the threads of those roles in a snapshot (`collect.threads.thread_snapshots`)."""
    return [
        _state(row["tid"], row["role"], row["index"], row["comm"], placed, row.get("slice_ns"))
        for row in rows
        if row["role"] in roles and (placed := parse_placed(row["stat"], row["status"])) is not None
    ]


def _with_slices(states: Iterable[ThreadState], proc_root: Path) -> list[ThreadState]:
    """Return the threads with their time slices, which are not in /proc."""
    if proc_root != _PROC:
        return list(states)
    return [replace(state, slice_ns=known_slice_ns(state.tid)) for state in states]


def _state(
    tid: int, role: str, index: int, comm: str, placed: Placed, slice_ns: int | None = None
) -> ThreadState:
    return ThreadState(
        tid=tid,
        role=role,
        index=index,
        comm=comm,
        cpus=placed.cpus,
        policy=placed.policy,
        priority=placed.priority,
        nice=placed.nice,
        slice_ns=slice_ns,
    )


def _kernel_vhosts(pid: int, proc_root: Path) -> list[int]:
    """Find vhost workers that are kernel threads named after the process, as before Linux 6.4."""
    found = []
    for path in proc_root.glob("[0-9]*/comm"):
        try:
            if path.read_text(encoding="utf-8", errors="replace").strip() == f"vhost-{pid}":
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sorted(found)


def live_mismatches(asked_xml: str, live_xml: str, *, is_whole: bool = True) -> list[str]:
    """Return a sentence for each difference between the running state and the request; [] if they
    agree.

    The compared names are those of `facts`. Defaults that libvirt fills in are not mismatches.
    `is_whole`: the request defines everything else that is compared; False for foreign XML, where
    libvirt also fills in buses, models and controllers. Raises BrokenError if either text is not
    XML.
    """
    asked, live = facts(asked_xml, "asked"), facts(live_xml, "live")
    return [
        f"{what}: expected {asked.get(what, 'none')}, the domain has {live.get(what, 'none')}"
        for what in sorted(asked.keys() | live.keys())
        if asked.get(what) != live.get(what)
        and (is_whole or what in asked)
        and not is_filled_in(what, asked.get(what), live.get(what))
    ]


# Compare a guest's huge pages: those that its XML requests, and those that the kernel reports.


KIB = 1024
_SIZES = {kib: name for name, kib in PAGE_KIB.items()}

_FIELD = re.compile(r"^(KernelPageSize|Shared_Hugetlb|Private_Hugetlb):\s+(\d+) kB$", re.M)


def huge_page_kib(smaps: str) -> dict[int, int]:
    """Return the KiB that a process actually has in huge pages, by the size of a page in KiB, from
    the text of its /proc/PID/smaps (proc(5))."""
    found: Counter[int] = Counter()
    size = 0
    # Each mapping's page size precedes its amounts.
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
    """Return the size of `<hugepages/>` without a size, from the text of /proc/meminfo; None if the
    kernel has no huge pages."""
    found = re.search(r"^Hugepagesize:\s+(\d+) kB$", meminfo, re.M)
    return _SIZES.get(int(found[1])) if found else None


def pages_asked(xml: str, default: str | None) -> list[Pages]:
    """Return the huge pages that a guest with this XML takes (formatdomain.html#memory-backing).

    `default`: see default_page. A size that no host has requests none: libvirt refuses it. Memory
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
    """Return the page size of a NUMA node of the guest: its own, or the common one."""
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
    """Return how QEMU's memory differs from the request, one sentence each. Raises BrokenError if
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
        f"{found.get(PAGE_KIB[size], 0) // KIB} MiB of the guest's memory are in huge pages "
        f"of {size}, expected {kib // KIB}"
        for size, kib in wanted.items()
        if found.get(PAGE_KIB[size], 0) < kib
    ]
