"""A guest's clock put on the host's: the bound holds, and what is no steady clock is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from labctl.base.channel import ClockReading
from labctl.base.errors import BrokenError
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.clocks import ClockMap, clock_map, stored_clock_map, to_json

MS = 1_000_000
S = 1000 * MS
UPTIME_S = 40 * 24 * 3600
"""The host's: its clock has more digits than a float of nanoseconds."""

Clock = Callable[[int], int]
"""From the host's moments to what the guest's clock says."""


def steady(ppm: float, started_s: float = UPTIME_S - 100) -> Clock:
    """A guest that started at that moment of the host's."""
    origin = round(started_s * S)
    return lambda host_ns: (host_ns - origin) + round((host_ns - origin) * ppm / 1e6)


def read(
    clock: Clock,
    *,
    seed: int = 1,
    window_s: float = 10.0,
    ways_ns: tuple[int, int] = (200_000, 3 * MS),
    count: int = 20,
) -> list[ClockReading]:
    """Readings before and after a window; each way takes a time between those two, at random."""
    dice = random.Random(seed)
    now = UPTIME_S * S
    found = []
    for pause_s in (window_s, 0):
        for _ in range(count):
            asked = now
            at = asked + dice.randint(*ways_ns)
            now = at + dice.randint(*ways_ns)
            found.append(ClockReading(asked, clock(at), now))
        now += round(pause_s * S)
    return found


def mapped(readings: list[ClockReading]) -> ClockMap:
    found = clock_map(readings)
    assert isinstance(found, ClockMap), found
    return found


def worst_error_ns(found: ClockMap, clock: Clock, readings: list[ClockReading]) -> int:
    """How far off the map is, at most, over moments all along the trial."""
    host = np.linspace(0, readings[-1].answered_ns - readings[0].asked_ns, 200).astype(np.int64)
    host += readings[0].asked_ns
    guest = np.array([clock(int(moment)) for moment in host])
    inside = (found.at_ns <= guest) & (guest <= found.until_ns)
    assert np.count_nonzero(inside) > 180
    return int(np.max(np.abs(found.to_host(guest) - host)[inside]))


@pytest.mark.parametrize("ppm", [-400.0, -12.5, 0.0, 80.0, 400.0])
@pytest.mark.parametrize("window_s", [0.5, 30.0])
def test_the_true_time_is_always_within_the_bound(ppm: float, window_s: float) -> None:
    clock = steady(ppm)
    for seed in range(20):
        readings = read(clock, seed=seed, window_s=window_s)
        found = mapped(readings)
        assert worst_error_ns(found, clock, readings) <= found.error_ns
        assert 0 < found.error_ns < 3 * MS


def test_the_bound_holds_where_every_question_is_fast_and_every_answer_slow() -> None:
    clock = steady(35.0)
    origin = UPTIME_S * S

    def reading(at_ns: int) -> ClockReading:
        return ClockReading(at_ns - 1000, clock(at_ns), at_ns + 2 * MS)

    readings = [reading(origin + after) for after in (0, 5 * MS, 10 * S, 10 * S + 5 * MS)]
    found = mapped(readings)
    assert worst_error_ns(found, clock, readings) <= found.error_ns
    # The middle of the bracket, which is all that the readings tell, is a millisecond off.
    assert found.error_ns == pytest.approx(MS, rel=0.01)


def test_the_tightest_of_many_readings_decides() -> None:
    clock = steady(0)
    slow = read(clock, ways_ns=(2 * MS, 3 * MS))
    quick = read(clock, ways_ns=(5_000, 6_000))
    readings = sorted([*slow, quick[3], quick[-3]], key=lambda reading: reading.machine_ns)
    assert mapped(slow).error_ns > MS
    assert mapped(readings).error_ns < 0.05 * MS


def test_the_rate_is_what_the_host_does_in_a_second_of_the_guest() -> None:
    found = mapped(read(steady(100.0), window_s=1000.0, ways_ns=(1000, 2000)))
    assert found.rate == pytest.approx(1 - 100e-6, abs=1e-8)


def test_moments_keep_their_order_and_every_nanosecond() -> None:
    found = mapped(read(steady(0.0), ways_ns=(1000, 2000)))
    guest = found.at_ns + np.arange(0, 1000, dtype=np.int64)
    assert np.all(np.diff(found.to_host(guest)) >= 0)
    assert found.to_host(guest)[-1] - found.to_host(guest)[0] == 999


@pytest.mark.parametrize("step_ns", [-500 * MS, -20 * MS, 20 * MS, 3600 * S])
def test_a_step_between_the_readings_is_found(step_ns: int) -> None:
    clock = steady(0.0)
    middle = (UPTIME_S + 2) * S
    stepped = read(lambda host: clock(host) + (step_ns if host > middle else 0), window_s=4.0)
    found = clock_map(stepped)
    assert isinstance(found, str)
    assert "stopped or set" in found or "went backwards" in found


