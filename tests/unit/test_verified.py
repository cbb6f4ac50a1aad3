"""Figures stay 'unverified on hardware' until a bundle from hardware is among the fixtures: those
under KVM until one shows KVM, hardware counters until one shows a PMU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labctl.base import hostfacts
from labctl.base.hostfacts import KVM_BUNDLES, PMU_BUNDLES, kvm_caveat, pmu_caveat

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "selftest"


@pytest.mark.parametrize(
    ("bundles", "key"), [(KVM_BUNDLES, "verifies_kvm"), (PMU_BUNDLES, "verifies_pmu")]
)
def test_a_bundle_that_verifies_is_in_the_repository(bundles: tuple[str, ...], key: str) -> None:
    for name in bundles:
        manifest = json.loads((FIXTURES / name / "manifest.json").read_text())
        assert manifest[key] is True
        assert manifest["accelerator"] == "kvm"


def test_reports_and_docs_say_the_same() -> None:
    for doc in ("method.md", "selftest.md"):
        text = (ROOT / "docs" / doc).read_text()
        assert ("unverified on hardware" in text) == (not KVM_BUNDLES), doc
    assert KVM_BUNDLES or (kvm_caveat() or "").startswith("KVM figures are unverified on hardware")


def test_kvms_proof_and_the_pmus_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostfacts, "KVM_BUNDLES", ("a-host",))
    monkeypatch.setattr(hostfacts, "PMU_BUNDLES", ())
    assert kvm_caveat() is None
    assert (pmu_caveat() or "").startswith("Hardware counters are unverified")
