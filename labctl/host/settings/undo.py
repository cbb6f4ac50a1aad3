"""Define how one change of the host is undone, and how it stands while it is not."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from labctl.base.wording import shortened
from labctl.host.settings.journal_file import Entry, Restored, UndoOutcome
from labctl.host.settings.kinds import rebuild
from labctl.host.settings.permanent import ConfigFile
from labctl.host.settings.tunables import CgroupControllers, StillUsedError, Tunable

_READ_BACK_S = 1.0
"""Some settings take effect a moment after write(2) has returned."""


_Knob = tuple[str, tuple[tuple[str, str], ...]]
_ByKnob = dict[_Knob, list[Entry]]


class State(StrEnum):
    """Name how a pending change stands now."""

    IN_FORCE = "in force"
    UNDONE = "has its old value"
    FOREIGN = "changed by someone else"
    HALF = "half made"
    GONE = "gone"
    REBOOTED = "gone with the last boot"
    UNREADABLE = "can't be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStanding:
    """Hold a pending change with the knob's present value; None where it has none."""

    entry: Entry
    present: str | None
    state: State


def undone(
    entries: Sequence[tuple[Entry, Tunable]],
    pending: Sequence[Entry],
    *,
    force: bool = False,
    accept: bool = False,
) -> list[tuple[Entry, Restored]]:
    """Put the old values back in the given order where that is ours to do; what was found.

    `pending`: all that is in the journal. What someone else has set since is left as it is: with
    `force` it is put back as well, with `accept` it is forgotten.
    """
    # Asked before anything is put back: putting one back may change another (KnobChange.follows).
    ours = _by_knob(pending)
    theirs = {entry.id: _foreign_value(entry, tunable, ours) for entry, tunable in entries}
    results = []
    for entry, tunable in entries:
        found = theirs[entry.id]
        note = f"someone else has set it to '{shortened(found or '')}' since"
        if found is None or force:
            results.append((entry, _restored(entry, tunable)))
        elif accept:
            results.append((entry, settled(entry, UndoOutcome.DROPPED, note)))
        else:
            results.append((entry, settled(entry, UndoOutcome.FOREIGN, note)))
    return results


def _restored(entry: Entry, tunable: Tunable) -> Restored:
    if not entry.of_this_boot() and not tunable.survives_reboot:
        return settled(entry, UndoOutcome.DROPPED, "gone with the host's last boot")
    try:
        found = tunable.read()
        is_told = isinstance(tunable, ConfigFile) and tunable.is_told
        if found == entry.old and not is_told:
            return settled(entry, UndoOutcome.RESTORED, "had its old value already")
        tunable.write(entry.old)
        now = read_until(tunable, entry.old)
    except FileNotFoundError:
        return settled(entry, UndoOutcome.DROPPED, "it is no longer there")
    except StillUsedError as error:
        return settled(entry, UndoOutcome.DROPPED, f"left at '{entry.new}': {error}")
    except OSError as error:
        return settled(entry, UndoOutcome.FAILED, error.strerror or str(error))
    if now != entry.old:
        return settled(entry, UndoOutcome.FAILED, f"it still reads '{shortened(now)}'")
    return settled(entry, UndoOutcome.RESTORED, f"was '{shortened(found)}'")


def _foreign_value(entry: Entry, tunable: Tunable, pending: _ByKnob) -> str | None:
    """Return what the knob is now, if neither we nor an earlier change of ours made it that.

    A change that was not read back may have been made in part (500 huge pages instead of 512).
    """
    if not outlives_boot(entry) or isinstance(tunable, CgroupControllers):
        return None  # other cgroups' owners add controllers, each for itself
    ours = pending[_knob(entry)]
    if not all(e.done for e in ours):
        return None
    if tunable.survives_reboot and (between := _changed_between(entry, ours)) is not None:
        return between
    try:
        found = tunable.read()
    except OSError:
        return None
    return None if found in {value for e in ours for value in (e.old, e.new)} else found


def _changed_between(entry: Entry, ours: Sequence[Entry]) -> str | None:
    """Return what someone else made of a knob after this change and before the next one of ours;
    None where nobody did. `ours`: all changes of the knob, oldest first."""
    later = ours[ours.index(entry) :]
    for one, following in itertools.pairwise(later):
        if one.new != following.old:
            return following.old
    return None


def standings(pending: Sequence[Entry]) -> list[ChangeStanding]:
    """Return how each pending change stands now. Only reads."""
    ours = _by_knob(pending)
    return [_standing(entry, ours) for entry in pending]


def _standing(entry: Entry, pending: _ByKnob) -> ChangeStanding:
    tunable = rebuild(entry.kind, entry.arguments)
    present: str | None = None
    if not entry.of_this_boot() and not tunable.survives_reboot:
        return ChangeStanding(entry=entry, present=None, state=State.REBOOTED)
    try:
        present = tunable.read()
    except FileNotFoundError:
        state = State.GONE
    except OSError:
        state = State.UNREADABLE
    else:
        if present == entry.old:
            state = State.UNDONE
        elif _foreign_value(entry, tunable, pending) is not None:
            state = State.FOREIGN
        else:
            state = State.IN_FORCE if entry.done else State.HALF
    return ChangeStanding(entry=entry, present=present, state=state)


def _by_knob(pending: Sequence[Entry]) -> _ByKnob:
    found: _ByKnob = {}
    for entry in pending:
        found.setdefault(_knob(entry), []).append(entry)
    return found


def _knob(entry: Entry) -> _Knob:
    return entry.kind, tuple(sorted(entry.arguments.items()))


def outlives_boot(entry: Entry) -> bool:
    """Return whether a change is still in force as far as reboots go."""
    return entry.of_this_boot() or rebuild(entry.kind, entry.arguments).survives_reboot


def settled(entry: Entry, outcome: UndoOutcome, note: str) -> Restored:
    return Restored(name=entry.name, old=entry.old, outcome=outcome, note=note)


def read_until(tunable: Tunable, value: str) -> str:
    deadline = time.monotonic() + _READ_BACK_S
    while (found := tunable.read()) != value and time.monotonic() < deadline:
        time.sleep(0.01)
    return found
