"""Put a tuning in force on the host: its knobs, and the CPUs that are left with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from labctl.base.errors import BrokenError, HostError
from labctl.base.latency_qos import Held
from labctl.base.tuning import Tuning
from labctl.host.settings import knobs
from labctl.host.topology import read_topology
from labctl.run.guests.lab import Lab


@dataclass(frozen=True, slots=True)
class HostSide:
    """Hold what was set up on the host. `held`: what is in force only while labctl holds it."""

    evidence: dict[str, Any] = field(default_factory=dict)
    held: Sequence[Held] = ()

    def problems(self) -> list[str]:
        """Return what ended something that is held, a sentence each."""
        return [why for one in self.held if (why := one.why_over()) is not None]


@contextmanager
def host_changed(lab: Lab, tuning: Tuning) -> Iterator[HostSide]:
    """Set the host up as the tuning asks, and back afterwards.

    Raises BrokenError for a knob that can't be turned: then it is this tuning whose trials are
    invalid, and the run goes on.
    """
    if not tuning.host:
        yield HostSide()
        return
    plan = lab.pin_plan_for(tuning)
    before = {entry.id for entry in lab.journal.pending()}
    with ExitStack() as stack:
        try:
            turned = stack.enter_context(
                knobs.host_changed(tuning.host, lab.journal, plan.housekeeping, plan.vcpu_cpus)
            )
        except HostError as error:
            raise BrokenError(error.message, hint=error.hint) from error
        changed = [entry for entry in lab.journal.pending() if entry.id not in before]
        held = [{"name": h.name, "before": h.before, "now": h.now} for h in turned.held]
        evidence = {
            "host-knobs.json": {
                "asked": dict(tuning.host),
                "changed": [{"name": e.name, "before": e.old, "now": e.new} for e in changed],
                "held": held,
                "refused": turned.refused,
            }
        }
        yield HostSide(evidence, turned.held)


def with_cpus_of_now(lab: Lab, tuning: Tuning) -> Lab:
    """Limit unpinned threads to the CPUs that are online now: with SMT off there are fewer."""
    return replace(lab, topology=read_topology()) if "smt" in tuning.host else lab
