"""Provide the machine that a tuning needs: a guest, or the image's tree natively."""

from __future__ import annotations

from contextlib import AbstractContextManager

from labctl.base.tuning import Kind, Tuning
from labctl.run.guests.bench import Bench, guest_bench, native_bench
from labctl.run.guests.boots import Boots
from labctl.run.guests.lab import Lab


def bench_of(
    lab: Lab, boots: Boots, boot: int, tuning: Tuning, *, fresh: bool
) -> AbstractContextManager[Bench]:
    """Provide a machine with the tuning in force. For a guest: restored from boot `boot` of the
    plan, or with `fresh` booted for itself."""
    if tuning.kind is Kind.NATIVE:
        return native_bench(lab, tuning)
    return guest_bench(lab, boots, boot, tuning, fresh)


def fresh_bench(lab: Lab, tuning: Tuning) -> AbstractContextManager[Bench]:
    """Provide a machine for the tuning alone, outside any plan."""
    if tuning.kind is Kind.NATIVE:
        return native_bench(lab, tuning)
    boots = Boots(lab, lab.source.disks(lab, tuning), tuning, lambda *_: None)
    return guest_bench(lab, boots, 0, tuning, fresh=True)
