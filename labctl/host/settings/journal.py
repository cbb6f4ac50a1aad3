"""Keep the undo journal: labctl's changes to the host, recorded before they are made.

A run undoes its own changes. The next run undoes those of one that died. Changes of `labctl host
tune` stay until `labctl host restore`. See docs/decisions/undo-journal.md.
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

# List every kind of tunable by its name in the undo journal.


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
    """Return the tunable of a journal's entry; raises BrokenError for an unknown one."""
    try:
        return _KINDS[kind](**arguments)
    except (KeyError, TypeError) as error:
        raise BrokenError(
            f"the undo journal names a '{kind}' with {dict(arguments)}, which this labctl "
            "does not know",
            hint="Run 'labctl host restore' with the labctl version that wrote it.",
        ) from error


# Define how one change of the host is undone, and its state until then.


_READ_BACK_S = 1.0
"""Some settings take effect a moment after write(2) has returned."""


_Knob = tuple[str, tuple[tuple[str, str], ...]]
_ByKnob = dict[_Knob, list[Entry]]


class State(StrEnum):
    """State of a pending change now."""

    IN_FORCE = "in force"
    UNDONE = "has its old value"
    FOREIGN = "changed by someone else"
    HALF = "half made"
    GONE = "gone"
    REBOOTED = "gone with the last boot"
    UNREADABLE = "can't be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStanding:
    """Hold a pending change with the knob's present value; None if it has none."""

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
    """Restore the old values in the given order, if they are ours to restore; return the results.

    `pending`: all entries of the journal. A value that someone else has set since stays: `force`
    restores it as well, `accept` drops the entry.
    """
    # Ask before restoring anything: restoring one value may change another (KnobChange.follows).
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
    """Return the knob's present value if neither this nor an earlier change of ours set it.

    A change that was not read back may have been made in part (500 huge pages instead of 512).
    """
    if not outlives_boot(entry) or isinstance(tunable, CgroupControllers):
        return None  # owners of other cgroups each add controllers for themselves
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
    """Return the value that someone else gave a knob between this change and our next one; None if
    nobody did. `ours`: all changes of the knob, oldest first."""
    later = ours[ours.index(entry) :]
    for one, following in itertools.pairwise(later):
        if one.new != following.old:
            return following.old
    return None


def standings(pending: Sequence[Entry]) -> list[ChangeStanding]:
    """Return the present state of each pending change. Only reads."""
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
    """Return whether a change is still in force after the reboots since, if any."""
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

    `value` None: the new value is read afterwards, because a tool sets it, or (`follows`) the
    kernel does when the others are changed or restored. Changes are undone in reverse order.
    `optional`: if the kernel refuses it, the knob keeps its old value.
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
        """Set `tunable` to `value` inside the block and restore its old value after it.

        Raises HostError if it cannot be read or changed (then nothing is changed), BrokenError if
        it cannot be restored (then the entry stays for `restore_all`).
        """
        with self.changing() as changes:
            changes.make([KnobChange(tunable=tunable, value=value)])
            yield

    @contextmanager
    def changing(self) -> Iterator[Changes]:
        """Make changes in the block that are undone after it unless they are kept.

        Raises BrokenError if one cannot be restored, or was changed by someone else meanwhile: its
        entry stays for `restore_all`.
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
        """Return the present state of each pending change, oldest first. Only reads."""
        return standings(self.pending())

    def restore_all(
        self,
        *,
        kept: bool = False,
        spared: Collection[str] = (),
        force: bool = False,
        accept: bool = False,
    ) -> list[Restored]:
        """Undo the changes of owners that are dead, newest first.

        `kept`: also undo changes of `host tune`, except the entries whose ids are `spared`. Changes
        of a running labctl are left alone: it undoes them itself. A value that someone else has set
        since stays: `force` restores it as well, `accept` drops the entry. Changes that cannot be
        undone stay in the journal.
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
        """Undo our own changes, newest first, even if the journal can no longer be opened."""
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
        """Changes made so far that can be undone, oldest first."""
        self.tunables: dict[str, Tunable] = {}
        """Tunables by their entry's id."""
        self.kept = False

    def make(
        self, changes: Sequence[KnobChange], act: Callable[[], object] | None = None
    ) -> list[str]:
        """Make the changes in order, then call `act`; all are recorded before the first is made.

        Returns a sentence for each optional change that the kernel refused. Raises HostError if one
        cannot be read or changed.
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
            return refused  # without changes, nothing follows either
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

        All of them are kept, or none if labctl dies before: then they are undone as those of a dead
        run.
        """
        if self.entries:
            self._journal._append_kept(self.entries, asked)
        self.kept = True

    def _read_back(self, todo: Sequence[tuple[KnobChange, Entry]]) -> None:
        """Record the result of each change, and drop those that had no effect."""
        done: list[Entry] = []
        nothing: list[tuple[Entry, Restored]] = []
        for change, entry in todo:
            try:
                found = change.tunable.read()
            except OSError:
                continue  # not done; restoring reports what is wrong with it
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
    """Write and read back. Return why an optional change was refused, "" if it was made."""
    tunable, value = change.tunable, change.value
    assert value is not None
    try:
        tunable.write(value)
        # Refused changes are many (interrupts), so do not wait for them.
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
