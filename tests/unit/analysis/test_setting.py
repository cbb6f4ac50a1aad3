"""A host that is a guest itself is told of, and what that does to the run's numbers."""

from __future__ import annotations

from typing import Any

import pytest

from labctl.analysis.answer.record import Grade
from labctl.analysis.judge import judge
from tests.unit.analysis.alter import with_run
from tests.unit.synthetic import synthetic_run


def said(accelerator: str, **host: Any) -> list[str]:
    run = with_run(synthetic_run(), accelerator=accelerator, host=host)
    return [text for text in judge(run).warnings if "virtual machine itself" in text]


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ({"hypervisor": True, "hypervisor_vendor": "kvm"}, "of kvm"),
        ({"hypervisor": True}, "of an unknown hypervisor"),
        ({"hypervisor": False, "hypervisor_vendor": "vmware"}, "of vmware"),
        ({"cpu_model": "QEMU Virtual CPU version 2.5+", "hypervisor": False}, "of qemu"),
    ],
)
def test_a_host_that_is_a_guest_is_told_of_by_whichever_sign(
    host: dict[str, Any], named: str
) -> None:
    [text] = said("kvm", **host)
    assert named in text
    assert "guests are nested" in text


def test_under_emulation_it_is_the_cpus_that_others_may_share() -> None:
    [text] = said("tcg", hypervisor=True, hypervisor_vendor="kvm")
    assert "nested" not in text
    assert "are not visible here, which affects native and guest trials" in text


@pytest.mark.parametrize(
    "host",
    [
        {},
        {"hypervisor": False, "hypervisor_vendor": "none"},
        {"hypervisor_vendor": {"unavailable": "not installed"}, "cpu_model": ["QEMU "]},
    ],
)
def test_of_a_bare_host_and_of_one_that_nobody_asked_nothing_is_said(host: dict[str, Any]) -> None:
    assert said("kvm", **host) == []


def test_a_host_that_is_emulated_has_no_times_to_tell() -> None:
    host = {"cpu_model": "QEMU TCG CPU version 2.5+", "hypervisor": True}
    run = with_run(synthetic_run(), accelerator="kvm", host=host)
    judged = judge(run)
    [text] = [text for text in judged.warnings if "host itself was emulated" in text]
    assert "counts and reasons" in text
    assert "nothing about other hosts" in text
    assert run.run.is_emulated, "which no grade or advice may take for KVM's"
    assert judged.decision.tunings[0].grade is Grade.NOT_SHOWN
    assert not [text for text in judged.warnings if "virtual machine itself" in text]
    assert not with_run(synthetic_run(), accelerator="kvm", host={}).run.is_emulated
