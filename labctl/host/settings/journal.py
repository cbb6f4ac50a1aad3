"""Keep the undo journal: what labctl changes on the host, written down before the change.

What a run changes it undoes itself; what a dead run left is undone by the next one. What
`labctl host tune` changed stays until `labctl host restore`. See docs/decisions/undo-journal.md.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from labctl.base.errors import BrokenError, HostError
from labctl.base.process import cleaning_up
from labctl.base.wording import shortened
from labctl.host.machines import boot_id, start_time
from labctl.host.settings.journal_file import (
    Entry,
    JournalFile,
    Restored,
    UndoOutcome,
    change_record,
    changed_record,
    kept_record,
    locked,
)
from labctl.host.settings.netdevices import NetworkNamespace, TapDevice
from labctl.host.settings.permanent import ConfigFile, DomainDefinition
from labctl.host.settings.tunables import (
    CgroupControllers,
    CgroupFolder,
    CpuMask,
    FileAccess,
    FileValue,
    Hugetlbfs,
    StillUsedError,
    Tunable,
)
from labctl.host.settings.tuned_state import ActiveProfile, ProfileFolder

# List every kind of tunable by the name that the undo journal has for it.


_KINDS: Mapping[str, type[Tunable]] = {
    tunable.kind: tunable
    for tunable in (
        FileValue,
        FileAccess,
        CpuMask,
        CgroupFolder,
        CgroupControllers,
        Hugetlbfs,
        ActiveProfile,
        ProfileFolder,
        NetworkNamespace,
        TapDevice,
        ConfigFile,
        DomainDefinition,
    )
}


def rebuild(kind: str, arguments: Mapping[str, str]) -> Tunable:
    """Return the tunable that a journal's entry speaks of; raises BrokenError for one that is
    unknown."""
    try:
        return _KINDS[kind](**arguments)
    except (KeyError, TypeError) as error:
        raise BrokenError(
            f"the undo journal names a '{kind}' with {dict(arguments)}, which this labctl "
            "does not know",
            hint="Run 'labctl host restore' with the labctl version that wrote it.",
        ) from error


# Define how one change of the host is undone, and how it stands while it is not.


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


__all__ = [
    "ChangeStanding",
    "Changes",
    "Entry",
    "Journal",
    "KnobChange",
    "Restored",
    "State",
    "UndoOutcome",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobChange:
    """Request a value for a knob.

    `value` None: what becomes of it is seen afterwards, because a tool changes it, or (`follows`)
    the kernel does, when the others are changed or put back. A change that comes before another
    is put back after it. `optional`: where the kernel refuses, it is left as it was.
    """

    tunable: Tunable
    value: str | None = None
    follows: bool = False
    optional: bool = False


class Journal:
    """Keep the journal at `path`; the first change makes the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def changed(self, tunable: Tunable, value: str) -> Iterator[None]:
        """Set `tunable` to `value` inside the block and back to its old value after it.

        Raises HostError when it can't be read or changed (then nothing is changed), BrokenError
        when it can't be put back (then the entry stays for `restore_all`).
        """
        with self.changing() as changes:
            changes.make([KnobChange(tunable=tunable, value=value)])
            yield

    @contextmanager
    def changing(self) -> Iterator[Changes]:
        """Make changes in the block that are undone after it unless they are kept.

        Raises BrokenError when one can't be put back, or was changed by someone else meanwhile:
        its entry stays for `restore_all`.
        """
        changes = Changes(self)
        try:
            yield changes
        finally:
            with cleaning_up():
                results = [] if changes.kept else self._undo(changes)
            _raise_unless_settled(results)

    def pending(self) -> list[Entry]:
        """Return the changes that are not undone, oldest first; raises BrokenError naming a bad
        line."""
        try:
            with locked(self.path, reading=True) as file:
                return file.pending()
        except FileNotFoundError:
            return []

    def standing(self) -> list[ChangeStanding]:
        """Return how each pending change stands now, oldest first. Only reads."""
        return standings(self.pending())

    def restore_all(
        self,
        *,
        kept: bool = False,
        spared: Collection[str] = (),
        force: bool = False,
        accept: bool = False,
    ) -> list[Restored]:
        """Undo what owners that are dead left behind, the newest change first.

        `kept`: and what `host tune` changed, but for the entries whose ids are `spared`. Changes of
        a living labctl are left alone: it undoes them itself. What someone else changed since is
        left as it is: with `force` it is put back as well, with `accept` it is forgotten. What
        can't be undone stays in the journal.
        """
        if not self.path.exists():
            return []
        with locked(self.path, undoing=True) as file:
            pending = file.pending()
            due = [
                entry
                for entry in reversed(pending)
                if entry.left_behind()
                or (entry.kept and (not outlives_boot(entry) or (kept and entry.id not in spared)))
            ]
            ours = [(entry, rebuild(entry.kind, entry.arguments)) for entry in due]
            results = undone(ours, pending, force=force, accept=accept)
            file.settle(results)
            if results and not file.writable:
                raise HostError(
                    "the host's settings were restored as far as possible, but the undo "
                    f"journal {self.path} can't be written",
                    hint="Make its file system writable, then run 'labctl host restore' again.",
                )
        return [result for _, result in results]

    def _append_changes(self, entries: Sequence[Entry]) -> None:
        with locked(self.path) as file:
            file.append(map(change_record, entries))

    def _append_changed(self, entries: Sequence[Entry]) -> None:
        with locked(self.path) as file:
            file.append(map(changed_record, entries))

    def _append_kept(self, entries: Sequence[Entry], asked: str) -> None:
        with locked(self.path) as file:
            file.append([kept_record(entries, asked)])

    def _settle(self, results: Sequence[tuple[Entry, Restored]]) -> None:
        with locked(self.path) as file:
            file.settle(results)

    def _undo(self, changes: Changes) -> list[tuple[Entry, Restored]]:
        """Undo our own, the newest first, even where the journal can't be opened any more."""
        if not changes.entries:
            return []
        with ExitStack() as stack:
            file: JournalFile | None
            try:
                file = stack.enter_context(locked(self.path, undoing=True))
            except OSError:
                file = None
            ours = [(entry, changes.tunables[entry.id]) for entry in reversed(changes.entries)]
            results = undone(ours, changes.entries)
            if file is not None:
                file.settle(results)
        return results


