"""Read the record of one run of the workload game-stream."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from labctl.base.errors import BrokenError
from labctl.base.json import parse_json

FILE: Final = "stream.json"
PHASES: Final = ("alone", "middle", "after")
"""Thirds of a run."""
NO_COMPETITOR: Final = "none"

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecord:
    """Hold a run: bitrates by bin of `bin_s` seconds, in bit/s, and packets; echoes as (seconds
    since the begin, round trip in seconds); by frame, when its last packet arrived, None for an
    incomplete one. `capacity_bit`: the link's rate, None for one without a limit."""

    seconds: int
    hz: int
    competitor: str
    capacity_bit: float | None
    bin_s: float
    stream_bit: tuple[float, ...]
    competitor_bit: tuple[float, ...]
    received: tuple[int, ...]
    lost: tuple[int, ...]
    echoes: tuple[tuple[float, float], ...]
    frames: tuple[float | None, ...]

    @property
    def has_competitor(self) -> bool:
        return self.competitor != NO_COMPETITOR

    def bins(self, phase: str) -> slice:
        """Return the bins of a third."""
        return _third(PHASES.index(phase), len(self.stream_bit))

    def frame_numbers(self, phase: str) -> range:
        """Return the frames that are due in a third."""
        third = _third(PHASES.index(phase), self.seconds * self.hz)
        return range(third.start, third.stop)

    def round_trips(self, phase: str) -> list[float]:
        """Return the round trips of echoes sent in a third, in seconds."""
        number = PHASES.index(phase)
        length = self.seconds / len(PHASES)
        return [s for at, s in self.echoes if number * length <= at < (number + 1) * length]

    def lateness(self, phase: str) -> list[float]:
        """Return how much later than the fastest of the run each complete frame of a third came, in
        seconds. The offset between the two machines' clocks cancels out."""
        after_due = {n: end - n / self.hz for n, end in enumerate(self.frames) if end is not None}
        least = min(after_due.values(), default=0.0)
        due = self.frame_numbers(phase)
        return [late - least for number, late in after_due.items() if number in due]


def read_stream(text: str | bytes, where: str) -> StreamRecord:
    """Return a run's record. Raises BrokenError that begins with `where` for anything else."""
    try:
        found = parse_json(text)
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']!r}, and {_VERSION} is known")
        received = found["received"]
        bin_s = _positive(received["bin_s"])
        bins = [tuple(map(_count, row)) for row in received["bins"]]
        capacity_mbit = _finite(found["capacity_mbit"])
        record = StreamRecord(
            seconds=_count(found["seconds"]),
            hz=_count(found["hz"]),
            competitor=str(found["competitor"]),
            capacity_bit=capacity_mbit * 1e6 if capacity_mbit > 0 else None,
            bin_s=bin_s,
            stream_bit=tuple(row[0] * 8 / bin_s for row in bins),
            competitor_bit=tuple(row[1] * 8 / bin_s for row in bins),
            received=tuple(row[2] for row in bins),
            lost=tuple(row[3] for row in bins),
            echoes=tuple((_finite(at), _positive(ms) / 1000) for at, ms in found["rtt"]),
            frames=tuple(None if end is None else _finite(end) for end in received["frames"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        raise BrokenError(
            f"{where}: expected game_stream's record (version {_VERSION}), found something else "
            f"({error!r})"
        ) from error
    _check(record, where)
    return record


def _check(record: StreamRecord, where: str) -> None:
    bins = len(record.stream_bit)
    has_all = abs(record.seconds / record.bin_s - bins) <= 0.5
    if record.seconds < len(PHASES) or record.hz < 1 or not has_all:
        raise BrokenError(
            f"{where}: {len(record.stream_bit)} bins of {record.bin_s:g} s in {record.seconds} s"
        )
    if len(record.frames) > record.seconds * record.hz:
        raise BrokenError(f"{where}: {len(record.frames)} frames in {record.seconds} s")


def _third(number: int, length: int) -> slice:
    return slice(number * length // len(PHASES), (number + 1) * length // len(PHASES))


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no time or rate")
    return number


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{value!r} is not above 0")
    return number
