"""Which of doctor's warnings come first, by what a study's tunings change."""

from __future__ import annotations

from labctl.base.hostfacts import Rests
from labctl.host.doctor import CHECKS
from labctl.host.doctor.check import (
    _ALWAYS,
    _BEARING,
    _OTHERWISE,
    PINNING,
    Finding,
    Status,
    foremost,
)
from labctl.run.commands.host_checks import CHECKS as STUDY_CHECKS

GROUPS = {one.name: one.group for one in (*CHECKS, *STUDY_CHECKS)}


def warned(*names: str, status: Status = Status.WARN) -> list[Finding]:
    return [
        Finding(name=name, group=GROUPS[name], status=status, found="so", why="So.")
        for name in names
    ]


def chosen(findings: list[Finding], *rests: Rests) -> list[str]:
    return [finding.name for finding in foremost(findings, frozenset(rests))]


def test_every_ranked_check_exists() -> None:
    assert {*_ALWAYS, *_BEARING, *_OTHERWISE} <= set(GROUPS)


def test_emulation_comes_first_then_what_bears_on_what_the_study_changes() -> None:
    found = warned("nested", "pmu", "vhost-net", "file-system", "hugepages", "cpus", "kvm-boot")
    assert chosen(found, *PINNING) == ["kvm-boot", "cpus", "pmu"]
    assert chosen(found, Rests.DISK) == ["kvm-boot", "file-system", "pmu"]
    assert chosen(found, Rests.NETWORK, Rests.MEMORY) == ["kvm-boot", "hugepages", "vhost-net"]


def test_a_group_is_named_once_and_only_warnings_are() -> None:
    found = warned("rt-group-sched", "rt-throttling", "smt", "cpus")
    found += warned("kvm-boot", status=Status.BLOCK) + warned("steal", status=Status.OK)
    assert chosen(found, *PINNING) == ["cpus", "rt-group-sched"]
    assert chosen([]) == []
