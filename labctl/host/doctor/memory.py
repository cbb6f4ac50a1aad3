"""Check the host's memory: size, location, page sizes, and what scans or moves it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from labctl.host.doctor.check import (
    MIB,
    Check,
    Result,
    Scope,
    block,
    fine,
    size,
    some,
    unknown,
    warn,
)
from labctl.host.doctor.reader import Reader
from labctl.host.preflight import HEADROOM_BYTES
from labctl.host.settings.tunables import selected

GROUP = "memory"
_NODES = "/sys/devices/system/node"
_THP = "/sys/kernel/mm/transparent_hugepage"
_KSM = "/sys/kernel/mm/ksm"
_CAP_SYS_RESOURCE = 24
_POOLS = "/sys/kernel/mm/hugepages"
_PAGES = {"2M": 2 * MIB, "1G": 1024 * MIB}
"""A page's name in a tuning to its bytes."""


def available(reader: Reader, scope: Scope) -> Result:
    free = _meminfo(reader, "MemAvailable")
    if free is None:
        return unknown("/proc/meminfo has no MemAvailable")
    needed = scope.memory_bytes + HEADROOM_BYTES
    shown = f"{size(free)} available, {size(needed)} needed"
    value = {"available_bytes": free, "needed_bytes": needed}
    if free < needed:
        return block(
            shown, f"labctl sweep STUDY --memory {max(256, (free - HEADROOM_BYTES) // MIB)}", value
        )
    if not reader.path("/dev/shm").is_dir():
        return block(
            f"{shown}; no /dev/shm, through which workloads share memory",
            "mount -t tmpfs tmpfs /dev/shm",
            value,
        )
    return fine(shown, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    cpus: str
    free_bytes: int
    total_bytes: int


def nodes(reader: Reader, scope: Scope) -> Result:
    found = {}
    for name in reader.names(_NODES, "node[0-9]*"):
        text = reader.text(f"{_NODES}/{name}/meminfo") or ""
        found[name.removeprefix("node")] = Node(
            cpus=reader.text(f"{_NODES}/{name}/cpulist") or "",
            free_bytes=_kib(text, "MemFree"),
            total_bytes=_kib(text, "MemTotal"),
        )
    if not found:
        return fine("no NUMA nodes: one memory for all CPUs", {})
    value = {number: asdict(node) for number, node in found.items()}
    shown = "; ".join(f"node {n}: {size(node.free_bytes)} free" for n, node in found.items())
    memoryless = [number for number, node in found.items() if not node.total_bytes]
    if memoryless:
        return warn(
            f"{shown}; node {some(memoryless)} has no memory",
            "Pin to the other nodes; check the DIMM slots and the firmware settings.",
            value,
        )
    small = [n for n, node in found.items() if node.free_bytes < scope.memory_bytes]
    if small and len(found) > 1:
        return warn(
            f"{shown}; the guest's {size(scope.memory_bytes)} don't fit on node {some(small)}",
            "sync && echo 3 > /proc/sys/vm/drop_caches",
            value,
        )
    return fine(shown, value)


def balancing(reader: Reader, scope: Scope) -> Result:
    value = reader.number("/proc/sys/kernel/numa_balancing")
    nodes_here = len(reader.names(_NODES, "node[0-9]*"))
    if not value:
        return fine("off" if value == 0 else "the kernel has none", value)
    if nodes_here < 2:
        return fine("on, but there is only one node", value)
    return warn("on", "sysctl -w kernel.numa_balancing=0", value)


def huge_pages(reader: Reader, scope: Scope) -> Result:
    pools = {
        name: _free_pages(reader, f"hugepages-{page // 1024}kB")
        for name, page in _PAGES.items()
        if reader.exists(f"{_POOLS}/hugepages-{page // 1024}kB")
    }
    asking = {name: _asking_for(name, scope) for name in _PAGES}
    if not pools:
        shown = "this kernel or CPU has no huge pages"
        users = [user for users in asking.values() for user in users]
        return warn(shown, f"Leave out {some(users)}.", pools) if users else fine(shown, pools)
    shown = "; ".join(
        f"{name}: {', '.join(f'{left} free on {node}' for node, left in sorted(free.items()))}"
        for name, free in pools.items()
    )
    for name, users in asking.items():
        count = -(-scope.memory_bytes // _PAGES[name])
        if not users or sum(pools.get(name, {}).values()) >= count:
            continue
        wanted = (
            f"{shown}; {some(users)} {'takes' if len(users) == 1 else 'take'} {count} of {name}"
        )
        if name == "1G":
            return warn(
                f"{wanted}, which fragmented memory can rarely provide",
                f"Boot with 'hugepagesz=1G hugepages={count}'.",
                pools,
            )
        if (_meminfo(reader, "MemAvailable") or 0) < scope.memory_bytes + HEADROOM_BYTES:
            return warn(wanted, f"sysctl -w vm.nr_hugepages={count}", pools)
        shown = f"{wanted}, which labctl allocates from free memory"
    return fine(shown, pools)


def _asking_for(name: str, scope: Scope) -> list[str]:
    return scope.using(lambda tuning: name in (tuning.memory.hugepages, tuning.requires.hugepages))


def hugetlbfs(reader: Reader, scope: Scope) -> Result:
    mounts = [line.split() for line in (reader.text("/proc/self/mounts") or "").splitlines()]
    found = [fields[1] for fields in mounts if len(fields) > 2 and fields[2] == "hugetlbfs"]
    if found:
        return fine(f"mounted at {', '.join(found)}", found)
    if not scope.using(lambda tuning: tuning.memory.hugepages):
        return fine("not mounted; nothing here needs it", found)
    return fine(
        "not mounted; labctl mounts its own for its guests, but a libvirt daemon needs one", found
    )


def transparent(reader: Reader, scope: Scope) -> Result:
    enabled = selected(reader.text(f"{_THP}/enabled") or "")
    defrag = selected(reader.text(f"{_THP}/defrag") or "")
    if not enabled:
        return unknown(f"no {_THP}: the kernel has none")
    value = {"enabled": enabled, "defrag": defrag}
    if defrag == "always" and enabled != "never":
        return warn(
            f"{enabled}, defrag always: a fault may wait while the kernel moves pages",
            f"echo madvise > {_THP}/defrag",
            value,
        )
    return fine(f"{enabled}, defrag {defrag}", value)


def same_pages(reader: Reader, scope: Scope) -> Result:
    run = reader.number(f"{_KSM}/run")
    tuned = reader.running("ksmtuned")
    if run is None:
        return fine("the kernel has none", None)
    value = {"run": run, "ksmtuned": bool(tuned)}
    if run == 1 or tuned:
        by = ", run by ksmtuned" if tuned else ""
        merged = reader.number(f"{_KSM}/pages_sharing") or 0
        return warn(
            f"{'on' if run == 1 else 'off at the moment'}{by}: {merged} pages are merged",
            f"{'systemctl stop ksmtuned; ' if tuned else ''}echo 2 > {_KSM}/run",
            value,
        )
    return fine("off", value)


def swap(reader: Reader, scope: Scope) -> Result:
    total, left = _meminfo(reader, "SwapTotal") or 0, _meminfo(reader, "SwapFree") or 0
    swappiness = reader.number("/proc/sys/vm/swappiness")
    value = {"total_bytes": total, "used_bytes": total - left, "swappiness": swappiness}
    if not total:
        return fine("none", value)
    shown = f"{size(total - left)} of {size(total)} used, swappiness {swappiness}"
    if total == left:
        return fine(shown, value)
    return warn(shown, "swapoff -a && swapon -a  # once memory is free", value)


def memlock(reader: Reader, scope: Scope) -> Result:
    limits = reader.text("/proc/self/limits") or ""
    found = re.search(r"^Max locked memory\s+(\S+)\s+(\S+)", limits, re.MULTILINE)
    if found is None:
        return unknown("/proc/self/limits has no limit of locked memory")
    soft, hard = found[1], found[2]
    may_raise = reader.has_capability(_CAP_SYS_RESOURCE)
    value = {"soft": soft, "hard": hard, "cap_sys_resource": may_raise}
    if may_raise or hard == "unlimited":
        return fine("QEMU may lock the guest's memory", value)
    using = scope.using(lambda tuning: tuning.memory.locked)
    shown = f"at most {size(int(hard))} can be locked, and CAP_SYS_RESOURCE is missing"
    if not using:
        return fine(f"{shown}; nothing here locks memory", value)
    return warn(
        f"{shown}: {some(using)} can't start",
        "prlimit --pid $$ --memlock=unlimited  # as root with CAP_SYS_RESOURCE",
        value,
    )


def entropy(reader: Reader, scope: Scope) -> Result:
    folder = "/proc/sys/kernel/random"
    bits, pool = reader.number(f"{folder}/entropy_avail"), reader.number(f"{folder}/poolsize")
    if bits is None:
        return unknown(f"no {folder}/entropy_avail")
    # 256 bits are all that a kernel since 5.18 counts; older ones count to 4,096.
    if bits < min(256, pool or 256) * 3 // 4:
        return warn(f"{bits} bits", "apt-get install rng-tools5", bits)
    return fine(f"{bits} bits", bits)


def _meminfo(reader: Reader, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", reader.text("/proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _kib(text: str, name: str) -> int:
    """Return bytes of a line of a node's meminfo ("Node 0 MemFree: 123 kB"), 0 if the line is
    missing."""
    found = re.search(rf"\b{name}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def _free_pages(reader: Reader, pool: str) -> dict[str, int]:
    """Node to the free pages of a pool there."""
    found = {
        node: reader.number(f"{_NODES}/{node}/hugepages/{pool}/free_hugepages")
        for node in reader.names(_NODES, "node[0-9]*")
    }
    free = {node: left for node, left in found.items() if left is not None}
    return free or {"all": reader.number(f"{_POOLS}/{pool}/free_hugepages") or 0}


CHECKS = (
    Check(
        "memory", GROUP, "The guest's memory and QEMU's own must fit without swapping.", available
    ),
    Check(
        "numa-nodes",
        GROUP,
        "Memory on another node is slower, and a strict policy fails if a node is full.",
        nodes,
    ),
    Check(
        "numa-balancing",
        GROUP,
        "It unmaps pages to see who uses them, and moves them: for a pinned guest these "
        "faults are only a cost.",
        balancing,
    ),
    Check(
        "hugepages",
        GROUP,
        "Tunings with huge pages back the guest's whole memory with them.",
        huge_pages,
    ),
    Check("hugetlbfs", GROUP, "libvirt allocates huge pages through such a mount.", hugetlbfs),
    Check(
        "thp",
        GROUP,
        "Explicit huge pages are compared with the transparent ones of the baseline.",
        transparent,
    ),
    Check(
        "ksm",
        GROUP,
        "Merging uses CPU time at random moments, and each write to a merged page faults.",
        same_pages,
    ),
    Check("swap", GROUP, "Reading back a swapped-out guest page takes milliseconds.", swap),
    Check(
        "memlock",
        GROUP,
        "With '<locked/>' libvirt raises the limit, which needs CAP_SYS_RESOURCE; even "
        "root may lack it.",
        memlock,
    ),
    Check(
        "entropy",
        GROUP,
        "Without it, a guest's boot waits for random bits from the host (virtio-rng).",
        entropy,
    ),
)
