"""Find the records of perf.data, a few megabytes at a time.

Records follow each other without holes, each with its size in its header (`struct
perf_event_header` of include/uapi/linux/perf_event.h), so the start of a record is known only from
the one before. Most are samples. Candidates are found by comparing whole arrays; a stretch of them
is accepted if each ends exactly where the next begins, from a known start of a record. If that
fails, one record is skipped, and the search is repeated. So no record is guessed.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import Gap, Nanoseconds
from labctl.trace.perf.head import Head, broken, refused

CHUNK_BYTES = 1 << 21
"""Many times the largest record (64 KiB). Arrays of four times this size exceed any CPU's own
cache, and with half of it the calls themselves take longer than their work."""

SAMPLE = 9
_SWITCH = 15  # PERF_RECORD_SWITCH_CPU_WIDE
_COMPRESSED, _COMPRESSED_2, _AUXTRACE = _REFUSED = 81, 83, 71
_KIND = 0xFFFFFFFF
_TYPES = range(1, 128)
"""Types are numbered from 1 on in perf_event.h, perf's own from 64 on
(tools/lib/perf/include/perf/event.h); newer ones are skipped."""

_SIZE_SHIFT = 48
_MOST_PLACES = 1 << 16
"""Size of the table of event numbers; others are searched for."""
_FEW = 64
"""Number of unusual records in a chunk, up to which each is examined."""
_NO_EVENT = np.int16(-1)

_Candidates = tuple[NDArray[np.int64], NDArray[np.int16], NDArray[np.int64]]
"""Starts of records, their events, their ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Locate a record that is not a sample of the file's events. `at` and `size` in words of the
    chunk."""

    kind: int
    misc: int
    at: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Hold a stretch of complete records. `samples`: where each begins, in `words`; `ends`: where
    the next record does; `events`: the index of its attr. `switches`: where records of context
    switches begin. `offset`: the stretch's place in the file, in bytes."""

    offset: int
    words: NDArray[np.uint64]
    samples: NDArray[np.int64]
    ends: NDArray[np.int64]
    events: NDArray[np.int16]
    switches: NDArray[np.int64]
    others: Sequence[Record]

    def byte(self, word: int) -> int:
        """Return the place in the file."""
        return self.offset + 8 * int(word)


