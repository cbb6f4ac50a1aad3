"""Huge pages for one guest: the host's pool grows by what is missing, and shrinks again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labctl.base.errors import BrokenError, HostError
from labctl.base.tuning import Tuning
from labctl.domain.guestcpu import PAGE_KIB, cells, memory_nodes
from labctl.domain.pinplan import PinPlan
from labctl.host.journal import Journal
from labctl.host.tunables import PRESENT, FileValue, Hugetlbfs

KIB, MIB = 1024, 1024 * 1024
_SYS = Path("/sys")

Placed = Mapping[int | None, int]
"""Bytes of a guest's memory by the NUMA node that they must come from; None: from any."""


def placed_memory(tuning: Tuning, plan: PinPlan, memory_mib: int) -> Placed:
    """Where the plan puts a guest's memory; over several nodes without cells in equal shares."""
    if tuning.memory.cells:
        return {cell.host_node: cell.memory_mib * MIB for cell in cells(plan, memory_mib)}
    nodes = memory_nodes(tuning, plan)
    if not nodes:
        return {None: memory_mib * MIB}
    return {node: memory_mib * MIB // len(nodes) for node in sorted(nodes)}


def free_pages(size: str, node: int | None = None, root: Path = _SYS) -> int | None:
    """Huge pages of a size that nobody uses or has reserved; None where the kernel has none of
    that size. Nodes don't count reservations of their own: each may be on any of them
    (hugetlbpage.rst)."""
    try:
        free = int((_pool(size, node, root) / "free_hugepages").read_text())
        reserved = int((_pool(size, None, root) / "resv_hugepages").read_text())
    except (OSError, ValueError):
        return None
    return max(0, free - reserved)


@contextmanager
def huge_pages(
    tuning: Tuning, memory: Placed, journal: Journal, root: Path = _SYS
) -> Iterator[None]:
    """Inside, as many huge pages are free as a guest of the tuning takes; nothing for one without.

    Enter it before the guest starts and leave it after the guest has ended: pages that are in use
    can't be given back. Raises BrokenError, with what could be had, where the kernel finds no
    memory in one piece for them.
    """
    with ExitStack() as stack:
        if tuning.memory.hugepages is not None:
            for node, size_bytes in memory.items():
                stack.enter_context(
                    _enough(tuning.memory.hugepages, size_bytes, node, journal, root)
                )
        yield


@contextmanager
def _enough(
    size: str, size_bytes: int, node: int | None, journal: Journal, root: Path
) -> Iterator[None]:
    needed = -(-size_bytes // (PAGE_KIB[size] * KIB))
    missing = needed - (free_pages(size, node, root) or 0)
    if missing <= 0:
        yield
        return
    number = _pool(size, node, root) / "nr_hugepages"
    with ExitStack() as stack:
        try:
            total = int(number.read_text()) + missing
            stack.enter_context(journal.changed(FileValue(str(number)), str(total)))
        except (OSError, HostError) as error:
            place = "" if node is None else f" on NUMA node {node}"
            found = error.message if isinstance(error, HostError) else f"{number} is not there"
            raise BrokenError(
                f"no {needed} free huge pages of {size}{place} for the guest's memory: {found}",
                hint="The host's memory is in pieces, or in use. Reserve them when it boots: "
                f"hugepagesz={size} hugepages={needed}; or give the guest less ('--memory').",
            ) from error
        yield


@contextmanager
def hugetlbfs_mounted(
    tunings: Iterable[Tuning], folder: Path, journal: Journal
) -> Iterator[list[Path]]:
    """A hugetlbfs mount below `folder` for each size of pages that QEMU takes from a file there;
    memfds need none. libvirt looks at them when its connection opens, so mount them before."""
    sizes = {t.memory.hugepages for t in tunings if t.memory.source != "memfd"} - {None}
    with ExitStack() as stack:
        mounts = []
        for size in sorted(filter(None, sizes)):
            mounts.append(folder / size)
            stack.enter_context(journal.changed(Hugetlbfs(str(mounts[-1]), size), PRESENT))
        yield mounts


def _pool(size: str, node: int | None, root: Path) -> Path:
    name = f"hugepages/hugepages-{PAGE_KIB[size]}kB"
    if node is None:
        return root / "kernel/mm" / name
    return root / f"devices/system/node/node{node}" / name
