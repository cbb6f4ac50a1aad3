"""Keep the undo journal's file: JSON lines, appended until nothing is left to undo.

{"op": "change", …}             fsynced before the first side effect
{"op": "changed", "id": …}      it was read back; "new": the value found, if it was not known before
{"op": "kept", "ids": …}        the changes of one `host tune`, which is complete with this line
{"op": "restored", "id": …}     or "dropped": nothing is left to undo of it
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any

from labctl.base.errors import BrokenError, HostError
from labctl.base.json import parse_json
from labctl.host.lock import flock_within
from labctl.host.machines import boot_id, is_alive

# Write and parse lines of the undo journal, each with its length and a checksum.
#
# A line that a crash cut off is not damage: its change was never made, because that waits for the
# fsync. Any other difference is damage: a flipped bit must never drop a change or restore another
# value. Version 1 wrote JSON without a checksum; its lines are still read.


_MARK = b"v2 "
_DIGITS = 8
_HASH = 16
_HEAD = len(_MARK) + 2 * (_DIGITS + 1) + _HASH + 1
"""Bytes before the JSON: the mark, its length twice (a damaged one must not make a whole line look
cut off), and the start of its SHA-256."""


class DamagedError(Exception):
    """Report a damaged line; `number` counts from 1."""

    def __init__(self, number: int) -> None:
        super().__init__(f"line {number}")
        self.number = number


@dataclass(frozen=True, slots=True)
class Lines:
    """Hold the records with their lines' numbers; `size`: bytes of all complete lines."""

    records: tuple[tuple[int, dict[str, Any]], ...]
    size: int


