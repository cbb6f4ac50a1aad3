"""Choose the CPUs of each guest among many of one kind (docs/decisions/density.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from labctl.base.errors import UsageError
from labctl.base.tuning import Strategy
from labctl.domain.pinning.pin_plan import PinPlan, pin_plans
from labctl.host.topology import Topology


@dataclass(frozen=True, slots=True)
class Places:
    """Hold the plans of the guests that have CPUs of their own, by strategy; the next ones share
    theirs, from the first on."""

    plans: Mapping[Strategy, tuple[PinPlan, ...]]

    def of(self, number: int) -> dict[Strategy, PinPlan]:
        """Return the pin plans of the guest of that number, from 0."""
        return {strategy: plans[number % len(plans)] for strategy, plans in self.plans.items()}


def places(topology: Topology, alone: Mapping[Strategy, PinPlan]) -> Places:
    """Return where as many guests go as the host has CPUs for all their vCPUs. `alone`: the plans
    of one guest, which say how large it is and what topology it is shown."""
    return Places({strategy: _side_by_side(topology, plan) for strategy, plan in alone.items()})


def _side_by_side(topology: Topology, alone: PinPlan) -> tuple[PinPlan, ...]:
    vcpus, iothreads = len(alone.vcpus), len(alone.iothreads)
    for guests in range(len(topology.pinnable) // vcpus, 1, -1):
        try:
            plans = pin_plans(topology, [vcpus] * guests, iothreads, alone.strategy)
        except UsageError:
            continue  # the strategy has no room for so many
        # All are clones of one guest, which saw its own topology when it booted.
        return tuple(replace(plan, guest_topology=alone.guest_topology) for plan in plans)
    return (alone,)
