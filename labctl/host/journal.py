"""The undo journal: what labctl changed on the host, written down before it is changed.

A file of JSON lines that only grows until nothing is left to undo; then it is emptied. A change
is `change` (fsynced before the first side effect), then `changed` once it was read back, then
`restored` or `dropped`. See docs/decisions/undo-journal.md.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from labctl.base.errors import BrokenError, HostError
from labctl.base.signals import cleaning_up
from labctl.host.processes import boot_id, is_alive, start_time
from labctl.host.tunables import StillUsedError, Tunable, rebuild

_READ_BACK_S = 1.0
"""Some settings take effect a moment after write(2) has returned."""


class Outcome(StrEnum):
    RESTORED = "restored"
    DROPPED = "dropped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change that is not undone yet. `pid` with `pid_start` names its owner beyond doubt."""

    id: str
    name: str
    kind: str
    arguments: Mapping[str, str]
    old: str
    new: str
    pid: int
    pid_start: int
    boot_id: str
    time: str

    def owner_lives(self) -> bool:
        return self.boot_id == boot_id() and is_alive(self.pid, self.pid_start)

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {"op": "change", **fields, "arguments": dict(self.arguments)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Entry:
        return cls(**{name: data[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What became of one entry. A failed one stays in the journal."""

    name: str
    old: str
    outcome: Outcome
    note: str

    def to_json(self) -> dict[str, str]:
        return {name: str(getattr(self, name)) for name in self.__slots__}


class Journal:
    """The journal at `path`; the file is made with the first change."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def changed(self, tunable: Tunable, value: str) -> Iterator[None]:
        """`tunable` has `value` inside the block and its old value after it.

        Raises HostError when it can't be read or changed (then nothing is changed), BrokenError
        when it can't be put back (then the entry stays for `restore_all`).
        """
        try:
            old = tunable.read()
        except OSError as error:
            raise HostError(f"cannot read {tunable.name}: {error.strerror}") from error
        if old == value:
            yield
            return
        entry = Entry(
            id=uuid.uuid4().hex,
            name=tunable.name,
            kind=tunable.kind,
            arguments=tunable.arguments(),
            old=old,
            new=value,
            pid=os.getpid(),
            pid_start=start_time(os.getpid()) or 0,
            boot_id=boot_id(),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._append(entry.to_json())
        try:
            _change(tunable, value)
            self._append({"op": "changed", "id": entry.id})
            yield
        finally:
            with cleaning_up(), self._locked() as file:
                result = _undo(entry, tunable)
                file.settle(entry, result)
            if result.outcome is Outcome.FAILED:
                raise BrokenError(
                    f"cannot put {entry.name} back to '{entry.old}': {result.note}",
                    hint="Run 'labctl host restore' once the cause is gone.",
                )

    def pending(self) -> list[Entry]:
        """The changes that are not undone, oldest first; raises BrokenError naming a bad line."""
        if not self.path.exists():
            return []
        with self._locked() as file:
            return file.pending()

    def restore_all(self) -> list[Restored]:
        """Undo what owners that are dead left behind, the newest change first.

        Changes of a living labctl are left alone: it undoes them itself. Entries that fail stay.
        """
        if not self.path.exists():
            return []
        results: list[Restored] = []
        with self._locked() as file:
            for entry in reversed(file.pending()):
                if entry.owner_lives():
                    continue
                tunable = rebuild(entry.kind, entry.arguments)
                if entry.boot_id != boot_id() and not tunable.survives_reboot:
                    result = _settled(entry, Outcome.DROPPED, "gone with the host's last boot")
                else:
                    result = _undo(entry, tunable)
                file.settle(entry, result)
                results.append(result)
        return results

    def _append(self, record: Mapping[str, Any]) -> None:
        with self._locked() as file:
            file.append(record)

    @contextmanager
    def _locked(self) -> Iterator[_JournalFile]:
        """The open file, for us alone: an image build and a run may both write to it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise HostError(
                f"cannot open the undo journal {self.path}: {error.strerror}",
                hint="Run labctl as root, or give a folder that you may write with --state-dir.",
            ) from error
        try:
            if is_new:
                _sync_folder(self.path.parent)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield _JournalFile(self.path, descriptor)
        finally:
            os.close(descriptor)


class _JournalFile:
    """The journal while we hold its lock."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def pending(self) -> list[Entry]:
        entries: dict[str, Entry] = {}
        for number, record in self._records():
            try:
                if record["op"] == "change":
                    entry = Entry.from_json(record)
                    entries[entry.id] = entry
                elif record["op"] in (Outcome.RESTORED, Outcome.DROPPED):
                    entries.pop(record["id"], None)
            except (KeyError, TypeError) as error:
                raise self._bad_line(number) from error
        return list(entries.values())

    def append(self, record: Mapping[str, Any]) -> None:
        size = self._whole_size()
        try:
            # What a crash left of a line must not become the head of this one.
            os.ftruncate(self._descriptor, size)
            data = json.dumps(record, ensure_ascii=False).encode() + b"\n"
            if os.write(self._descriptor, data) != len(data):
                raise OSError(0, "only a part could be written")
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, size)
            raise HostError(
                f"cannot write the undo journal {self._path}: {error.strerror}",
                hint="Nothing was changed. Free some space there.",
            ) from error

    def settle(self, entry: Entry, result: Restored) -> None:
        if result.outcome is Outcome.FAILED:
            return
        record = {"op": str(result.outcome), "id": entry.id, "note": result.note}
        if {other.id for other in self.pending()} <= {entry.id}:
            os.ftruncate(self._descriptor, 0)
            os.fsync(self._descriptor)
        else:
            self.append(record)

    def _bytes(self) -> bytes:
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def _whole_size(self) -> int:
        """The size without a last line that a crash cut off."""
        return self._bytes().rfind(b"\n") + 1

    def _records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        lines = self._bytes().splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError(line)
            except ValueError as error:
                if number == len(lines):
                    # A crash while it was written. Its change was never made (that waits for the
                    # fsync), or it only said that an earlier one is done, which is asked again.
                    return
                raise self._bad_line(number) from error
            yield number, record

    def _bad_line(self, number: int) -> BrokenError:
        return BrokenError(
            f"{self._path}:{number}: not a line of an undo journal; nothing was restored",
            hint="Look at the line: repair it if it can be read, else delete that line alone. "
            "Then run 'labctl host restore'.",
        )


def _change(tunable: Tunable, value: str) -> None:
    try:
        tunable.write(value)
        found = _read_until(tunable, value)
    except OSError as error:
        raise HostError(
            f"cannot set {tunable.name} to '{value}': {error.strerror}",
            hint="Run labctl as root." if isinstance(error, PermissionError) else None,
        ) from error
    if found != value:
        raise HostError(f"{tunable.name} was set to '{value}' but reads '{found}'")


def _undo(entry: Entry, tunable: Tunable) -> Restored:
    """Put the old value back, whatever the present one is, and say what was found."""
    try:
        found = tunable.read()
        if found == entry.old:
            return _settled(entry, Outcome.RESTORED, "had its old value already")
        tunable.write(entry.old)
        now = _read_until(tunable, entry.old)
    except FileNotFoundError:
        return _settled(entry, Outcome.DROPPED, "it is no longer there")
    except StillUsedError as error:
        return _settled(entry, Outcome.DROPPED, f"left at '{entry.new}': {error}")
    except OSError as error:
        return _settled(entry, Outcome.FAILED, error.strerror or str(error))
    if now != entry.old:
        return _settled(entry, Outcome.FAILED, f"it still reads '{now}'")
    return _settled(entry, Outcome.RESTORED, f"was '{found}'")


def _settled(entry: Entry, outcome: Outcome, note: str) -> Restored:
    return Restored(name=entry.name, old=entry.old, outcome=outcome, note=note)


def _read_until(tunable: Tunable, value: str) -> str:
    deadline = time.monotonic() + _READ_BACK_S
    while (found := tunable.read()) != value and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
