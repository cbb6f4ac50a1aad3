"""Tune the host outside a run (`labctl host tune`), until `labctl host restore`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from labctl.base.errors import BusyError
from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths, host_lock
from labctl.base.process import ending_signals_interrupt
from labctl.host.lock import host_locked
from labctl.host.settings import knobs, restore_timer
from labctl.host.settings.journal import Journal, KnobChange
from labctl.host.settings.journal_file import Entry, Restored
from labctl.host.settings.tunables import Tunable
from labctl.run.guests.leftovers import (
    clean_up,
    end_guests,
    leftover_cgroups,
    leftover_guests,
    remove_work,
)
from labctl.run.planning.host import HostRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Result of tuning the host. `changed`: settings that differ now and will be restored.
    `refused`: sentences on those that the kernel refused."""

    changed: Sequence[Entry]
    refused: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    """Hold the changes that stay over a reboot: `act` makes them, and `tunables` are all that it
    may change."""

    tunables: Sequence[Tunable]
    act: Callable[[], object]


def tune(
    asked: HostRequest, places: StatePaths, listener: Listener, lasting: Lasting | None = None
) -> Tuned:
    """Set the knobs, make lasting changes, and keep all of them until `restore`: all, or none.

    Raises BusyError while a labctl measures here, HostError if a knob cannot be set, and what
    `lasting.act` raises.
    """
    what = f"labctl host tune {' '.join(asked.names)}"
    journal = Journal(places.journal)
    with ending_signals_interrupt(), host_locked(host_lock(), what=what):
        clean_up(places, listener)
        with journal.changing() as changes:
            refused = knobs.turn(asked.host, asked.place, changes)
            if lasting is not None:
                seen = [KnobChange(tunable=tunable) for tunable in lasting.tunables]
                changes.make(seen, act=lasting.act)
            changes.keep(" ".join(asked.names))
            return Tuned(changed=tuple(changes.entries), refused=refused)


def restore(
    places: StatePaths,
    listener: Listener,
    *,
    spared: Callable[[], Collection[str] | None] = tuple,
    done: Callable[[Sequence[Restored]], object] = lambda _: None,
    force: bool = False,
    accept: bool = False,
) -> list[Restored]:
    """Restore what `tune` and labctls that were killed have changed; return the results.

    With the host's lock held, `spared` returns the ids of changes of `tune` that stay (None:
    nothing is to be restored any more), and `done` gets the results.

    Waits until no labctl measures here, and ends guests left by a killed one. A value that someone
    else has set since stays: `force` restores it as well, `accept` drops the entry.
    """
    journal = Journal(places.journal)
    left = leftover_guests(places) or leftover_cgroups(places) or _has_work(places)
    if not left and all(_is_owned(entry) for entry in journal.pending()):
        done([])
        return []

    def waiting(busy: BusyError) -> None:
        listener(Note(text=f"Waiting: {busy.message}."))

    with host_locked(host_lock(), what="labctl host restore", waiting=waiting):
        staying = spared()
        if staying is None:
            return []
        end_guests(places, listener)
        restored = journal.restore_all(kept=True, spared=staying, force=force, accept=accept)
        remove_work(places)
        done(restored)
        return restored


def keep(places: StatePaths, listener: Listener) -> bool:
    """Stop the timer that would restore what `tune` has changed; return whether one was due. Waits
    until no labctl measures or restores here, so that none is interrupted half-way."""

    def waiting(busy: BusyError) -> None:
        listener(Note(text=f"Waiting: {busy.message}."))

    if restore_timer.running(places) is None:
        return False
    with host_locked(host_lock(), what="labctl host keep", waiting=waiting):
        return restore_timer.stop(places)


def _has_work(places: StatePaths) -> bool:
    return places.work.is_dir() and any(places.work.iterdir())


def _is_owned(entry: Entry) -> bool:
    return not entry.kept and not entry.left_behind()
