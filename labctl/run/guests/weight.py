"""Give a guest its tuning's CPU weight, and read it back."""

from __future__ import annotations

from labctl.domain.session import RunningGuest
from labctl.host.cgroups import Layout
from labctl.host.cpu_weight import libvirt_shares, session_problems, weigh_session


def weigh(layout: Layout, running: RunningGuest, weight: int | None) -> None:
    """Give a guest a CPU weight; None leaves the default. Raises BrokenError where it can't have
    it."""
    if weight is None:
        return
    if (shares := libvirt_shares(layout, weight)) is not None:
        running.set_cpu_shares(shares)
    weigh_session(layout, running.pid, weight)


def weight_problems(layout: Layout, running: RunningGuest, weight: int | None) -> list[str]:
    """Return why a guest does not weigh what it should against its neighbours."""
    problems = session_problems(layout, running.pid, weight)
    shares = None if weight is None else libvirt_shares(layout, weight)
    if shares is not None and (found := running.cpu_shares()) != shares:
        problems.append(f"the guest has {found} CPU shares, asked was {shares}")
    return problems
