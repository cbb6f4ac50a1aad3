"""What a run says of itself, beside its numbers: facts, XML differences, invalid trials."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base.errors import BrokenError
from labctl.report.view import mapping
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialStatus

# A guest is hostile and facts come from it: without limits it could make the page any size.
_LONGEST_VALUE = 500
_MOST_FACTS = 400
_LARGEST_XML_BYTES = 256 * 1024
_LONGEST_DIFFERENCE = 400


@dataclass(frozen=True, slots=True)
class Fact:
    key: str
    host: str
    guest: str


@dataclass(frozen=True, slots=True)
class XmlDifference:
    """`lines` of a unified diff without its header; `problem` where there can't be one."""

    tuning: str
    lines: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class InvalidTrial:
    """`later`: whether a later attempt at the same trial was valid."""

    name: str
    block: int
    arm: str
    reasons: tuple[str, ...]
    later: bool


def facts(run: LoadedRun) -> list[Fact]:
    """Facts of host and guest side by side; nested ones as `cpu.model`."""
    host = dict(_flat(mapping(run.run.get("host"))))
    guest = dict(_flat(mapping(run.run.get("guest"))))
    keys = list(dict.fromkeys([*host, *guest]))[:_MOST_FACTS]
    return [Fact(key, host.get(key, ""), guest.get(key, "")) for key in keys]


def flat(value: Any) -> list[tuple[str, str]]:
    """Nested data as (dotted key, text) pairs."""
    return list(_flat(mapping(value)))[:_MOST_FACTS]


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _short(_plain(value))


def _plain(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return str(value)


def _short(text: str) -> str:
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[:_LONGEST_VALUE]} ({len(text) - _LONGEST_VALUE} more characters)"


def xml_differences(run: LoadedRun, folder: Path, baseline: str) -> list[XmlDifference]:
    """How each tuning's domain XML differs from the baseline's; [] when no XML was stored."""
    files = {str(name): str(place) for name, place in mapping(run.run.get("xml")).items()}
    if baseline not in files:
        return []
    try:
        before = _xml_lines(folder, files.pop(baseline))
    except BrokenError as error:
        return [XmlDifference(baseline, problem=error.message)]
    return [_xml_difference(name, before, folder, place) for name, place in files.items()]


def _xml_difference(name: str, before: list[str], folder: Path, place: str) -> XmlDifference:
    try:
        after = _xml_lines(folder, place)
    except BrokenError as error:
        return XmlDifference(name, problem=error.message)
    lines = list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]
    if len(lines) > _LONGEST_DIFFERENCE:
        left = len(lines) - _LONGEST_DIFFERENCE
        lines = [*lines[:_LONGEST_DIFFERENCE], f" ({left} more lines)"]
    return XmlDifference(name, lines=tuple(lines))


def _xml_lines(folder: Path, place: str) -> list[str]:
    return [line.rstrip() for line in stored_xml(folder, place).splitlines()]


def stored_xml(folder: Path, place: str) -> str:
    """The domain XML that a run stored at `place` in its folder.

    Raises BrokenError for a file that isn't there, isn't text, or isn't the run's own: a run
    folder that came from elsewhere must not make its reader publish /etc/shadow.
    """
    path = (folder / place).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise BrokenError(f"{place} lies outside of the run's folder")
    try:
        if path.stat().st_size > _LARGEST_XML_BYTES:
            raise BrokenError(f"{place} is too large for a domain XML")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenError(f"{place} cannot be read: {error}") from error


def invalid_trials(run: LoadedRun) -> list[InvalidTrial]:
    """Every attempt that was thrown out, in plan order, with its reasons."""
    valid = {trial.record.number for trial in run.trials if trial.record.status is TrialStatus.DONE}
    records = [t.record for t in run.trials if t.record.status is TrialStatus.INVALID]
    records.sort(key=lambda record: (record.number, record.attempt))
    return [
        InvalidTrial(
            name=f"{record.number}, attempt {record.attempt}",
            block=record.block,
            arm=", ".join(str(level) for level in record.cell.values()),
            reasons=tuple(_short(str(reason)) for reason in record.reasons),
            later=record.number in valid,
        )
        for record in records
    ]
