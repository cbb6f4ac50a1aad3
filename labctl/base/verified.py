"""Say on which hardware labctl's figures have been checked. The one place that does."""

from __future__ import annotations

KVM_BUNDLES: tuple[str, ...] = ()
"""Bundles of `labctl selftest` from hosts where KVM works, by the name of their folder in
`tests/fixtures/selftest/`. A name is added with the folder and the tests that parse what is in it;
until then figures under KVM are unverified on hardware, and reports and docs say so."""

PMU_BUNDLES: tuple[str, ...] = ()
"""The same of hosts whose PMU counts natively and in guests. A bundle may be in both."""


def kvm_caveat() -> str | None:
    """Return what to say of every figure under KVM; None once a bundle from hardware shows KVM."""
    if KVM_BUNDLES:
        return None
    return (
        "KVM figures are unverified on hardware: labctl's own tests have seen KVM in an emulated "
        "host only."
    )


def pmu_caveat() -> str | None:
    """Return what to say of every hardware counter; None once a bundle shows a PMU."""
    if PMU_BUNDLES:
        return None
    return (
        "Hardware counters are unverified on hardware: labctl's own tests have seen no host whose "
        "PMU counts natively and in guests."
    )