class Changes:
    """Group changes of the host that belong together (`Journal.changing`)."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.entries: list[Entry] = []
        """Those made so far that there is something to undo of, oldest first."""
        self.tunables: dict[str, Tunable] = {}
        """Tunables by the entry's id."""
        self.kept = False

    def make(
        self, changes: Sequence[KnobChange], act: Callable[[], object] | None = None
    ) -> list[str]:
        """Make the changes in order, then `act`, all of them written down before the first.

        Returns what the kernel refused of the optional ones: sentences. Raises HostError when one
        can't be read or changed.
        """
        refused: list[str] = []
        todo: list[tuple[KnobChange, Entry]] = []
        for change in changes:
            try:
                old = change.tunable.read()
            except OSError as error:
                if not change.optional:
                    raise HostError(
                        f"cannot read {change.tunable.name}: {error.strerror}"
                    ) from error
                refused.append(_refusal(change, error.strerror))
                continue
            if old != change.value:
                todo.append((change, _entry(change, old)))
        if act is None and all(change.value is None for change, _ in todo):
            return refused  # nothing to do, so nothing follows either
        if todo:
            self._journal._append_changes([entry for _, entry in todo])
            self.tunables |= {entry.id: change.tunable for change, entry in todo}
            self.entries += [entry for _, entry in todo]
        for change, _ in todo:
            if change.value is not None and (problem := _change(change)):
                refused.append(_refusal(change, problem))
        if act is not None:
            act()
        self._read_back(todo)
        return refused

    def keep(self, asked: str) -> None:
        """Keep these changes in force until `labctl host restore`.

        All of them or, where we die before, none: then they are undone as a dead run's are.
        """
        if self.entries:
            self._journal._append_kept(self.entries, asked)
        self.kept = True

    def _read_back(self, todo: Sequence[tuple[KnobChange, Entry]]) -> None:
        """Note what became of each change, and forget those that nothing became of."""
        done: list[Entry] = []
        nothing: list[tuple[Entry, Restored]] = []
        for change, entry in todo:
            try:
                found = change.tunable.read()
            except OSError:
                continue  # it is not done, and restoring says what is wrong with it
            if found == entry.old and not change.follows:
                nothing.append((entry, settled(entry, UndoOutcome.RESTORED, "was never changed")))
            elif change.value in (None, found):
                done.append(replace(entry, done=True, new=found))
        if done:
            self._journal._append_changed(done)
        if nothing:
            self._journal._settle(nothing)
        now = {entry.id: entry for entry in done}
        gone = {entry.id for entry, _ in nothing}
        self.entries = [now.get(e.id, e) for e in self.entries if e.id not in gone]


def _entry(change: KnobChange, old: str) -> Entry:
    return Entry(
        id=uuid.uuid4().hex,
        name=change.tunable.name,
        kind=change.tunable.kind,
        arguments=change.tunable.arguments(),
        old=old,
        new=change.value,
        pid=os.getpid(),
        pid_start=start_time(os.getpid()) or 0,
        boot_id=boot_id(),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _change(change: KnobChange) -> str:
    """Write and read back. Returns why an optional one was refused, "" when it was done."""
    tunable, value = change.tunable, change.value
    assert value is not None
    try:
        tunable.write(value)
        # Refused ones are many (interrupts), so there is no waiting for them.
        found = tunable.read() if change.optional else read_until(tunable, value)
    except OSError as error:
        if change.optional:
            return error.strerror or str(error)
        raise HostError(
            f"cannot set {tunable.name} to '{value}': {error.strerror}",
            hint="Run labctl as root." if isinstance(error, PermissionError) else None,
        ) from error
    if found == value:
        return ""
    if change.optional:
        return f"it reads '{found}'"
    raise HostError(f"{tunable.name} was set to '{value}' but reads '{found}'")


def _refusal(change: KnobChange, why: str | None) -> str:
    return f"{change.tunable.name} is left as it is: {why}"


def _raise_unless_settled(results: Sequence[tuple[Entry, Restored]]) -> None:
    for entry, result in results:
        if result.outcome is UndoOutcome.FAILED:
            raise BrokenError(
                f"cannot restore {entry.name} to '{shortened(entry.old)}': {result.note}",
                hint="Fix the cause, then run 'labctl host restore'.",
            )
        if result.outcome is UndoOutcome.FOREIGN:
            raise BrokenError(
                f"{entry.name} was '{shortened(entry.old)}' and labctl set it to "
                f"'{shortened(entry.new or '')}', but {result.note}",
                hint="It was not changed. 'labctl host restore --force' restores the old value, "
                "'--accept' keeps the current one.",
            )
