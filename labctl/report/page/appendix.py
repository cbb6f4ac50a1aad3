"""Show a run's facts, hashed files, XML differences and invalid trials below its numbers."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.analysis.effects.cells import is_interleaved, skipped
from labctl.analysis.model import MissingMetric
from labctl.analysis.times import costs_said, level_of
from labctl.analysis.verdicts.decide import spares_that_ran
from labctl.base.errors import BrokenError
from labctl.base.tuning import Level
from labctl.base.wording import counted, without_logs
from labctl.report.sentences import time_taken
from labctl.store.run_folder import LoadedRun, stored_xml
from labctl.store.trial import TrialStatus

# Some facts come from the guest, which may be hostile: without limits it could make the page any
# size.
_LONGEST_VALUE = 500
_LONGEST_LOGS = 3000
"""Letters of a reason's logs: as many as labctl stores of a guest that died."""
_MOST_FACTS = 400
_LONGEST_DIFFERENCE = 400
_LARGEST_DIFFERENCES = 200_000
"""Letters of all XML differences together."""
_MOST_KINDS = 200
_NUMBER = re.compile(r"[0-9]+")
_MOST_ORDERED = 100
_MOST_FILES = 1000

NO_REASON = "no reason given"
MOST_INVALID = 200
"""Invalid trials that are listed one by one; all are counted by arm and reason."""

_SIDES = {"native": "natively", "guest": "in the guest"}
_AS_RUN = "Programs and their loaded libraries, hashed just before they ran: {times}."
_AS_BUILT = (
    "An older labctl hashed the guest's programs at its first boot and the native ones "
    "when the image was built; it did not hash libraries."
)


@dataclass(frozen=True, slots=True)
class SettingRow:
    key: str
    host: str
    guest: str


@dataclass(frozen=True, slots=True)
class Order:
    """Show in which order a block's arms ran."""

    block: int
    boot: str
    arms: tuple[str, ...]
    spare: bool


@dataclass(frozen=True, slots=True)
class HashedFile:
    """Show a file by its SHA-256. `where`: the sides on which it ran."""

    name: str
    where: str
    digest: str


@dataclass(frozen=True, slots=True)
class Hashed:
    """Show all hashed files. `proof`: when they were hashed, in a sentence."""

    proof: str
    files: tuple[HashedFile, ...]


def left_out(run: LoadedRun) -> list[tuple[str, str]]:
    """Return the parts of the study that the host does not support, with the reasons."""
    return list(skipped(run.plan, run.run).items())


def orders(run: LoadedRun) -> list[Order]:
    """Return the planned order of arms, block by block, as far as the plan has it."""
    if not is_interleaved(run):
        return []
    arms: dict[int, dict[str, None]] = {}
    boots: dict[int, str] = {}
    for trial in run.plan.trials:
        if trial.block and (tuning := trial.cell.get("tuning")) is not None:
            arms.setdefault(trial.block, {})[tuning] = None
            boots[trial.block] = str(trial.boot or "")
    blocks = sorted(arms)[:_MOST_ORDERED]
    spares = spares_that_ran(run)
    return [Order(b, boots[b], tuple(arms[b]), b in spares) for b in blocks]


def versions(run: LoadedRun) -> list[tuple[str, str]]:
    """Return the versions and settings of the run, as far as they are recorded."""
    host, guest = run.run.host, run.run.guest
    image = run.run.image
    named = (
        ("started", run.run.started_at),
        ("ended", run.run.ended_at),
        ("time", time_taken(run) or None),
        ("labctl", run.run.labctl),
        ("QEMU", host.get("qemu")),
        ("libvirt", host.get("libvirt")),
        ("perf", host.get("perf")),
        ("host kernel", host.get("kernel_release")),
        ("guest kernel", guest.get("kernel_release")),
        ("host system", host.get("os")),
        ("guest system", guest.get("os")),
        ("CPU", host.get("cpu_model")),
        ("microcode", host.get("microcode")),
        ("image", image and image.name),
        ("image, SHA-256", image and image.digest),
        ("collectors", costs_said(run) if run.plan.collect else None),
        (
            "each trial's time line",
            f"labctl timeline {run.name}" if level_of(run) == Level.TRACE else None,
        ),
    )
    return [(name, _short(str(value))) for name, value in named if value is not None]


@dataclass(frozen=True, slots=True)
class XmlDifference:
    """Hold `lines` of a unified diff without its header, or the `problem` that prevented it."""

    tuning: str
    lines: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """Show a metric that is missing in some trials. If the trials' reasons differ only in their
    numbers, `reason` has the range of each number."""

    metric: str
    reason: str
    trials: int
    tunings: tuple[str, ...]
    workloads: tuple[str, ...]


def missing(metrics: Iterable[MissingMetric]) -> list[Missing]:
    """Return the unavailable metrics, once for each kind of reason."""
    kinds: dict[tuple[str, str], list[MissingMetric]] = {}
    for item in metrics:
        kinds.setdefault((item.metric, _NUMBER.sub("#", item.reason)), []).append(item)
    return [
        Missing(
            metric,
            _short(_with_reach([item.reason for item in items])),
            sum(item.trials for item in items),
            tuple(dict.fromkeys(name for item in items for name in item.tunings)),
            tuple(dict.fromkeys(name for item in items for name in item.workloads)),
        )
        for (metric, _), items in list(kinds.items())[:_MOST_KINDS]
    ]


