"""Define metrics of a stream of frames that shares a narrow link."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.base.metrics.row import Metric, Page
from labctl.base.units import Better, Unit


def _by_phase(name: str, says: str) -> Mapping[str, str]:
    return {
        name: f"game-stream, the middle third of the trial, with the competitor if there is one: "
        f"{says}",
        f"{name}{{phase=alone|after}}": "the same in the third before and the third after it",
    }


STREAM = (
    Metric(
        "stream_bitrate",
        Unit.BITS_PER_SECOND,
        Better.HIGHER,
        _by_phase("stream_bitrate", "what arrived, Ethernet's header included"),
        title="stream's bitrate",
        page=Page.LARGE,
        felt=True,
    ),
    Metric(
        "stream_rtt",
        Unit.SECONDS,
        Better.LOWER,
        _by_phase("stream_rtt", "mean of ten echoes a second; one that is lost has none"),
        title="stream's round trip",
        page=Page.LARGE,
        felt=True,
    ),
    Metric(
        "stream_rtt_p50",
        Unit.SECONDS,
        Better.LOWER,
        _by_phase("stream_rtt_p50", "the same, median"),
        title="stream's p50 round trip",
    ),
    Metric(
        "stream_rtt_p95",
        Unit.SECONDS,
        Better.LOWER,
        _by_phase("stream_rtt_p95", "the same, p95, of 400 echoes or more"),
        title="stream's p95 round trip",
    ),
    Metric(
        "stream_loss",
        Unit.FRACTION,
        Better.LOWER,
        _by_phase("stream_loss", "share of packets that didn't arrive, by their numbers"),
        title="stream's loss",
        felt=True,
    ),
    Metric(
        "stream_frame_rate",
        Unit.PER_SECOND,
        Better.HIGHER,
        _by_phase("stream_frame_rate", "frames of which every packet arrived"),
        title="stream's whole frames",
        page=Page.LARGE,
        felt=True,
    ),
    Metric(
        "stream_late",
        Unit.FRACTION,
        Better.LOWER,
        _by_phase(
            "stream_late",
            "share of whole frames that came more than two frames' time later than the trial's "
            "promptest",
        ),
        title="stream's late frames",
        felt=True,
    ),
    Metric(
        "competitor_bitrate",
        Unit.BITS_PER_SECOND,
        Better.NEITHER,
        "game-stream: what else arrived where the stream does, in the middle third",
        title="competitor's bitrate",
    ),
    Metric(
        "bitrate_difference",
        Unit.FRACTION,
        Better.NEITHER,
        "game-stream, the middle third: (stream's bitrate − competitor's) ÷ the link's",
        title="normalised bitrate difference",
        page=Page.LARGE,
    ),
    Metric(
        "jain_index",
        Unit.FRACTION,
        Better.HIGHER,
        "game-stream, the middle third: (x₁ + x₂)² ÷ 2 (x₁² + x₂²) of the two bitrates: 1 where "
        "they are equal, ½ where one has all",
        title="Jain's index",
        page=Page.LARGE,
    ),
    Metric(
        "stream_response",
        Unit.SECONDS,
        Better.LOWER,
        "game-stream: from the competitor's beginning to the end of the first half second whose "
        "bitrate is within 10 % of the mean of the middle third's second half",
        title="stream's response",
    ),
    Metric(
        "stream_recovery",
        Unit.SECONDS,
        Better.LOWER,
        "game-stream: the same from the competitor's end, in the last third",
        title="stream's recovery",
    ),
)
