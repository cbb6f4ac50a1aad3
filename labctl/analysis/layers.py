"""List what lies between a workload and the data disk, natively and in a guest (METHOD 10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from labctl.analysis.design import Design
from labctl.analysis.words import listed
from labctl.store.run_folder import LoadedRun

_PAST_THE_CACHE = ("none", "directsync")
"""Cache modes in which QEMU opens the file with O_DIRECT (qemu-img(1), "cache modes")."""

_QCOW2 = "qcow2"

_MIB = 1024 * 1024
_GIB = 1024 * _MIB


def layers(run: LoadedRun, design: Design) -> Iterator[str]:
    """Yield a sentence on how the two sides of a native comparison reach the data disk, where a
    workload of the run uses it."""
    workloads = [place.workload for place in design.places if place.workload in design.on_disk]
    if not (workloads and design.natives):
        return
    disks = _disks(run)
    names = listed([f"'{name}'" for name in dict.fromkeys(workloads)], 8)
    system = _file_system(run)
    yield (
        f"Under {names} native and guest differ in their layers, and the ratio holds the "
        f"difference: natively it is a file on {system}, opened past the host's page cache; in "
        "the guest it is a block device without a file system of the guest's, and QEMU has the "
        f"same file open {_cached(disks)}{_formats(disks)}."
    )
    yield from _fits_in_memory(run, disks)


def _disks(run: LoadedRun) -> dict[str, Mapping[str, Any]]:
    """Return the data disk of each guest's tuning, where the run has recorded it."""
    recorded = run.run.tunings
    guests = [name for name, arm in run.plan.tunings.items() if arm.kind == "guest"]
    return {
        name: recorded[name].disk for name in guests if name in recorded and recorded[name].disk
    }


def _cached(disks: Mapping[str, Mapping[str, Any]]) -> str:
    past = [name for name, disk in disks.items() if disk.get("cache") in _PAST_THE_CACHE]
    if not disks:
        return "past the page cache or through it, by its cache mode"
    if not past:
        return "through the page cache"
    if len(past) == len(disks):
        return "past the page cache as well"
    return f"past the page cache with {_named(past)}, through it with all others"


def _fits_in_memory(run: LoadedRun, disks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Say that the page cache holds the whole disk (docs/decisions/cached-modes-in-memory.md)."""
    disk, host = run.run.data_disk_bytes, run.run.host
    memory = host.get("memory_bytes")
    if not (isinstance(disk, int) and isinstance(memory, int) and disk < memory):
        return
    if all(entry.get("cache") in _PAST_THE_CACHE for entry in disks.values()):
        return
    yield (
        f"The data disk's {disk / _MIB:.0f} MiB fit into the host's memory ({memory / _GIB:.3g} "
        "GiB): a guest whose file is open through the page cache is soon served from it, as a "
        "working set beyond that memory would not be."
    )


def _formats(disks: Mapping[str, Mapping[str, Any]]) -> str:
    images = [name for name, disk in disks.items() if disk.get("format") == _QCOW2]
    return f", with {_named(images)} a qcow2 image in its place" if images else ""


def _named(tunings: list[str]) -> str:
    return listed([f"'{name}'" for name in tunings], 8)


def _file_system(run: LoadedRun) -> str:
    folder = run.run.host.get("state_folder")
    name = folder.get("file_system") if isinstance(folder, dict) else None
    return f"the host's {name}" if isinstance(name, str) else "the host's file system"
