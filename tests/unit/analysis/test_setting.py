"""A host that is a guest itself is told of, and what that does to the run's numbers."""

from __future__ import annotations

from typing import Any

import pytest

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
        ({"hypervisor": True}, "of a hypervisor that doesn't say its name"),
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
    assert "natively as in the guest" in text


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
