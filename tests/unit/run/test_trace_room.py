"""Room for traces: refused or warned of beforehand, and a block at a time afterwards."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.tuning import Kind, Level
from labctl.collect.traces.guest_recorder import LIMIT_MIB as GUEST_MIB
from labctl.collect.traces.perf_record import LIMIT_MIB as HOST_MIB
from labctl.run.collectors import trace_room
from labctl.run.collectors.trace_room import (
    KEPT_MIB,
    TracedWindow,
    forecast,
    holds_block,
    limit_mib,
    refusal,
    traced_bytes,
    warning,
)
from labctl.run.trials import trial as attempt
from labctl.store.run_folder import RunFolder
from labctl.trace import files
from tests.unit.run.engines import World, small_plan

MIB = 1024 * 1024
MOST = HOST_MIB + GUEST_MIB
SHORT_MOST = 3 * 2 * 64 + GUEST_MIB
"""Of a trial of a second on a host with two CPUs."""


def windows(*sides: Kind, seconds: float = 60) -> list[TracedWindow]:
    return [TracedWindow(side=side, seconds=seconds) for side in sides]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The disk's free space, which the test may change."""
    disk = {"mib": KEPT_MIB + 10 * MOST}
    usage = trace_room.shutil.disk_usage

    def asked(folder: Path) -> SimpleNamespace:
        usage(folder)  # raises for a folder that isn't there, as the real one
        return SimpleNamespace(free=disk["mib"] * MIB)

    monkeypatch.setattr(trace_room.shutil, "disk_usage", asked)
    monkeypatch.setattr(trace_room.os, "cpu_count", lambda: 2)
    return disk


def run_with(results: Path, *sizes_mib: int) -> RunFolder:
    """A run whose trials took so much, 0 being one without a trace."""
    folder = RunFolder.create(results, "run")
    for number, taken in enumerate(sizes_mib, start=1):
        trial = folder.new_trial(number, 1)
        if taken:
            path = trial.path / files.HOST
            path.parent.mkdir()
            with open(path, "wb") as file:
                file.truncate(taken * MIB)
    return folder


def test_a_trace_gets_what_is_free_and_never_all_of_it(
    tmp_path: Path, free: dict[str, int]
) -> None:
    assert limit_mib(tmp_path) == HOST_MIB
    free["mib"] = KEPT_MIB + GUEST_MIB + 300
    assert limit_mib(tmp_path) == 300
    free["mib"] = KEPT_MIB + GUEST_MIB + 100
    assert limit_mib(tmp_path) == 0


def test_a_run_begins_only_where_a_trial_has_room(tmp_path: Path, free: dict[str, int]) -> None:
    asked = windows(Kind.NATIVE, Kind.GUEST)
    free["mib"] = KEPT_MIB + MOST - 1
    found = refusal(forecast(tmp_path / "results/new", asked))
    assert found is not None
    assert "2 trials may take up to 4.06 GiB (2.06 GiB for one of 60 s)" in found.message
    assert "Free 1 MiB there" in str(found.hint)
    assert "--results" in str(found.hint)
    assert "--collect counters" in str(found.hint)
    free["mib"] = KEPT_MIB + MOST
    assert refusal(forecast(tmp_path, asked)) is None
    free["mib"] = 100
    found = refusal(forecast(tmp_path, asked, besides_bytes=500 * MIB))
    assert found is not None
    assert "has room for 0 MiB (of 100 MiB; 1.49 GiB are reserved)" in found.message
    assert f"Free {(MOST + KEPT_MIB + 400) / 1024:.3g} GiB there" in str(found.hint)


def test_short_trials_need_less_room_and_the_longest_counts(
    tmp_path: Path, free: dict[str, int]
) -> None:
    short = windows(Kind.NATIVE, Kind.GUEST, seconds=1)
    free["mib"] = KEPT_MIB + SHORT_MOST
    assert refusal(forecast(tmp_path, short)) is None
    assert refusal(forecast(tmp_path, [*short, *windows(Kind.NATIVE, seconds=2)])) is not None
    free["mib"] -= 1
    assert refusal(forecast(tmp_path, short)) is not None