def _with_reach(reasons: list[str]) -> str:
    """Return "the trial has 1545 to 1980 samples" for texts that differ only in numbers."""
    numbers = zip(*(_NUMBER.findall(reason) for reason in reasons), strict=True)
    reaches = iter([sorted(set(found), key=_size) for found in numbers])

    def reach(_: re.Match[str]) -> str:
        found = next(reaches)
        return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"

    return _NUMBER.sub(reach, reasons[0])


def _size(number: str) -> tuple[int, str]:
    """Return the sort key of whole numbers of any length: a guest may print some that int()
    refuses."""
    return len(number.lstrip("0")), number.lstrip("0")


@dataclass(frozen=True, slots=True)
class InvalidTrial:
    """Show an invalid trial. `reasons`: with the logs below them, if any. `later`: whether a later
    attempt at the same trial was valid."""

    name: str
    block: int
    arm: str
    reasons: tuple[str, ...]
    later: bool

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return the reasons without their logs."""
        return tuple(without_logs(reason)[0] for reason in self.reasons)


def facts(run: LoadedRun) -> list[SettingRow]:
    """Return facts of host and guest side by side; nested facts have names like `cpu.model`."""
    host = dict(_flat(run.run.host))
    guest = dict(_flat(run.run.guest))
    keys = list(dict.fromkeys([*host, *guest]))[:_MOST_FACTS]
    return [SettingRow(key, host.get(key, ""), guest.get(key, "")) for key in keys]


def _flat(data: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
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


def _short(text: str, longest: int = _LONGEST_VALUE) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]} ({len(text) - longest} more characters)"


def _short_reason(reason: str) -> str:
    sentence, logs = without_logs(reason)
    return f"{_short(sentence)}\n{_short(logs, _LONGEST_LOGS)}" if logs else _short(sentence)


def xml_differences(run: LoadedRun, folder: Path, baseline: str) -> list[XmlDifference]:
    """Return the differences of each tuning's domain XML from the baseline's; [] if no XML was
    stored."""
    files = dict(run.run.xml)
    if baseline not in files:
        return []
    try:
        before = _xml_lines(folder, files.pop(baseline))
    except BrokenError as error:
        return [XmlDifference(baseline, problem=error.message)]
    found, room = [], _LARGEST_DIFFERENCES
    for name, place in files.items():
        difference = _xml_difference(name, before, folder, place)
        room -= sum(map(len, difference.lines))
        if room < 0:
            difference = XmlDifference(name, problem=f"Too long for this page: see {place}.")
        found.append(difference)
    return found


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


@dataclass(frozen=True, slots=True)
class InvalidKind:
    """Count the discarded trials of one arm by reason. `logs`: of the first trial that left any."""

    arm: str
    reason: str
    count: int
    logs: str = ""


def invalid_kinds(trials: Iterable[InvalidTrial]) -> list[InvalidKind]:
    """Return arms and reasons, the most frequent first: they show whether validity depends on the
    tuning.
    """
    tally: Counter[tuple[str, str]] = Counter()
    left: dict[tuple[str, str], str] = {}
    for trial in trials:
        for reason in trial.reasons or (NO_REASON,):
            sentence, logs = without_logs(reason)
            kind = trial.arm, sentence
            tally[kind] += 1
            left[kind] = left.get(kind) or logs
    return [InvalidKind(*kind, count, left[kind]) for kind, count in tally.most_common(_MOST_KINDS)]


def invalid_trials(run: LoadedRun) -> list[InvalidTrial]:
    """Return every discarded attempt, in plan order, with its reasons."""
    valid = {trial.record.number for trial in run.trials if trial.record.status is TrialStatus.DONE}
    records = [t.record for t in run.trials if t.record.status is TrialStatus.INVALID]
    records.sort(key=lambda record: (record.number, record.attempt))
    return [
        InvalidTrial(
            name=f"{record.number}, attempt {record.attempt}",
            block=record.block,
            arm=", ".join(str(level) for level in record.cell.values()),
            reasons=tuple(_short_reason(str(reason)) for reason in record.reasons),
            later=record.number in valid,
        )
        for record in records
    ]


def hashed(run: LoadedRun) -> Hashed:
    """Return the files that ran, from run.json; older versions recorded only programs."""
    found = run.run.hashed
    if not found:
        return Hashed(_AS_BUILT, _files(_of_programs(run.run.binaries)))
    by_side = {_SIDES["native"]: found.native, _SIDES["guest"]: found.guest}
    for name, other in found.images.items():
        by_side[f"{_SIDES['native']} in {name}"] = other.native
        by_side[f"{_SIDES['guest']} of {name}"] = other.guest
    sides = {words: side for words, side in by_side.items() if side}
    times = [f"{words} {counted(side.checks, 'time')}" for words, side in sides.items()]
    proof = _AS_RUN.format(times=" and ".join(times))
    return Hashed(
        proof,
        _files(
            (name, words, digest)
            for words, side in sides.items()
            for name, digest in side.files.items()
        ),
    )


def _of_programs(
    binaries: Mapping[str, Mapping[str, str | None]],
) -> Iterator[tuple[str, str, str]]:
    for name, digests in binaries.items():
        for side, digest in digests.items():
            yield name, _SIDES.get(side, side), str(digest)


def _files(found: Iterator[tuple[str, str, str]]) -> tuple[HashedFile, ...]:
    where: dict[tuple[str, str], list[str]] = {}
    for name, words, digest in found:
        where.setdefault((name, digest), []).append(words)
    return tuple(
        HashedFile(
            name[:_LONGEST_VALUE], " and ".join(sides)[:_LONGEST_VALUE], digest[:_LONGEST_VALUE]
        )
        for (name, digest), sides in sorted(where.items())[:_MOST_FILES]
    )