def encoded(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the lines of some records."""
    return b"".join(map(_line, records))


def decoded(data: bytes) -> Lines:
    """Return the records of complete lines; raises DamagedError naming the first damaged one."""
    # A file system may show blocks that it had not written yet as zeros.
    data = data.rstrip(b"\0")
    records: list[tuple[int, dict[str, Any]]] = []
    at, number = 0, 0
    while at < len(data):
        number += 1
        read = _first_version if data[at : at + 1] == b"{" else _second_version
        found = read(data, at, number)
        if found is None:
            break
        record, at = found
        records.append((number, record))
    return Lines(tuple(records), at)


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False).encode()
    size = f"{len(text):0{_DIGITS}d}"
    return _MARK + f"{size} {size} {_checksum(text)} ".encode() + text + b"\n"


def _checksum(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:_HASH]


def _second_version(data: bytes, at: int, number: int) -> tuple[dict[str, Any], int] | None:
    """Return the record and where the next line begins; None for a last line that was cut off."""
    head = data[at : at + _HEAD]
    if not _MARK.startswith(head[: len(_MARK)]):
        raise DamagedError(number)
    if len(head) < _HEAD:
        return None
    parts = head[len(_MARK) :].split(b" ")
    if [len(part) for part in parts] != [_DIGITS, _DIGITS, _HASH, 0] or not parts[0].isdigit():
        raise DamagedError(number)
    size, again, checksum, _ = parts
    if size != again:
        raise DamagedError(number)
    begin, end = at + _HEAD, at + _HEAD + int(size)
    if end + 1 > len(data):
        return None
    text = data[begin:end]
    if data[end : end + 1] != b"\n" or _checksum(text).encode() != checksum:
        raise DamagedError(number)
    return _object(text, number), end + 1


def _first_version(data: bytes, at: int, number: int) -> tuple[dict[str, Any], int] | None:
    end = data.find(b"\n", at)
    if end < 0:
        return None
    try:
        return _object(data[at:end], number), end + 1
    except DamagedError:
        if end + 1 == len(data):
            return None  # cut off, and its rest overwritten
        raise


def _object(text: bytes, number: int) -> dict[str, Any]:
    try:
        record = parse_json(text)
    except ValueError as error:
        raise DamagedError(number) from error
    if not isinstance(record, dict):
        raise DamagedError(number)
    return record


_BUSY_S = 60.0
"""A holder writes a few lines and releases the lock."""

_LARGE_BYTES = 64 * 1024
"""Above this size, settled lines are removed: changes of `host tune` may stay for weeks."""


class UndoOutcome(StrEnum):
    RESTORED = "restored"
    DROPPED = "dropped"
    FAILED = "failed"
    FOREIGN = "left"
    """Result of an entry that someone else has changed since: reported, and left as it is."""

    @property
    def settles(self) -> bool:
        return self in (UndoOutcome.RESTORED, UndoOutcome.DROPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Record a change that is not undone yet. `pid` with `pid_start` identifies its owner.

    `new` None: the new value was to be read after the change. `done`: `new` was read back. `kept`:
    the request of the `labctl host tune` that kept it in force; else "".
    """

    id: str
    name: str
    kind: str
    arguments: Mapping[str, str]
    old: str
    new: str | None
    pid: int
    pid_start: int
    boot_id: str
    time: str
    done: bool = False
    kept: str = ""

    def owner_lives(self) -> bool:
        return self.of_this_boot() and is_alive(self.pid, self.pid_start)

    def of_this_boot(self) -> bool:
        return self.boot_id == boot_id()

    def left_behind(self) -> bool:
        """Return whether it is orphaned: its owner died before it could undo it."""
        return not self.kept and not self.owner_lives()

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "arguments": dict(self.arguments)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Entry:
        """Raise KeyError and TypeError for an invalid entry: a line of version 1 has no
        checksum."""
        fields = {name: data[name] for name in cls.__slots__ if name not in ("done", "kept")}
        arguments = fields["arguments"]
        if not isinstance(arguments, dict):
            raise TypeError("arguments")
        for name, value in (*fields.items(), *arguments.items()):
            wanted: type | UnionType = int if name in ("pid", "pid_start") else str
            if name == "new":
                wanted = str | None
            if name != "arguments" and not isinstance(value, wanted):
                raise TypeError(name)
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Result of undoing one entry. One that is neither restored nor dropped stays in the
    journal."""

    name: str
    old: str
    outcome: UndoOutcome
    note: str

    def to_json(self) -> dict[str, str]:
        return {name: str(getattr(self, name)) for name in self.__slots__}


class JournalFile:
    """Hold the journal while it is locked. `writable`: False on a read-only file system."""

    def __init__(self, path: Path, descriptor: int, *, writable: bool) -> None:
        self._path = path
        self._descriptor = descriptor
        self.writable = writable

    def pending(self) -> list[Entry]:
        """Return the changes that are not undone, oldest first; raises BrokenError naming a bad
        line."""
        entries: dict[str, Entry] = {}
        for number, record in self._read().records:
            try:
                _follow(entries, record)
            except (KeyError, TypeError) as error:
                raise self._bad_line(number) from error
        return list(entries.values())

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write lines and sync them to disk; raises HostError, and then none of them counts."""
        size = self._whole_size()
        try:
            # Cut off a line left incomplete by a crash, so that the next does not continue it.
            os.ftruncate(self._descriptor, size)
            data = encoded(records)
            if os.write(self._descriptor, data) != len(data):
                raise OSError(0, "only a part could be written")
            os.fsync(self._descriptor)
        except OSError as error:
            with suppress(OSError):  # as on a disk that has become read-only
                os.ftruncate(self._descriptor, size)
            raise _unwritable(self._path, error) from error

    def settle(self, results: Sequence[tuple[Entry, Restored]]) -> None:
        """Record what is undone, and empty the file if nothing is left to undo. The last user of
        the file rewrites a large one without settled lines. Raises HostError if it can't."""
        settled = [(entry, result) for entry, result in results if result.outcome.settles]
        if not settled or not self.writable:
            return
        ids = {entry.id for entry, _ in settled}
        left = [entry for entry in self.pending() if entry.id not in ids]
        if not left or self._whole_size() > _LARGE_BYTES:
            try:
                self._shorten(left)
            except OSError as error:
                raise HostError(
                    f"the host's settings were restored, but the undo journal {self._path} can't "
                    f"be written: {error.strerror}",
                    hint="Make its file system writable, then run 'labctl host restore' again.",
                ) from error
        else:
            self.append(
                {"op": str(result.outcome), "id": entry.id, "note": result.note}
                for entry, result in settled
            )

    def _shorten(self, entries: Sequence[Entry]) -> None:
        if not entries:
            os.ftruncate(self._descriptor, 0)
            os.fsync(self._descriptor)
            return
        new = self._path.with_suffix(".new")
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            data = encoded(record for e in entries for record in _history(e))
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(new))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        new.rename(self._path)
        _sync_folder(self._path.parent)

    def _bytes(self) -> bytes:
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def _whole_size(self) -> int:
        """Return the size without an incomplete last line."""
        return self._read().size

    def _read(self) -> Lines:
        try:
            return decoded(self._bytes())
        except DamagedError as error:
            raise self._bad_line(error.number) from error

    def _bad_line(self, number: int) -> BrokenError:
        return BrokenError(
            f"{self._path}:{number}: this line of the undo journal can't be read",
            hint="Restore the setting in that line by hand, delete the line, then run 'labctl "
            "host restore'.",
        )


