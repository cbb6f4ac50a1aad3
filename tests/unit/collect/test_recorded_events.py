from __future__ import annotations

from pathlib import Path

import pytest

from labctl.collect.traces.perf_record import NO_ROOM, buffer_mib, recording
from labctl.collect.traces.recorded_events import (
    among,
    kvm_events,
    sched_events,
    switch_records,
    timer_events,
)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({3}, "f==3"),
        ({0, 1, 2, 3}, "(f>=0&&f<=3)"),
        ({7, 2, 3, 5}, "(f>=2&&f<=3)||f==5||f==7"),
    ],
)
def test_a_filter_names_runs_of_numbers_as_ranges(numbers: set[int], text: str) -> None:
    assert among("f", frozenset(numbers)) == text


def test_a_filter_of_a_large_guests_threads_fits_into_a_page() -> None:
    longest = max(map(len, kvm_events(range(40_001, 40_513))))
    assert longest < 4096


def test_switches_are_chosen_by_their_cpu_and_wake_ups_by_the_one_that_they_are_for() -> None:
    words = sched_events(frozenset({2, 3}))
    filters = dict(zip(words[1::4], words[3::4], strict=False))
    assert filters["sched:sched_switch"] == "(CPU>=2&&CPU<=3)"
    assert filters["sched:sched_wakeup"] == "(target_cpu>=2&&target_cpu<=3)"
    assert filters["sched:sched_migrate_task"] == (
        "(orig_cpu>=2&&orig_cpu<=3)||(dest_cpu>=2&&dest_cpu<=3)"
    )
    assert ["-e", "sched:sched_process_fork"] in [words[at : at + 2] for at in range(len(words))]


def test_timers_are_those_that_tasks_start_on_the_trials_cpus() -> None:
    event, name, option, text = timer_events(frozenset({0, 1, 5}))
    assert (event, name, option) == ("-e", "timer:hrtimer_start", "--filter")
    # Neither the idle task's, nor those of interrupts in whichever task.
    assert text == "((CPU>=0&&CPU<=1)||CPU==5)&&common_pid!=0&&!(common_flags&24)"


@pytest.mark.parametrize(
    ("release", "is_needed"),
    [
        ("6.1.0-37-amd64", False),
        ("5.10.0", False),
        ("6.2.1", True),
        ("6.18.44-x", True),
        ("?", False),
    ],
)
def test_perfs_own_records_of_switches_are_for_kernels_that_may_keep_some_back(
    release: str, is_needed: bool
) -> None:
    assert bool(switch_records(release)) is is_needed


def test_buffers_are_powers_of_two_and_stay_small_in_all() -> None:
    sizes = {count: buffer_mib(count) for count in (1, 2, 16, 17, 24, 96, 128, 256, 1024)}
    assert sizes == {1: 16, 2: 16, 16: 16, 17: 8, 24: 8, 96: 2, 128: 2, 256: 1, 1024: 1}


def test_where_there_is_no_room_nothing_is_recorded_and_the_reason_is_told(tmp_path: Path) -> None:
    output = tmp_path / "trace" / "host.perf.data"
    with recording(output, ["-e", "sched:sched_switch"], cpus=frozenset({0}), limit_mib=0) as done:
        pass
    assert done.problem == NO_ROOM
    assert list(tmp_path.iterdir()) == []


def test_a_host_without_perf_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with recording(tmp_path / "out", ["-e", "sched:sched_switch"], cpus=frozenset({0})) as done:
        pass
    assert "perf is not installed" in str(done.problem)
    assert "linux-perf" in str(done.problem)
