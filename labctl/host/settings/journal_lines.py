"""Write and parse lines of the undo journal, each with its length and a checksum.

A line that a crash cut off is no damage: its change was never made, since that waits for the
fsync. Any other difference is: a flipped bit must never forget a change or restore another value.
Version 1 wrote JSON alone; its lines are still read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from labctl.base.jsontext import parse_json

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
    """Hold the records with their lines' numbers; `size`: bytes of all whole lines."""

    records: tuple[tuple[int, dict[str, Any]], ...]
    size: int


def encoded(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the lines of some records."""
    return b"".join(map(_line, records))


def decoded(data: bytes) -> Lines:
    """Return what whole lines say; raises DamagedError naming the first that is damaged."""
    # A file system may show what it had not written yet as zeros.
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
