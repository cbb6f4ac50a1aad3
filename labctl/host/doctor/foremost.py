"""Choose the warnings of doctor that matter most to a study, by what its tunings change."""

from __future__ import annotations

from collections.abc import Iterable

from labctl.base.hostfacts import EVERYTHING, Rests
from labctl.host.doctor.check import Finding, Status

PINNING = frozenset({Rests.PLACEMENT, Rests.SCHEDULING})
"""Changes that the tunings of `pinning` make, the first study that people run."""

_ALWAYS = ("kvm-right", "kvm-boot")
"""Checks that come first for any study: under emulation, differences from native are the
emulator's."""
_BEARING = {
    "cpus": frozenset({Rests.PLACEMENT, Rests.SCHEDULING}),
    "core-kinds": frozenset({Rests.PLACEMENT}),
    "rt-group-sched": frozenset({Rests.SCHEDULING}),
    "rt-throttling": frozenset({Rests.SCHEDULING}),
    "rt-right": frozenset({Rests.SCHEDULING}),
    "hugepages": frozenset({Rests.MEMORY}),
    "hugetlbfs": frozenset({Rests.MEMORY}),
    "memlock": frozenset({Rests.MEMORY}),
    "numa-balancing": frozenset({Rests.MEMORY}),
    "thp": frozenset({Rests.MEMORY}),
    "ksm": frozenset({Rests.MEMORY}),
    "file-system": frozenset({Rests.DISK}),
    "io-uring": frozenset({Rests.DISK}),
    "vhost-net": frozenset({Rests.NETWORK}),
    "tap-devices": frozenset({Rests.NETWORK}),
    "traffic-control": frozenset({Rests.NETWORK}),
    "settings-right": frozenset({Rests.HOST}),
    "tuned-drift": frozenset({Rests.HOST}),
    "governor": frozenset({Rests.HOST, Rests.CPU}),
    "c-states": frozenset({Rests.HOST, Rests.CPU}),
    "mitigations": frozenset({Rests.CPU}),
    "workloads": EVERYTHING,
    "conditions": EVERYTHING,
    "irq-affinity": frozenset({Rests.PLACEMENT}),
    "smt": frozenset({Rests.PLACEMENT}),
}
"""Checks that affect tunings which change one of these, most severe first."""
_OTHERWISE = ("steal", "other-guests", "cpu-load", "swap", "nested", "pmu", "kvm-exits")
"""Checks that affect any study, less than those above."""


def foremost(
    findings: Iterable[Finding], rests: frozenset[Rests], most: int = 3
) -> tuple[Finding, ...]:
    """Return the warnings that matter most to a study whose tunings change `rests`, most severe
    first and one per group, because two of a group mostly have one cause."""
    order = (
        *_ALWAYS,
        *(name for name, bears_on in _BEARING.items() if bears_on & rests),
        *_OTHERWISE,
    )
    ranks = {name: rank for rank, name in enumerate(order)}
    warnings = [finding for finding in findings if finding.status is Status.WARN]
    warnings.sort(key=lambda finding: ranks.get(finding.name, len(ranks)))
    of_groups: dict[str, Finding] = {}
    for finding in warnings:
        of_groups.setdefault(finding.group, finding)
    return tuple(of_groups.values())[:most]
