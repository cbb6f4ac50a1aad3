"""Where a running guest's memory is, read back from the kernel."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from labctl.base.errors import BrokenError
from labctl.base.tuning import Memory
from labctl.domain.guestcpu import PAGE_KIB

_FIELD = re.compile(r"^(KernelPageSize|Shared_Hugetlb|Private_Hugetlb):\s+(\d+) kB$", re.M)


def huge_page_kib(smaps: str) -> dict[int, int]:
    """KiB that a process really has in huge pages, by the size of a page in KiB, from the text of
    its /proc/PID/smaps (proc(5))."""
    found: Counter[int] = Counter()
    size = 0
    # Each mapping's page size comes before what it has of them.
    for name, value in _FIELD.findall(smaps):
        if name == "KernelPageSize":
            size = int(value)
        else:
            found[size] += int(value)
    return {size: kib for size, kib in found.items() if kib}


def memory_problems(asked: Memory, memory_mib: int, pid: int) -> list[str]:
    """What QEMU's memory is not that was asked, one sentence each. Raises BrokenError when QEMU is
    gone."""
    if asked.hugepages is None:
        return []
    try:
        found = huge_page_kib(Path(f"/proc/{pid}/smaps").read_text())
    except OSError as error:
        raise BrokenError(f"/proc/{pid}/smaps can't be read: {error.strerror}") from error
    kib = found.get(PAGE_KIB[asked.hugepages], 0)
    if kib >= memory_mib * 1024:
        return []
    return [
        f"{kib // 1024} MiB of the guest's {memory_mib} MiB are in huge pages of "
        f"{asked.hugepages}, asked was all of it"
    ]
