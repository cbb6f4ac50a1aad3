"""The reader of game-stream's record: what game_stream wrote, cut, damaged, and made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.store.samples import Sample, Unavailable
from labctl.workloads.readers.stream import METRICS, readings
from tests.unit.streams import record

RECORDED = Path(__file__).parents[1] / "fixtures" / "game-stream"
NAMES = sorted(path.name for path in RECORDED.glob("*.json"))


def _read(found: dict[str, object]) -> tuple[dict[str, float], dict[str, str]]:
    read = [*readings(json.dumps(found), "stream.json", "files/stream.json")]
    samples = {one.key: one.value for one in read if isinstance(one, Sample)}
    return samples, {one.metric: one.reason for one in read if isinstance(one, Unavailable)}


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_run_has_every_metric_or_says_why_not(name: str) -> None:
    text = (RECORDED / name).read_text()
    read = [*readings(text, name, name)]
    told = {one.metric for one in read}
    assert {metric for metric in METRICS if metric not in told} == set()
    found = json.loads(text)
    both, capacity_mbit = found["competitor"] != "none", found["capacity_mbit"]
    values = {one.key: one.value for one in read if isinstance(one, Sample)}
    assert ("jain_index" in values) is both
    if both and capacity_mbit:
        # Counted as the bottleneck counts.
        together = values["stream_bitrate"] + values["competitor_bitrate"]
        assert together <= capacity_mbit * 1e6 * 1.05
        assert 0.5 <= values["jain_index"] <= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_record_that_is_cut_is_refused(name: str) -> None:
    text = (RECORDED / name).read_text()
    for length in (0, 1, len(text) // 2, len(text) - 3):
        with pytest.raises(BrokenError, match="game_stream's record"):
            [*readings(text[:length], name, name)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found["received"]["frames"].__setitem__(0, float("nan")),
        lambda found: found["rtt"].append([float("inf"), 12.0]),
        lambda found: found.update(capacity_mbit=float("nan")),
        lambda found: found["received"].update(bin_s=1e-320),
    ],
)
def test_what_is_no_finite_number_is_refused(damage: Callable[[dict[str, Any]], None]) -> None:
    found: dict[str, Any] = record([12.0] * 12, [0.0] * 12)
    damage(found)
    with pytest.raises(BrokenError, match="stream"):
        _read(found)


def test_a_rate_of_frames_that_nothing_has_takes_no_time() -> None:
    found: dict[str, Any] = record([12.0] * 12, [1.0] * 12)
    found["hz"] = 10**12
    assert "stream_late" in {*_read(found)[0], *_read(found)[1]}


def test_fairness_is_of_the_middle_third() -> None:
    values, _ = _read(record([12.0] * 4 + [10.0] * 4 + [12.0] * 4, [0.0] * 4 + [5.0] * 8))
    # (10 + 5)² / 2 (100 + 25), and (10 - 5) / 15
    assert values["jain_index"] == pytest.approx(0.9)
    assert values["bitrate_difference"] == pytest.approx(1 / 3)
    assert values["stream_bitrate"] == pytest.approx(10e6)
    assert values["stream_bitrate{phase=alone}"] == pytest.approx(12e6)


def test_response_and_recovery_count_from_where_the_thirds_meet() -> None:
    values, _ = _read(record([12, 12, 12, 12, 12, 8, 5, 5, 5, 8, 10, 10], [1.0] * 12))
    assert values["stream_response"] == 1.5
    assert values["stream_recovery"] == 1.5


def test_a_competitor_that_sent_nothing_is_no_competition() -> None:
    with pytest.raises(BrokenError, match="competitor cubic sent nothing"):
        _read(record([12.0] * 12, [0.0] * 12))


def test_alone_there_is_nothing_to_share() -> None:
    values, missing = _read(record([12.0] * 12))
    for metric in ("jain_index", "bitrate_difference", "stream_response", "competitor_bitrate"):
        assert metric not in values
        assert missing[metric] == "the stream has no competitor"


def test_a_link_without_a_limit_has_no_difference_but_an_index() -> None:
    values, missing = _read(record([10.0] * 12, [10.0] * 12, capacity_mbit=0))
    assert values["jain_index"] == pytest.approx(1)
    assert "no rate limit" in missing["bitrate_difference"]


def test_a_frame_is_late_two_frames_after_the_promptest() -> None:
    frames = [n / 60 + 0.02 for n in range(360)]
    frames[150] += 0.030
    frames[151] += 0.040
    values, _ = _read(record([10.0] * 12, received=_received(frames)))
    # Frames 120 to 239 are the middle third's.
    assert values["stream_late"] == pytest.approx(1 / 120)
    assert values["stream_frame_rate"] == 60


def test_a_frame_that_is_not_whole_is_none() -> None:
    frames: list[float | None] = [n / 60 + 0.02 for n in range(360)]
    frames[130:160] = [None] * 30
    values, _ = _read(record([10.0] * 12, received=_received(frames)))
    assert values["stream_frame_rate"] == 45


def _received(frames: list[float] | list[float | None]) -> dict[str, object]:
    return {**record([10.0] * 12)["received"], "frames": frames}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 2),
        ("seconds", 7),
        ("seconds", -6),
        ("hz", True),
        ("rtt", [[0, -1]]),
        ("rtt", []),
        ("capacity_mbit", "wide"),
        ("received", None),
        ("received", {"bin_s": 0, "bins": [], "frames": []}),
        ("received", {"bin_s": 0.5, "bins": [[1, 2, 3]] * 12, "frames": []}),
        ("received", {"bin_s": 0.5, "bins": [[0, 0, 0, 0]] * 12, "frames": []}),
    ],
)
def test_what_no_sender_writes_is_refused(key: str, value: object) -> None:
    with pytest.raises(BrokenError, match=r"stream\.json"):
        _read(record([10.0] * 12, **{key: value}))
