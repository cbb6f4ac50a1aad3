"""Read the record of the workload game-stream: its bitrate, delay and frames by thirds of a run,
and its share of the link in the middle one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

import numpy as np

from labctl.base.errors import BrokenError
from labctl.base.link import bitrate_difference, jain_index, settling_s
from labctl.base.stream_record import PHASES, StreamRecord, read_stream
from labctl.base.units import samples_needed
from labctl.store.samples import Reading, Unavailable, sample, sample_key

METRICS = (
    *("stream_rtt", "stream_rtt_p50", "stream_rtt_p95", "stream_bitrate", "stream_loss"),
    *("stream_frame_rate", "stream_late", "competitor_bitrate", "bitrate_difference"),
    *("jain_index", "stream_response", "stream_recovery"),
)
_LATE_FRAMES = 2
"""Duration, in frames, after which a player that buffers two has none left."""
_LEAST_BIT = 50_000
"""Minimum bitrate of a competitor that sends: the stream's control connection and echoes have
less."""
_PERCENTILES = {"stream_rtt_p50": 0.5, "stream_rtt_p95": 0.95}
_OF_TWO = ("competitor_bitrate", "bitrate_difference", "jain_index")
_OF_CHANGE = ("stream_response", "stream_recovery")


def readings(text: str, where: str, source: str) -> Iterator[Reading]:
    """Yield every metric of a record. Those of the middle third have no label. Raises BrokenError
    naming `where`."""
    record = read_stream(text, where)
    for phase in PHASES:
        labels = {} if phase == "middle" else {"phase": phase}
        yield from _of_phase(record, phase, labels, where, source)
    yield from _shared(record, where, source)


def _of_phase(
    record: StreamRecord, phase: str, labels: dict[str, str], where: str, source: str
) -> Iterator[Reading]:
    bins = record.bins(phase)
    packets = sum(record.received[bins]) + sum(record.lost[bins])
    if not packets:
        raise BrokenError(f"{where}: no packet arrived in the phase '{phase}'")
    round_trips = record.round_trips(phase)
    if not round_trips:
        raise BrokenError(f"{where}: no echo came back in the phase '{phase}'")

    def one(metric: str, value: float) -> Reading:
        return sample(metric, value, labels=labels, source=source)

    yield one("stream_rtt", fmean(round_trips))
    for metric, q in _PERCENTILES.items():
        needed = samples_needed(q)
        if len(round_trips) < needed:
            yield Unavailable(
                metric=sample_key(metric, labels),
                reason=f"{len(round_trips)} echoes came back, but {needed} are needed",
            )
        else:
            yield one(metric, float(np.quantile(round_trips, q)))
    yield one("stream_bitrate", fmean(record.stream_bit[bins]))
    yield one("stream_loss", sum(record.lost[bins]) / packets)
    lateness = record.lateness(phase)
    length_s = record.seconds / len(PHASES)
    yield one("stream_frame_rate", len(lateness) / length_s)
    if lateness:
        late = sum(by > _LATE_FRAMES / record.hz for by in lateness)
        yield one("stream_late", late / len(lateness))
    else:
        key = sample_key("stream_late", labels)
        yield Unavailable(metric=key, reason="no complete frame arrived")


def _shared(record: StreamRecord, where: str, source: str) -> Iterator[Reading]:
    if not record.has_competitor:
        for metric in (*_OF_TWO, *_OF_CHANGE):
            yield Unavailable(metric=metric, reason="the stream has no competitor")
        return
    bins = record.bins("middle")
    ours, others = fmean(record.stream_bit[bins]), fmean(record.competitor_bit[bins])
    if others < _LEAST_BIT:
        raise BrokenError(
            f"{where}: the competitor {record.competitor} sent nothing. The trial's "
            "competitor.txt has the output of iperf3"
        )
    yield sample("competitor_bitrate", others, source=source)
    if record.capacity_bit is None:
        reason = "the link has no rate limit to compare with"
        yield Unavailable(metric="bitrate_difference", reason=reason)
    else:
        difference = bitrate_difference(ours, others, record.capacity_bit)
        yield sample("bitrate_difference", difference, source=source)
    index = jain_index([ours, others])
    if index is not None:
        yield sample("jain_index", index, source=source)
    yield _settling("stream_response", record.stream_bit[bins], record.bin_s, source)
    after = record.stream_bit[record.bins("after")]
    yield _settling("stream_recovery", after, record.bin_s, source)


def _settling(metric: str, rates: Sequence[float], bin_s: float, source: str) -> Reading:
    found = settling_s(rates, bin_s)
    if found is None:
        reason = "no half second came within a tenth of the steady bitrate"
        return Unavailable(metric=metric, reason=reason)
    return sample(metric, found, source=source)
