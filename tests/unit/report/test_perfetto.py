"""Perfetto's format, read back by the numbers that its documentation gives to the fields
(https://perfetto.dev/docs/reference/trace-packet-proto), without the package that wrote it."""

from __future__ import annotations

import io
from collections import defaultdict
from dataclasses import replace
from typing import Any

from labctl.report.timeline import timeline_words as words
from labctl.report.timeline.perfetto import write_perfetto
from labctl.trace.model import Gap
from labctl.trace.timeline.lanes import Timeline
from tests.unit.report.test_timeline import HOSTILE, MS, late, small
from tools.bench.timelines import made_up

PACKET = 1
TIMESTAMP, SEQUENCE, EVENT, DESCRIPTOR = 8, 10, 11, 60
EVENT_NOTES, EVENT_TYPE, EVENT_TRACK, EVENT_NAME = 4, 9, 11, 23
TRACK, TRACK_NAME, TRACK_PARENT, TRACK_ORDER, TRACK_RANK = 1, 2, 5, 11, 12
BY_RANK = 3
BEGIN, END = 1, 2
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

CPU = "CPU 0 of the trial"
Fields = dict[int, list[Any]]


def decoded(data: bytes) -> Fields:
    """A message's fields by number (https://protobuf.dev/programming-guides/encoding/)."""
    fields: Fields = defaultdict(list)
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == _VARINT:
            fields[key >> 3].append(varint())
            continue
        size = varint() if kind == _LENGTH else {_FIXED64: 8, _FIXED32: 4}[kind]
        fields[key >> 3].append(data[at : at + size])
        at += size
    assert at == len(data)
    return fields


def written(timeline: Timeline) -> tuple[dict[int, tuple[str, int | None]], list[Fields]]:
    """Tracks (name and parent) by their number, and the packets of events in order."""
    file = io.BytesIO()
    write_perfetto(timeline, file)
    tracks, events = {}, []
    for data in decoded(file.getvalue())[PACKET]:
        packet = decoded(data)
        assert packet[SEQUENCE] == [1]
        if DESCRIPTOR in packet:
            track = decoded(packet[DESCRIPTOR][0])
            assert track[TRACK_ORDER] == [BY_RANK]
            assert track[TRACK_RANK] == [len(tracks) + 1]
            parent = track[TRACK_PARENT][0] if track[TRACK_PARENT] else None
            tracks[track[TRACK][0]] = (track[TRACK_NAME][0].decode(), parent)
        else:
            events.append(packet)
    return tracks, events


def slices(timeline: Timeline) -> dict[tuple[str, ...], list[tuple[int, int, str]]]:
    """Start, end and name of a track's slices, by the names of the track and its parent. Asserts
    that each begins and ends, and that none overlap."""
    tracks, events = written(timeline)
    found: dict[tuple[str, ...], list[tuple[int, int, str]]] = defaultdict(list)
    begun: dict[int, tuple[int, str]] = {}
    last: dict[int, int] = {}
    for packet in events:
        event = decoded(packet[EVENT][0])
        (track,), (kind,), (at,) = event[EVENT_TRACK], event[EVENT_TYPE], packet[TIMESTAMP]
        assert at >= last.get(track, 0)
        last[track] = at
        if kind == BEGIN:
            assert track not in begun
            begun[track] = at, event[EVENT_NAME][0].decode()
        else:
            assert kind == END
            start, name = begun.pop(track)
            own, parent = tracks[track]
            path = (own,) if parent is None else (tracks[parent][0], own)
            found[path].append((start, at, name))
    assert not begun
    return found


def test_every_span_and_mark_is_a_slice_of_its_track() -> None:
    assert slices(small()) == {
        (CPU, "vCPU 0, on its host"): [
            (0, 4 * MS, "running the guest"),
            (4 * MS, 9 * MS, "waiting for a CPU: stress-ng"),
            (9 * MS, 10 * MS, "handling an exit: MSR_WRITE"),
            (12 * MS, 20 * MS, "halted"),
        ],
        (CPU, "CPU 0, inside the guest, ± 35.0 µs"): [
            (0, 10 * MS, "running a task: cyclictest"),
            (10 * MS, 20 * MS, "running a task: kworker/0:1"),
        ],
        (CPU, "late wake-ups"): [
            (4 * MS, 9 * MS, "5.00 ms late"),
            (15 * MS, 16 * MS, "1.00 ms late"),
        ],
        (CPU, "suspects"): [(4 * MS, 9 * MS, "double scheduling")],
        ("lost events",): [(10 * MS, 12 * MS, "77 lost events")],
    }


def test_a_late_wake_up_says_what_its_time_went_to() -> None:
    _, events = written(small())
    wanted = [
        event
        for event in (decoded(packet[EVENT][0]) for packet in events)
        if event[EVENT_NAME] == [b"5.00 ms late"]
    ]
    notes = [decoded(note) for note in wanted[0][EVENT_NOTES]]
    said = {note[10][0].decode(): (note[4] or note[6])[0] for note in notes}
    assert said == {
        "host_ns": 4 * MS,
        "exit_ns": 0,
        "queue_ns": 0,
        "other_ns": 1 * MS,
        "task": b"cyclictest",
        "culprit": b"stress-ng (host)",
    }


def test_what_a_guests_recorder_lost_has_a_track_with_the_clocks_bound() -> None:
    gaps = (Gap(cpu=0, start_ns=3 * MS, end_ns=4 * MS, count=5),)
    found = slices(replace(small(), guest_gaps=gaps))
    assert found["lost in the guest, ± 35.0 µs",] == [(3 * MS, 4 * MS, "5 lost events")]


def test_late_wake_ups_that_overlap_have_tracks_of_their_own() -> None:
    two = replace(small(), late=(late(4, 5 * MS, 0), late(6, 5 * MS, 0), late(12, MS, 0)))
    tracks, _ = written(two)
    assert [name for name, _ in tracks.values()].count("late wake-ups") == 2
    assert len(slices(two)[CPU, "late wake-ups"]) == 3


def test_no_span_is_left_out_of_a_long_trace() -> None:
    timeline = made_up(seconds=0.5)
    found = slices(timeline)
    for one in timeline.lanes:
        bound = f", ± {words.nanoseconds(timeline.clock_error_ns or 0)}"
        side = ", on its host" if one.side == "host" else f", inside the guest{bound}"
        own = found[f"CPU {one.vcpu} of the trial", one.title + side]
        assert [row[0] for row in own] == one.start_ns.tolist()
        assert [row[1] for row in own] == one.end_ns.tolist()


def test_names_of_a_hostile_guest_hold_no_control_characters() -> None:
    base = small()
    lanes = tuple(replace(one, details=tuple(HOSTILE for _ in one.details)) for one in base.lanes)
    names = [name for rows in slices(replace(base, lanes=lanes)).values() for _, _, name in rows]
    assert any("</script>" in name for name in names)
    assert not any("\x1b" in name or "\u202e" in name for name in names)
