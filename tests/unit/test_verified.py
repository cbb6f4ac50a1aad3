"""KVM figures stay 'unverified on hardware' until a bundle from hardware is among the fixtures."""

from __future__ import annotations

import json
from pathlib import Path

from labctl.base.verified import KVM_BUNDLES, kvm_caveat

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "selftest"


def test_a_bundle_that_verifies_kvm_is_in_the_repository() -> None:
    for name in KVM_BUNDLES:
        manifest = json.loads((FIXTURES / name / "manifest.json").read_text())
        assert manifest["verifies_kvm"] is True
        assert manifest["accelerator"] == "kvm"


def test_reports_and_docs_say_the_same() -> None:
    said = "KVM figures are unverified on hardware"
    assert (kvm_caveat() is None) == bool(KVM_BUNDLES)
    for doc in ("method.md", "selftest.md"):
        text = (ROOT / "docs" / doc).read_text()
        assert ("unverified on hardware" in text) == (not KVM_BUNDLES), doc
    assert KVM_BUNDLES or (kvm_caveat() or "").startswith(said)