@contextmanager
def locked(path: Path, *, reading: bool = False, undoing: bool = False) -> Iterator[JournalFile]:
    """Lock the journal: an image build and a run may both write to it.

    `reading`: open it for reading only. `undoing`: on a file system that has become read-only the
    host's settings can still be restored, so the journal is then opened for reading. Raises
    HostError if it cannot be opened, FileNotFoundError if it is only to be read and does not
    exist.
    """
    descriptor, writable = -1, not reading
    try:
        while True:
            is_new = not path.exists()
            descriptor, writable = _open(path, reading=reading, undoing=undoing)
            if not flock_within(descriptor, _BUSY_S):
                raise HostError(
                    f"another labctl has held the undo journal {path} for {_BUSY_S:.0f} s",
                    hint=f"'fuser {path}' shows its process.",
                )
            # Its holder may have replaced the file while we waited.
            if _is_at(path, descriptor):
                break
            os.close(descriptor)
            descriptor = -1
        if is_new:
            try:
                _sync_folder(path.parent)
            except OSError as error:
                raise _unwritable(path, error) from error
        yield JournalFile(path, descriptor, writable=writable)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> HostError:
    return HostError(
        f"cannot write the undo journal {path}: {error.strerror}",
        hint="labctl changes nothing without it. Free some space there.",
    )


def _open(path: Path, *, reading: bool, undoing: bool) -> tuple[int, bool]:
    try:
        if reading:
            return os.open(path, os.O_RDONLY), False
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), True
    except FileNotFoundError:
        raise
    except OSError as error:
        if undoing:
            return os.open(path, os.O_RDONLY), False
        raise HostError(
            f"cannot open the undo journal {path}: {error.strerror}",
            hint="Run labctl as root, or name a folder that you can write to with --state-dir.",
        ) from error


def _is_at(path: Path, descriptor: int) -> bool:
    ours = os.fstat(descriptor)
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _follow(entries: dict[str, Entry], record: Mapping[str, Any]) -> None:
    """Apply one line. Lines of a change that is already settled have no effect."""
    match record["op"]:
        case "change":
            entry = Entry.from_json(record)
            entries[entry.id] = entry
        case "changed" if record["id"] in entries:
            entry = entries[record["id"]]
            entries[entry.id] = replace(
                entry, done=True, new=_perhaps(record.get("new", entry.new))
            )
        case "kept":
            for id_ in record["ids"]:
                if id_ in entries:
                    entries[id_] = replace(entries[id_], kept=_perhaps(record["asked"]) or "")
        case UndoOutcome.RESTORED | UndoOutcome.DROPPED:
            entries.pop(record["id"], None)


def _perhaps(value: object) -> str | None:
    """Return a text or None; raises TypeError for anything else."""
    if value is None or isinstance(value, str):
        return value
    raise TypeError(value)


def change_record(entry: Entry) -> dict[str, Any]:
    fields = entry.to_json()
    del fields["done"], fields["kept"]
    return {"op": "change", **fields}


def changed_record(entry: Entry) -> dict[str, Any]:
    return {"op": "changed", "id": entry.id, "new": entry.new}


def kept_record(entries: Iterable[Entry], asked: str) -> dict[str, Any]:
    return {"op": "kept", "ids": [entry.id for entry in entries], "asked": asked}


def _history(entry: Entry) -> Iterator[dict[str, Any]]:
    """Yield the lines that record a pending entry."""
    yield change_record(entry)
    if entry.done:
        yield changed_record(entry)
    if entry.kept:
        yield kept_record([entry], entry.kept)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
