"""Choose the tunings that a saved guest can be restored with, and say which can't be had here."""

from __future__ import annotations

from collections.abc import Collection

from labctl.base.errors import UsageError
from labctl.base.nearest import nearest
from labctl.base.tuning import Kind
from labctl.host.topology import read_topology
from labctl.run.planning.fitting import fits, offers_here
from labctl.study.study import GuestShape
from labctl.study.tunings import load_tuning, load_tunings, tuning_names


def restorable(only: Collection[str] = ()) -> tuple[str, ...]:
    """Return the catalogue's guest tunings that a saved baseline can be restored with, or `only`
    these; raises UsageError for one that is none of them."""
    loaded = [load_tuning(name) for name in tuning_names()]
    names = [t.name for t in loaded if t.kind is Kind.GUEST and t.restore]
    for name in only:
        if name not in names:
            raise UsageError(
                f"'{name}' is not a tuning that a saved guest is restored with",
                hint=nearest(name, names),
            )
    return tuple(name for name in names if not only or name in only)


def not_here(names: Collection[str], guest: GuestShape, accelerator: str) -> dict[str, str]:
    """Return tunings that this host can't have, and why."""
    tunings = load_tunings(tuple(names))
    topology = read_topology()
    offers = offers_here(tunings.values(), guest, topology, accelerator)
    return {
        name: "; ".join(hindrance.text for hindrance in fit.hindrances)
        for name, fit in fits(tunings, offers, topology).items()
        if fit.hindrances
    }
