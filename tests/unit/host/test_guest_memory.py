"""No guest is started for which the host has no memory, and what is lacking is said in numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.host.guest_memory import memory_problem

MIB = 1024 * 1024


def host(
    root: Path, available_mib: int, resident_mib: dict[str, int], *, huge_mib: int = 0
) -> Path:
    """A host with so much memory available, whose guests have touched so much."""
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemAvailable: {available_mib * 1024} kB\n")
    for pid, (name, resident) in enumerate(resident_mib.items(), start=100):
        folder = root / f"proc/{pid}"
        folder.mkdir()
        (folder / "comm").write_text("qemu-system-x86\n")
        (folder / "cmdline").write_text(f"qemu-system-x86_64\0-name\0guest={name},debug-threads=on")
        (folder / "status").write_text(
            f"VmRSS:\t  {resident * 1024} kB\nHugetlbPages:\t  {huge_mib * 1024} kB\n"
            "Cpus_allowed_list:\t0-1\n"
        )
    return root


@pytest.mark.parametrize(("available_mib", "fits"), [(4 * (512 + 64) + 256, True), (2559, False)])
def test_each_takes_its_memory_and_qemus_and_some_is_left(
    tmp_path: Path, available_mib: int, fits: bool
) -> None:
    problem = memory_problem(4, 512 * MIB, host(tmp_path, available_mib, {}))
    assert (problem is None) == fits


def test_a_refusal_has_the_numbers(tmp_path: Path) -> None:
    root = host(tmp_path, 2600, {"labctl-guest": 212, "web1": 100, "labctl-noisy-1": 600})
    problem = memory_problem(4, 512 * MIB, root)
    assert problem is not None
    assert problem.message == (
        "4 more guests of 512 MiB need 2304 MiB and 256 MiB besides, and the host has 2600 MiB of "
        "memory available, of which 300 MiB are promised to 2 guests that run"
    )
    assert "--memory" in str(problem.hint)


@pytest.mark.parametrize(("touched_mib", "huge_mib"), [(512, 0), (60, 100)])
def test_what_a_guest_has_touched_or_has_as_huge_pages_is_taken_already(
    tmp_path: Path, touched_mib: int, huge_mib: int
) -> None:
    root = host(tmp_path, 2560, {"labctl-guest": touched_mib}, huge_mib=huge_mib)
    assert memory_problem(4, 512 * MIB, root) is None


def test_nothing_is_refused_where_the_kernel_does_not_tell(tmp_path: Path) -> None:
    root = host(tmp_path, 0, {})
    (root / "proc/meminfo").write_text("MemTotal: 1 kB\n")
    assert memory_problem(1000, 512 * MIB, root) is None
