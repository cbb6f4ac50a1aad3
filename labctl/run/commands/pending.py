"""Say what is changed on this host, in a sentence. Every command asks: it has to be cheap to
load."""

from __future__ import annotations

from labctl.base.errors import LabctlError
from labctl.base.paths import StatePaths
from labctl.host.settings.journal import Journal


def pending_note(places: StatePaths) -> str | None:
    """Return a sentence about what is changed on this host and by nobody who lives; None when
    nothing is."""
    try:
        pending = Journal(places.journal).pending()
    except LabctlError:
        return None  # who may not read it, or finds it broken, is told when it matters
    asked = list(dict.fromkeys(entry.kept for entry in pending if entry.kept))
    dead = sum(1 for entry in pending if entry.left_behind())
    said = []
    if asked:
        said.append(f"'labctl host tune {' '.join(asked)}' is in force on this host")
    if dead:
        said.append(f"a labctl that was killed has left {dead} of its settings changed")
    return "; ".join(said) or None