def test_a_step_among_the_readings_is_found() -> None:
    clock = steady(0.0)
    readings = read(clock)
    moved = [
        ClockReading(r.asked_ns, r.machine_ns + (8 * MS if number > 30 else 0), r.answered_ns)
        for number, r in enumerate(readings)
    ]
    assert "fit no steady clock" in str(clock_map(moved))


def test_a_guest_that_was_stopped_for_a_while_is_found() -> None:
    clock = steady(0.0)
    resumed = (UPTIME_S + 2) * S
    readings = read(lambda host: clock(host) - (S if host > resumed else 0), window_s=10.0)
    assert "stopped or set" in str(clock_map(readings))


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([], "not read at two moments"),
        ([5], "not read at two moments"),
        ([5, 5], "not read at two moments"),
        ([6, 5], "went backwards"),
        ([5, 10**30], "not a time since a boot"),
        ([-5, 10], "not a time since a boot"),
    ],
)
def test_a_clock_that_cannot_be_one_is_told(told: list[int], says: str) -> None:
    readings = [ClockReading(at, ns, at + 1) for at, ns in enumerate(told)]
    assert says in str(clock_map(readings))


def test_stored_readings_give_the_map_again(tmp_path: Path) -> None:
    raw = TrialFolder(tmp_path)
    assert stored_clock_map(raw) == "the guest's clock was not read"
    readings = read(steady(5.0))
    raw.write_raw_json(files.CLOCKS, [to_json(reading) for reading in readings])
    assert stored_clock_map(raw) == clock_map(readings)


@pytest.mark.parametrize("content", [{"a": 1}, [1], [{"asked_ns": 1}], [{"asked_ns": "x"}], None])
def test_a_file_of_something_else_is_named(tmp_path: Path, content: object) -> None:
    raw = TrialFolder(tmp_path)
    raw.write_raw_json(files.CLOCKS, content)
    with pytest.raises(BrokenError, match=r"clocks\.json: expected readings"):
        stored_clock_map(raw)


def steered(*told: tuple[float, int]) -> list[dict[str, float]]:
    return [{"ppm": ppm, "pending_ns": pending_ns} for ppm, pending_ns in told]


def stored(folder: Path, readings: list[ClockReading], discipline: object = None) -> TrialFolder:
    raw = TrialFolder(folder)
    raw.write_raw_json(files.CLOCKS, [to_json(reading) for reading in readings])
    if discipline is not None:
        raw.write_raw_json(files.CLOCK_DISCIPLINE, discipline)
    return raw


@pytest.mark.parametrize("told", [None, steered((-12.5, 0), (-12.5, 0))])
def test_a_host_that_was_not_steered_bends_no_line(tmp_path: Path, told: object) -> None:
    readings = read(steady(5.0))
    assert stored_clock_map(stored(tmp_path, readings, told)) == clock_map(readings)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_bound_holds_for_a_host_whose_rate_changes_in_the_middle(
    tmp_path: Path, share: float
) -> None:
    """By 400 ppm, whenever: the host's clock is what changes, so the guest's is bent to it."""
    begin = UPTIME_S * S
    change = begin + round(share * 10 * S)

    def bent(host_ns: int) -> int:
        return host_ns - 5 * S + max(0, round((host_ns - change) * 400e-6))

    readings = read(bent, ways_ns=(1000, 3000))
    found = stored_clock_map(stored(tmp_path, readings, steered((0.0, 0), (-400.0, 0))))
    assert isinstance(found, ClockMap)
    moments = np.arange(begin, begin + 10 * S, S // 50)
    error = np.abs(found.to_host(np.array([bent(int(at)) for at in moments])) - moments)
    assert error.max() <= found.error_ns
    assert error.max() > mapped(readings).error_ns


def test_what_the_kernel_is_about_to_add_may_have_been_added(tmp_path: Path) -> None:
    readings = read(steady(5.0))
    found = stored_clock_map(stored(tmp_path, readings, steered((1.0, 70_000), (1.0, 20_000))))
    assert isinstance(found, ClockMap)
    assert found.error_ns == mapped(readings).error_ns + 70_000


@pytest.mark.parametrize("content", [3, [], [{"ppm": 1}], [{"ppm": "x", "pending_ns": 0}]])
def test_a_clock_discipline_that_is_none_is_named(tmp_path: Path, content: object) -> None:
    raw = stored(tmp_path, read(steady(5.0)), content)
    with pytest.raises(BrokenError, match=r"clock-discipline\.json: expected the discipline"):
        stored_clock_map(raw)
