"""On which hardware labctl's figures have been checked. The one place that says so."""

from __future__ import annotations

KVM_BUNDLES: tuple[str, ...] = ()
"""Bundles of `labctl selftest` from hosts where KVM and a PMU work, by the name of their folder in
`tests/fixtures/selftest/`. A name is added with the folder and the tests that parse what is in it;
until then figures under KVM are unverified on hardware, and reports and docs say so."""


def kvm_caveat() -> str | None:
    """Return what to say of every figure under KVM; None once a bundle from real hardware is
    known."""
    if KVM_BUNDLES:
        return None
    return (
        "KVM figures are unverified on hardware: labctl's own tests have seen no host where KVM "
        "and a PMU work."
    )
