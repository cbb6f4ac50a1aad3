"""Write a time line in Perfetto's format: https://perfetto.dev/docs/getting-started/converting"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TypeVar

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    Trace,
    TrackDescriptor,
    TrackEvent,
)

from labctl.base.wording import printable
from labctl.report.timeline import timeline_words as words
from labctl.report.timeline.timeline_page import title_of
from labctl.trace.timeline.lanes import Lane, Late, State, Suspect, Timeline

_PACKETS = 10_000
"""Most that is held in memory at a time."""
_SEQUENCE = 1
_STATES = tuple(State)

Marked = TypeVar("Marked", Late, Suspect)


@dataclass(frozen=True, slots=True)
class Slice:
    """Describe a named stretch of a track. `facts`: details that Perfetto shows."""

    start_ns: int
    end_ns: int
    name: str
    facts: tuple[tuple[str, int | str], ...] = ()


def write_perfetto(timeline: Timeline, file: IO[bytes]) -> None:
    """Write all spans and marks. Times are of the host's CLOCK_MONOTONIC, the trace's clock.

    A track per vCPU (natively per CPU) holds its lanes, late wake-ups and suspects; each side has a
    track for lost events. The name of a guest's lane has the error bound of its times.
    """
    error = timeline.clock_error_ns
    bound = "" if error is None else f", ± {words.nanoseconds(error)}"
    writer = _Writer(file)
    for vcpu in sorted({lane.vcpu for lane in timeline.lanes}, key=lambda vcpu: (vcpu < 0, vcpu)):
        parent = writer.track(f"CPU {vcpu} of the trial" if vcpu >= 0 else "other threads")
        for lane in sorted(timeline.lanes, key=lambda lane: lane.side != "host"):
            if lane.vcpu == vcpu:
                name = title_of(lane) + (bound if lane.side == "guest" else "")
                writer.slices(name, parent, _spans(lane))
        late = [_late(one) for one in timeline.late if one.vcpu == vcpu]
        suspects = [_suspect(one) for one in timeline.suspects if one.vcpu == vcpu]
        for name, marks in (("late wake-ups", late), ("suspects", suspects)):
            for row in _apart(marks):
                writer.slices(name, parent, row)
    for name, gaps in (
        ("lost events", timeline.gaps),
        (f"lost in the guest{bound}", timeline.guest_gaps),
    ):
        for row in _apart([Slice(g.start_ns, g.end_ns, f"{g.count} lost events") for g in gaps]):
            writer.slices(name, None, row)
    writer.flush()


def _spans(lane: Lane) -> Iterator[Slice]:
    names = [
        [f"{state}: {printable(detail)}" if detail else str(state) for detail in lane.details]
        for state in _STATES
    ]
    columns = (lane.start_ns, lane.end_ns, lane.state, lane.detail)
    for start, end, state, detail in zip(*(c.tolist() for c in columns), strict=True):
        yield Slice(start, end, names[state][detail])


def _late(late: Late) -> Slice:
    facts: list[tuple[str, int | str]] = [
        (f"{name}_ns", part)
        for (name, _), part in zip(words.PARTS, words.parts_of(late), strict=True)
    ]
    facts += [("task", printable(late.task)), ("culprit", printable(late.culprit))]
    name = f"{words.nanoseconds(late.latency_ns)} late"
    return Slice(late.at_ns, late.at_ns + late.latency_ns, name, tuple(facts))


def _suspect(one: Suspect) -> Slice:
    text = (("seen", printable(one.text)),)
    return Slice(one.start_ns, one.end_ns, printable(one.kind), text)


def _apart(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Split slices into rows without overlaps: slices of one track must nest."""
    rows: list[list[Slice]] = []
    for one in sorted(slices, key=lambda one: one.start_ns):
        free = next((row for row in rows if row[-1].end_ns <= one.start_ns), None)
        if free is None:
            rows.append([one])
        else:
            free.append(one)
    return rows


class _Writer:
    """Batch packets: consecutive messages of one kind form one message."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._batch = Trace()
        self._tracks = 0

    def track(self, name: str, parent: int | None = None) -> int:
        """Return the track's number. Perfetto shows tracks in the order of their creation."""
        self._tracks += 1
        packet = self._batch.packet.add(trusted_packet_sequence_id=_SEQUENCE)
        packet.track_descriptor.uuid = self._tracks
        packet.track_descriptor.name = printable(name)
        packet.track_descriptor.child_ordering = TrackDescriptor.EXPLICIT
        packet.track_descriptor.sibling_order_rank = self._tracks
        if parent is not None:
            packet.track_descriptor.parent_uuid = parent
        return self._tracks

    def slices(self, name: str, parent: int | None, slices: Iterator[Slice] | list[Slice]) -> None:
        track = self.track(name, parent)
        for one in slices:
            self._event(one.start_ns, track, TrackEvent.TYPE_SLICE_BEGIN, one)
            self._event(one.end_ns, track, TrackEvent.TYPE_SLICE_END, None)

    def _event(self, at_ns: int, track: int, kind: int, one: Slice | None) -> None:
        packet = self._batch.packet.add(timestamp=at_ns, trusted_packet_sequence_id=_SEQUENCE)
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        if one is not None:
            event.name = one.name
            for name, value in one.facts:
                note = event.debug_annotations.add(name=name)
                if isinstance(value, int):
                    note.int_value = value
                else:
                    note.string_value = value
        if len(self._batch.packet) >= _PACKETS:
            self.flush()

    def flush(self) -> None:
        self._file.write(self._batch.SerializeToString())
        self._batch = Trace()
