"""Provide huge pages for one guest: grow the host's pool by the missing ones, and shrink it
again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labctl.base.errors import BrokenError, HostError
from labctl.base.tuning import Tuning
from labctl.domain.guestcpu import PAGE_KIB
from labctl.domain.readback import Pages, default_page, pages_asked
from labctl.host.settings.journal import Journal
from labctl.host.settings.tunables import PRESENT, FileValue, Hugetlbfs

KIB, MIB = 1024, 1024 * 1024
_SYS = Path("/sys")
_MEMINFO = Path("/proc/meminfo")


def free_pages(size: str, node: int | None = None, root: Path = _SYS) -> int | None:
    """Return the number of huge pages of a size that are neither used nor reserved; None if the
    kernel has none of that size. Reservations are not counted per node: each may be on any node
    (hugetlbpage.rst)."""
    try:
        free = int((_pool(size, node, root) / "free_hugepages").read_text())
        reserved = int((_pool(size, None, root) / "resv_hugepages").read_text())
    except (OSError, ValueError):
        return None
    return max(0, free - reserved)


def pages_of(xml: str) -> list[Pages]:
    """Return the huge pages that a guest with this XML takes here."""
    return pages_asked(xml, default_page(_MEMINFO.read_text()))


@contextmanager
def huge_pages(asked: Iterable[Pages], journal: Journal, root: Path = _SYS) -> Iterator[None]:
    """Provide as many free huge pages as requested inside the block; does nothing for a guest
    without.

    Enter it before the guest starts and leave it after the guest has ended: pages in use cannot be
    freed. Raises BrokenError, with the number available, if the kernel finds no contiguous memory
    for them.
    """
    with ExitStack() as stack:
        for pages in asked:
            stack.enter_context(_enough(pages, journal, root))
        yield


@contextmanager
def _enough(pages: Pages, journal: Journal, root: Path) -> Iterator[None]:
    size, node = pages.size, pages.node
    needed = -(-pages.size_bytes // (PAGE_KIB[size] * KIB))
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
            found = error.message if isinstance(error, HostError) else f"{number} does not exist"
            raise BrokenError(
                f"no {needed} free huge pages of {size}{place} for the guest's memory: {found}",
                hint="The host's memory is fragmented or in use. Reserve huge pages at boot: "
                f"hugepagesz={size} hugepages={needed}; or give the guest less memory.",
            ) from error
        yield


def sizes_in_files(tunings: Iterable[Tuning]) -> set[str]:
    """Return sizes of the pages that QEMU takes from a file; memfds need none."""
    found = {t.memory.hugepages for t in tunings if t.memory.source != "memfd"}
    return {size for size in found if size is not None}


@contextmanager
def hugetlbfs_mounted(sizes: Iterable[str], folder: Path, journal: Journal) -> Iterator[list[Path]]:
    """Mount hugetlbfs below `folder` for each size of pages, before libvirt's connection opens,
    because libvirt reads the mounts then."""
    with ExitStack() as stack:
        mounts = []
        for size in sorted(set(sizes)):
            mounts.append(folder / size)
            stack.enter_context(journal.changed(Hugetlbfs(str(mounts[-1]), size), PRESENT))
        yield mounts


def _pool(size: str, node: int | None, root: Path) -> Path:
    name = f"hugepages/hugepages-{PAGE_KIB[size]}kB"
    if node is None:
        return root / "kernel/mm" / name
    return root / f"devices/system/node/node{node}" / name