def test_a_refusal_tells_how_long_a_trial_may_be(tmp_path: Path, free: dict[str, int]) -> None:
    free["mib"] = KEPT_MIB + MOST - 1
    long = forecast(tmp_path, windows(Kind.GUEST))
    fits_s = long.fitting_s
    found = refusal(long)
    assert found is not None
    assert f"measure at most {fits_s} s (--duration)" in str(found.hint)
    assert refusal(forecast(tmp_path, windows(Kind.GUEST, seconds=fits_s))) is None
    assert refusal(forecast(tmp_path, windows(Kind.GUEST, seconds=fits_s + 1))) is not None
    free["mib"] = KEPT_MIB + SHORT_MOST - 1
    found = refusal(forecast(tmp_path, windows(Kind.GUEST)))
    assert found is not None
    assert "--duration" not in str(found.hint)


def test_many_cpus_need_no_more_room_than_perf_may_take(
    tmp_path: Path, free: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_room.os, "cpu_count", lambda: 256)
    free["mib"] = KEPT_MIB + MOST
    assert refusal(forecast(tmp_path, windows(Kind.GUEST, seconds=1))) is None


def test_a_run_that_may_outgrow_its_disk_is_told_so(tmp_path: Path, free: dict[str, int]) -> None:
    asked = windows(Kind.GUEST) * 11
    said = warning(forecast(tmp_path, asked))
    assert said is not None
    assert "not traced" in said
    assert warning(forecast(tmp_path, asked[:10])) is None


def test_what_was_recorded_tells_what_is_likely(tmp_path: Path, free: dict[str, int]) -> None:
    asked = windows(Kind.GUEST) * 100
    assert traced_bytes(run_with(tmp_path, 5, 0, 7)) == [5 * MIB, 7 * MIB]
    found = forecast(tmp_path, asked, [5 * MIB, 7 * MIB])
    assert found.likely_mib == 600
    assert warning(found) is None
    free["mib"] = KEPT_MIB + 599
    assert "likely 600 MiB" in str(warning(forecast(tmp_path, asked, [5 * MIB, 7 * MIB])))


def test_a_block_has_room_if_the_largest_trace_so_far_fits_for_each_trial(
    tmp_path: Path, free: dict[str, int]
) -> None:
    folder = run_with(tmp_path, 100, 400)
    free["mib"] = KEPT_MIB + 2000
    assert holds_block(folder, [60] * 5)
    assert not holds_block(folder, [60] * 6)


def test_the_first_block_takes_room_for_the_most_that_a_trial_may(
    tmp_path: Path, free: dict[str, int]
) -> None:
    folder = run_with(tmp_path)
    for window_s, most in ((60, MOST), (1, SHORT_MOST)):
        free["mib"] = KEPT_MIB + most - 1
        assert not holds_block(folder, [0.1, window_s])
        free["mib"] += 1
        assert holds_block(folder, [0.1, window_s])


@pytest.mark.parametrize(("level", "last"), [(Level.TRACE, False), (Level.COUNTERS, True)])
def test_a_disk_that_fills_up_ends_tracing_with_a_block_and_not_within(
    tmp_path: Path,
    free: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    level: Level,
    last: bool,
) -> None:
    world = World(monkeypatch, tmp_path)
    traced: dict[int, set[bool]] = {}

    def run_trial(lab: Any, bench: Any, request: Any, folder: Any) -> Any:
        traced.setdefault(request.planned.block, set()).add(request.traces)
        if request.planned.number == 8:  # in the midst of the second block
            free["mib"] = KEPT_MIB
        return world._run_trial(lab, bench, request, folder)

    monkeypatch.setattr(attempt, "run_trial", run_trial)
    world.engine(small_plan(blocks=3, collect=level)).run()
    assert traced == {1: {True}, 2: {True}, 3: {last}}
    said = [text for text in world.warnings() if "No traces from block 3 on" in text]
    assert len(said) == (not last)
