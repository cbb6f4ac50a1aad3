"""Read back whether a running guest is what its tuning asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labctl.domain import readback
from labctl.domain.asked import ExpectedThread, mismatches
from labctl.domain.memory import memory_problems
from labctl.host.cgroups import placement, placement_problems
from labctl.run.guests.lab import Lab
from labctl.run.resources.huge_pages import pages_of


def misplaced_threads(
    expected: Sequence[ExpectedThread],
    pid: int,
    vcpus: Mapping[int, int],
    iothreads: Mapping[int, int],
) -> list[str]:
    """Return a sentence for each of QEMU's threads that is not what is expected of it now."""
    return mismatches(expected, readback.read_threads(pid, vcpus, iothreads))


def guest_problems(lab: Lab, pid: int, asked_xml: str, live_xml: str) -> list[str]:
    """Return what of a guest's XML, memory and cgroup is not what was asked."""
    return [
        *readback.live_mismatches(asked_xml, live_xml, is_whole=lab.source.says_everything),
        *memory_problems(pages_of(asked_xml), pid),
        *placement_problems(lab.layout, placement(pid)),
    ]