def read_chunks(
    file: io.FileIO, head: Head, file_bytes: int, problems: list[str]
) -> Iterator[Chunk]:
    """Yield all records, in the file's order; each chunk is valid until the next one is requested.

    Adds a sentence to `problems` if the last record is truncated. Raises BrokenError, with the
    place, if a record is invalid.
    """
    buffer = bytearray(CHUNK_BYTES)
    at, end = head.data_start, min(head.data_end, file_bytes)
    finder = _Finder(head)
    while end - at >= 8:
        file.seek(at)
        size = file.readinto(memoryview(buffer)[: min(CHUNK_BYTES, end - at)])
        words = np.frombuffer(buffer, dtype="<u8", count=size // 8)
        chunk, used = finder.find(words, at)
        if used == 0:
            break
        yield chunk
        at += 8 * used
    if at < end:
        problems.append(
            f"The last record of '{head.where}', at byte {at:,}, is truncated: the records before "
            "it are complete."
        )


class _Finder:
    def __init__(self, head: Head) -> None:
        self.head = head
        self.ids, self.events_of_ids = head.ids
        # The kernel numbers events consecutively: a table look-up takes a sixth of a search.
        self.places: NDArray[np.int64] | None = None
        if len(self.ids) and (span := int(self.ids[-1] - self.ids[0])) < _MOST_PLACES:
            self.places = np.zeros(span + 1, dtype=np.int64)
            self.places[(self.ids - self.ids[0]).view("<i8")] = np.arange(len(self.ids))
        least = 1 + max(head.cpu_word, head.time_word, head.tid_word, head.id_word or 0)
        self.switch_bytes = 8 * (2 + len(head.trailer))
        # Of each attr; for records of switches, which belong to none, the last one applies.
        self.least_words = np.array(
            [*(max(least, attr.raw_word + 1) for attr in head.attrs), 0], dtype=np.int64
        )

    def find(self, words: NDArray[np.uint64], offset: int) -> tuple[Chunk, int]:
        """Return the complete records from the chunk's start on, and how many words they take."""
        kinds = words.astype(np.uint32)  # the lower half of a header's start
        found = self._nearly_all_usual(words, kinds, offset)
        return found if found is not None else self._any(words, kinds, offset)

    def _nearly_all_usual(
        self, words: NDArray[np.uint64], kinds: NDArray[np.uint32], offset: int
    ) -> tuple[Chunk, int] | None:
        """Return the result of `find` for a chunk of samples of the file's events, records of
        switches and few others; None for any other chunk.

        Samples and switches are searched for separately, without checking their order. None of them
        lies within another record, because each one ends where one begins, and all sizes add up to
        the place where the last one ends.
        """
        is_start = np.zeros(len(words) + 1, dtype=bool)
        is_start[-1] = True
        np.equal(kinds, SAMPLE, out=is_start[:-1])
        samples = np.flatnonzero(is_start[:-1])
        sizes = words.take(samples) >> np.uint64(_SIZE_SHIFT)
        lengths = (sizes >> np.uint64(3)).view("<i8")
        ends = samples + lengths
        events, is_whole = self._events(words, samples)
        is_whole &= (sizes & np.uint64(7) == 0) & (ends <= len(words))
        is_whole &= lengths >= self.least_words.take(events)
        if not is_whole.all():
            is_start[samples[~is_whole]] = False
            own = np.flatnonzero(is_whole)
            samples, ends, events = samples.take(own), ends.take(own), events.take(own)
        switches = samples[:0]
        switch_words = self.switch_bytes // 8
        if self.head.has_switches:
            switches = np.flatnonzero(kinds == _SWITCH)
            is_whole = words.take(switches) >> np.uint64(_SIZE_SHIFT) == self.switch_bytes
            is_whole &= switches + switch_words <= len(words)
            if not is_whole.all():
                switches = switches[is_whole]
            is_start[switches] = True
        switch_ends = switches + switch_words
        others: list[Record] = []
        used = len(words)
        if not (is_start[0] and is_start.take(ends).all() and is_start.take(switch_ends).all()):
            every_end = np.concatenate([[0], ends, switch_ends])
            holes = np.sort(every_end[~is_start.take(every_end)])
            if len(holes) > _FEW:
                return None
            for hole in holes.tolist():
                at = hole
                while not is_start[at]:
                    header = int(words[at])
                    if not _is_sound(header) or header & _KIND in _REFUSED:
                        return None
                    record = self._record(words, at, offset)
                    if at + record.size > len(words):
                        if used < len(words):
                            return None  # two cannot be truncated
                        used = at
                        break
                    others.append(record)
                    at += record.size
        size = int((ends - samples).sum()) + len(switches) * switch_words
        if size + sum(record.size for record in others) != used:
            return None
        chunk = Chunk(
            offset=offset,
            words=words,
            samples=samples,
            ends=ends,
            events=events,
            switches=switches,
            others=others,
        )
        return chunk, used

    def _any(
        self, words: NDArray[np.uint64], kinds: NDArray[np.uint32], offset: int
    ) -> tuple[Chunk, int]:
        starts, events, ends = self._candidates(words, kinds)
        breaks = np.flatnonzero(ends[:-1] != starts[1:]).tolist()
        breaks.append(len(starts) - 1)
        taken = np.zeros(len(starts), dtype=bool)
        others = []
        at = candidate = next_break = 0
        while at < len(words):
            while candidate < len(starts) and starts[candidate] < at:
                candidate += 1  # it looked like a sample within another record
            if candidate < len(starts) and starts[candidate] == at:
                while breaks[next_break] < candidate:
                    next_break += 1
                last = breaks[next_break]
                taken[candidate : last + 1] = True
                at, candidate = int(ends[last]), last + 1
                continue
            record = self._record(words, at, offset)
            if at + record.size > len(words):
                break
            others.append(record)
            at += record.size
        if not taken.all():
            starts, events, ends = starts[taken], events[taken], ends[taken]
        switches = np.zeros(0, dtype=np.int64)
        if self.head.has_switches:
            is_switch = events == _NO_EVENT
            switches = starts[is_switch]
            own = np.flatnonzero(~is_switch)
            starts, events, ends = starts[own], events[own], ends[own]
        chunk = Chunk(
            offset=offset,
            words=words,
            samples=starts,
            ends=ends,
            events=events,
            switches=switches,
            others=others,
        )
        return chunk, at

    def _candidates(self, words: NDArray[np.uint64], kinds: NDArray[np.uint32]) -> _Candidates:
        """Return candidates for complete samples, or records of switches, in order."""
        is_start = kinds == SAMPLE
        if self.head.has_switches:
            is_start |= kinds == _SWITCH
        starts = np.flatnonzero(is_start)
        sizes = (words[starts] >> np.uint64(_SIZE_SHIFT)).view("<i8")
        ends = starts + (sizes >> 3)
        events, whole = self._events(words, starts)
        if self.head.has_switches:
            is_switch = kinds[starts] == _SWITCH
            events[is_switch] = _NO_EVENT
            whole |= is_switch
            whole &= (sizes == self.switch_bytes) | ~is_switch
        whole &= (sizes & 7 == 0) & (ends <= len(words))
        whole &= ends - starts >= self.least_words.take(events)
        if whole.all():
            return starts, events, ends
        return starts[whole], events[whole], ends[whole]

    def _events(
        self, words: NDArray[np.uint64], starts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
        """Return the event of each sample that may begin there, and whether it exists."""
        if self.head.id_word is None:
            return np.zeros(len(starts), dtype=np.int16), np.ones(len(starts), dtype=bool)
        # One that begins so near the end that it has no id is not complete, either.
        ids = words.take(starts + self.head.id_word, mode="clip")
        if self.places is None:
            places = np.searchsorted(self.ids[1:], ids, side="right")
        else:
            places = self.places.take((ids - self.ids[0]).view("<i8"), mode="clip")
        return self.events_of_ids.take(places), self.ids.take(places) == ids

    def _record(self, words: NDArray[np.uint64], at: int, offset: int) -> Record:
        header = int(words[at])
        kind, misc, size = header & _KIND, header >> 32 & 0xFFFF, header >> 48
        where, byte = self.head.where, offset + 8 * at
        if kind in (_COMPRESSED, _COMPRESSED_2):
            refused(where, "holds compressed records, which labctl doesn't support")
        if kind == _AUXTRACE:
            refused(where, "holds hardware traces, which labctl doesn't support")
        if not _is_sound(header):
            broken(where, f"there is no record (type {kind}, {size} bytes)", byte)
        return Record(kind=kind, misc=misc, at=at, size=size // 8)


def _is_sound(header: int) -> bool:
    """Return whether a record may begin with this word."""
    kind, size = header & _KIND, header >> _SIZE_SHIFT
    return kind in _TYPES and size >= 8 and size % 8 == 0


# Find where perf lost events: between which two of the same CPU, and how many.


MAX_CPUS = 1 << 16
_NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Hold a PERF_RECORD_LOST: at this place of the file `count` records of this CPU are
    missing."""

    at: int
    cpu: int
    count: int


class Gaps:
    """Find gaps. A CPU's records are in the file in the order of its own buffer, so its samples on
    either side of a loss bound it. Times do not: the time of a PERF_RECORD_LOST is taken after that
    of the sample that it precedes (perf_output_begin in kernel/events/ring_buffer.c)."""

    def __init__(self) -> None:
        self._last = np.full(MAX_CPUS, _NEVER, dtype=np.int64)
        self._found: list[tuple[int, int, int | None, int]] = []
        self._open: list[tuple[int, int, int]] = []  # no sample of the CPU has followed yet
        self._counted: Counter[int] = Counter()
        self._said: Counter[int] = Counter()

    def take(
        self,
        losses: Sequence[Loss],
        at: NDArray[np.int64],
        times: Nanoseconds,
        cpus: NDArray[np.int32],
    ) -> None:
        """Process the file's next records: losses, and samples at the ascending places `at`."""
        if losses or self._open:
            self._place(losses, at, times, cpus)
        if len(cpus) and (cpus == cpus[0]).all():
            self._last[cpus[0]] = times[-1]
        else:
            self._last[cpus] = times  # for equal indices the last one applies

    def _place(
        self,
        losses: Sequence[Loss],
        at: NDArray[np.int64],
        times: Nanoseconds,
        cpus: NDArray[np.int32],
    ) -> None:
        affected = {loss.cpu for loss in losses} | {cpu for cpu, _, _ in self._open}
        own = {cpu: np.flatnonzero(cpus == cpu) for cpu in affected}
        still_open = []
        for cpu, start, count in self._open:
            if len(own[cpu]):
                self._found.append((cpu, start, int(times[own[cpu][0]]), count))
            else:
                still_open.append((cpu, start, count))
        self._open = still_open
        for loss in losses:
            self._counted[loss.cpu] += loss.count
            mine = own[loss.cpu]
            following = int(np.searchsorted(at[mine], loss.at))
            before = times[mine[following - 1]] if following else self._last[loss.cpu]
            if following < len(mine):
                end = int(times[mine[following]])
                self._found.append((loss.cpu, int(before), end, loss.count))
            else:
                self._open.append((loss.cpu, int(before), loss.count))

    def lost_in_all(self, cpu: int, count: int) -> None:
        """Process perf's final sum of the losses of one event on a CPU: it includes
        PERF_RECORD_LOST and later losses."""
        self._said[cpu] += count

    def gaps(self, start_ns: int, end_ns: int) -> tuple[Gap, ...]:
        """Return the gaps in order of time. `start_ns`, `end_ns`: of the trace, if no sample bounds
        a gap."""
        unbounded = [
            (cpu, int(self._last[cpu]), None, said - self._counted[cpu])
            for cpu, said in self._said.items()
            if said > self._counted[cpu]
        ]
        after = [(cpu, start, None, count) for cpu, start, count in self._open]
        found = []
        for cpu, start, end, count in [*self._found, *after, *unbounded]:
            first = start_ns if start == _NEVER else start
            last = end_ns if end is None else end
            # An interrupt's event may precede, in the file, the event that it interrupted.
            found.append(
                Gap(cpu=cpu, start_ns=min(first, last), end_ns=max(first, last), count=count)
            )
        return tuple(sorted(found, key=lambda gap: (gap.start_ns, gap.end_ns, gap.cpu)))
