from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labctl.trace import preemption, records
from labctl.trace.model import Gap, Trace
from labctl.trace.sched import Delays, Schedule, has_switches, schedule
from labctl.trace.spans import Kind, spans
from tests.unit.trace.schedules import PREEMPTED, RUNNABLE, SLEEPS, Switch, trace

MS = 1_000_000
VCPU, HOG, OTHER = 100, 200, 300


def hogged(seconds: int = 3) -> Trace:
    """A vCPU that computes on CPU 1, from which a FIFO hog takes it for 20 ms every 100 ms."""
    switches: list[Switch] = []
    wakeups = []
    for begin in range(50 * MS, seconds * 1000 * MS, 100 * MS):
        wakeups.append((begin - 3000, HOG, 1))
        switches.append((begin, 1, VCPU, PREEMPTED, HOG))
        switches.append((begin + 20 * MS, 1, HOG, SLEEPS, VCPU))
    return trace(
        switches, wakeups, end_ns=seconds * 1000 * MS, names={VCPU: "CPU 0/KVM", HOG: "hog"}
    )


def test_a_hog_that_preempts_for_a_fifth_of_the_time_is_found_with_share_and_times() -> None:
    found = schedule(hogged()).threads[VCPU]
    assert found.name == "CPU 0/KVM"
    assert found.preemptions == 30
    assert found.preempted_by_ns == {HOG: 600 * MS}
    assert found.on_cpu_ns == 2400 * MS
    assert found.delays.total_ns == 600 * MS
    assert found.delays.start_ns.tolist() == [50 * MS + n * 100 * MS for n in range(30)]
    assert set(found.delays.length_ns.tolist()) == {20 * MS}
    assert (found.unknown, found.unknown_ns, found.migrations) == (0, 0, 0)


def test_the_hog_itself_waits_from_its_wake_up_for_as_long_as_the_switch_took() -> None:
    found = schedule(hogged()).threads[HOG]
    assert set(found.delays.length_ns.tolist()) == {3000}
    assert found.preemptions == 0
    assert found.on_cpu_ns == 600 * MS
    assert found.preempted_by_ns == {VCPU: 30 * 3000}


def test_only_the_window_counts() -> None:
    found = schedule(hogged(), [VCPU], window=(60 * MS, 355 * MS)).threads
    assert list(found) == [VCPU]
    # The first wait had begun before, and the last hadn't ended.
    assert found[VCPU].delays.start_ns.tolist() == [150 * MS, 250 * MS]
    assert found[VCPU].on_cpu_ns == (355 - 60 - 10 - 20 - 20 - 5) * MS


@pytest.mark.parametrize("state", [RUNNABLE, PREEMPTED])
def test_a_thread_switched_out_runnable_waits(state: int) -> None:
    made = trace([(10, 0, VCPU, state, HOG), (30, 0, HOG, SLEEPS, VCPU)], end_ns=40)
    (wait,) = schedule(made).threads[VCPU].delays.length_ns
    assert wait == 20


def test_a_sleeper_waits_from_its_first_wake_up_only() -> None:
    made = trace(
        [(10, 0, VCPU, SLEEPS, 0), (50, 0, 0, RUNNABLE, VCPU), (60, 0, VCPU, SLEEPS, 0)],
        [(40, VCPU, 0), (45, VCPU, 0)],
        end_ns=100,
    )
    found = schedule(made).threads[VCPU]
    assert found.delays.length_ns.tolist() == [10]
    assert found.preempted_by_ns == {0: 10}
    assert found.on_cpu_ns == 20


def test_a_wake_up_of_a_thread_that_runs_begins_no_wait() -> None:
    made = trace(
        [(10, 0, HOG, SLEEPS, VCPU), (30, 0, VCPU, SLEEPS, 0), (50, 0, 0, RUNNABLE, VCPU)],
        [(5, VCPU, 0), (20, VCPU, 0), (48, VCPU, 0)],
        end_ns=60,
    )
    found = schedule(made).threads[VCPU]
    assert found.delays.length_ns.tolist() == [5, 2]
    assert found.on_cpu_ns == 20 + 10
    assert found.unknown == 0


def test_what_runs_while_a_thread_waits_is_told_by_share_also_where_it_is_moved() -> None:
    made = trace(
        [
            (10, 0, VCPU, PREEMPTED, HOG),
            (14, 0, HOG, SLEEPS, OTHER),
            (25, 1, HOG, SLEEPS, 0),
            (28, 1, 0, RUNNABLE, VCPU),
            (40, 0, OTHER, SLEEPS, 0),
        ],
        migrations=[(20, VCPU, 1)],
        end_ns=50,
    )
    found = schedule(made).threads[VCPU]
    # On CPU 1 the hog had run since before its first switch.
    assert found.preempted_by_ns == {HOG: 4 + 5, OTHER: 6, 0: 3}
    assert sum(found.preempted_by_ns.values()) == found.delays.total_ns
    assert found.migrations == 1


def test_a_wait_over_lost_events_is_unknown_and_counts_for_nothing() -> None:
    gap = Gap(cpu=1, start_ns=152 * MS, end_ns=160 * MS, count=7)
    made = hogged(1)
    lossy = Trace(
        where="", start_ns=0, end_ns=made.end_ns, events=made.events, gaps=(gap,), names={}
    )
    found = schedule(lossy)
    assert found.lost == 7
    vcpu = found.threads[VCPU]
    assert 150 * MS not in vcpu.delays.start_ns
    assert len(vcpu.delays.start_ns) == 9
    assert (vcpu.unknown, vcpu.unknown_ns) == (1, 20 * MS)
    # The hog ran on the CPU whose events are missing.
    assert found.threads[HOG].on_cpu_ns == 180 * MS


def test_a_gap_elsewhere_leaves_time_on_a_cpu_known() -> None:
    gap = Gap(cpu=0, start_ns=80 * MS, end_ns=90 * MS, count=1)
    made = hogged(1)
    lossy = Trace(where="", start_ns=0, end_ns=made.end_ns, events=made.events, gaps=(gap,))
    vcpu = schedule(lossy).threads[VCPU]
    assert vcpu.on_cpu_ns == 800 * MS
    assert len(vcpu.delays.start_ns) == 10


def test_a_wake_up_after_a_gap_begins_a_wait_although_the_thread_ran_before() -> None:
    made = trace(
        [(10, 0, HOG, SLEEPS, VCPU), (90, 0, HOG, RUNNABLE, VCPU), (95, 0, VCPU, SLEEPS, 0)],
        [(80, VCPU, 0)],
        end_ns=100,
        gaps=(Gap(cpu=0, start_ns=20, end_ns=70, count=3),),
    )
    vcpu = schedule(made).threads[VCPU]
    assert vcpu.delays.length_ns.tolist() == [10]
    assert vcpu.on_cpu_ns == 5


def test_a_switch_in_without_a_wake_up_is_no_wait_of_unknown_length() -> None:
    made = trace([(10, 0, VCPU, SLEEPS, 0), (50, 0, 0, RUNNABLE, VCPU)], end_ns=60)
    vcpu = schedule(made).threads[VCPU]
    assert vcpu.delays.length_ns.tolist() == []
    assert (vcpu.unknown, vcpu.unknown_ns) == (1, 40)
    assert vcpu.may_have_run_ns == 40  # and gone again, with both switches missing


def test_where_each_switch_is_told_who_sleeps_or_waits_runs_nowhere_meanwhile() -> None:
    made = trace([(10, 0, VCPU, SLEEPS, 0), (50, 0, 0, RUNNABLE, VCPU)], end_ns=60)
    vcpu = schedule(replace(made, every_switch=True)).threads[VCPU]
    assert (vcpu.unknown, vcpu.unknown_ns, vcpu.may_have_run_ns) == (1, 40, 0)
    lost = (Gap(cpu=1, start_ns=20, end_ns=30, count=1),)
    vcpu = schedule(replace(made, every_switch=True, gaps=lost)).threads[VCPU]
    assert vcpu.may_have_run_ns == 40


def test_a_thread_that_comes_and_one_that_goes_have_the_time_that_they_were_there() -> None:
    made = trace(
        [(10, 0, HOG, SLEEPS, VCPU), (30, 0, VCPU, 0x10, OTHER)],
        [(8, VCPU, 0)],
        end_ns=100,
    )
    found = schedule(made).threads
    assert {tid: thread.on_cpu_ns for tid, thread in found.items()} == {
        HOG: 10,
        VCPU: 20,
        OTHER: 70,
    }


def test_a_wait_that_has_no_end_is_not_taken_for_a_delay() -> None:
    made = trace([(10, 0, VCPU, PREEMPTED, HOG)], end_ns=100)
    vcpu = schedule(made).threads[VCPU]
    assert len(vcpu.delays.length_ns) == 0
    last = list(spans(made, [VCPU]))[-1]
    assert last.kind.tolist() == [Kind.UNFINISHED]
    assert (last.start_ns.tolist(), last.end_ns.tolist()) == ([10], [100])


def test_a_trace_without_switches_tells_of_no_thread() -> None:
    made = trace([], [(5, VCPU, 0)], end_ns=10)
    assert schedule(made).threads == {}
    assert not has_switches(made)


def test_a_thread_that_the_trace_does_not_name_is_none_of_the_result() -> None:
    quiet = trace([(5, 0, 1, SLEEPS, 2)], end_ns=10)
    assert schedule(quiet, [1_000_000]).threads == {}


def test_a_percentile_is_told_where_twenty_values_lie_beyond_it() -> None:
    def delays(count: int) -> Delays:
        return Delays(
            start_ns=np.arange(count),
            length_ns=np.arange(1, count + 1)[::-1].copy(),
            was_preempted=np.zeros(count, bool),
        )

    assert delays(399).percentile(0.95) is None
    assert delays(400).percentile(0.95) == 380
    assert delays(2000).percentile(0.99) == 1980
    assert delays(40).percentile(0.5) == 20
    assert delays(39).percentile(0.5) is None


def test_a_histogram_counts_by_powers_of_two() -> None:
    made = Delays(
        start_ns=np.arange(4),
        length_ns=np.array([3, 4, 7, 8]),
        was_preempted=np.zeros(4, bool),
    )
    assert made.histogram() == ((1, 0), (2, 0), (4, 1), (8, 2), (16, 1))


def random_schedule(seed: int) -> Trace:
    """A machine that keeps the kernel's rules: three CPUs, more threads than that."""
    rng = np.random.default_rng(seed)
    running = [1, 2, 3]
    asleep, queued = [4, 5, 6, 7], list[tuple[int, int]]()
    switches, wakeups, migrations = [], [], []
    now = 0
    for _ in range(600):
        now += int(rng.integers(1, 50))
        cpu = int(rng.integers(3))
        what = rng.integers(3)
        if what == 0 and asleep:
            tid = asleep.pop(int(rng.integers(len(asleep))))
            queued.append((tid, cpu))
            wakeups.append((now, tid, cpu))
        elif what == 1 and queued:
            at = int(rng.integers(len(queued)))
            queued[at] = (queued[at][0], cpu)
            migrations.append((now, queued[at][0], cpu))
        else:
            mine = [one for one in queued if one[1] == cpu]
            then = mine[0][0] if mine else 0
            if then == running[cpu]:
                continue
            if mine:
                queued.remove(mine[0])
            state = int(rng.choice([SLEEPS, RUNNABLE]))
            switches.append((now, cpu, running[cpu], state, then))
            if running[cpu]:
                if state == SLEEPS:
                    asleep.append(running[cpu])
                else:
                    queued.append((running[cpu], cpu))
            running[cpu] = then
    return trace(switches, wakeups, migrations, end_ns=now + 1)


def stepwise(made: Trace) -> dict[int, tuple[int, int, dict[int, int]]]:
    """On-CPU time, delays and preemptors of each thread, moment by moment."""
    switch = made.events["sched:sched_switch"]
    rows = [
        (int(t), "switch", int(c), int(p), int(s), int(n))
        for t, c, p, s, n in zip(
            switch.time_ns,
            switch.cpu,
            switch.fields["prev_pid"],
            switch.fields["prev_state"],
            switch.fields["next_pid"],
            strict=True,
        )
    ]
    for name, field in (("wakeup", "target_cpu"), ("migrate_task", "dest_cpu")):
        events = made.events[f"sched:sched_{name}"]
        columns = (events.time_ns, events.fields["pid"], events.fields[field])
        rows += [(int(t), name, int(c), int(p), 0, 0) for t, p, c in zip(*columns, strict=True)]
    running = {0: 1, 1: 2, 2: 3}
    queue: dict[int, int] = {}
    since: dict[int, int] = {}
    partial: dict[int, dict[int, int]] = {}
    ran: dict[int, int] = {}
    waited: dict[int, int] = {}
    preemptors: dict[int, dict[int, int]] = {}
    before = 0
    for now, what, cpu, tid, state, then in [*sorted(rows), (made.end_ns, "end", 0, 0, 0, 0)]:
        for one in running.values():
            ran[one] = ran.get(one, 0) + now - before
        for one, at in queue.items():
            behind = partial.setdefault(one, {})
            behind[running[at]] = behind.get(running[at], 0) + now - before
        before = now
        if what == "wakeup":
            queue[tid], since[tid] = cpu, now
        elif what == "migrate_task":
            queue[tid] = cpu
        elif what == "switch":
            running[cpu] = then
            if then:
                del queue[then]
                waited[then] = waited.get(then, 0) + now - since[then]
                for preemptor, length in partial.pop(then, {}).items():
                    total = preemptors.setdefault(then, {})
                    total[preemptor] = total.get(preemptor, 0) + length
            if tid and state == RUNNABLE:
                queue[tid], since[tid] = cpu, now
    return {
        tid: (ran.get(tid, 0), waited.get(tid, 0), preemptors.get(tid, {})) for tid in range(1, 8)
    }


def told(found: Schedule, tid: int) -> tuple[int, int, dict[int, int]]:
    thread = found.threads[tid]
    preemptors = {
        preemptor: length for preemptor, length in thread.preempted_by_ns.items() if length
    }
    return thread.on_cpu_ns, thread.delays.total_ns, preemptors


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("batch", [7, 500_000])
def test_columns_tell_the_same_as_going_from_moment_to_moment(
    seed: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "BATCH", batch)
    monkeypatch.setattr(preemption, "_PART", batch)
    monkeypatch.setattr(preemption, "_MOST_ASIDE", batch)
    monkeypatch.setattr(preemption, "_CELLS", batch)
    monkeypatch.setattr(preemption, "_MOST", batch)
    made = random_schedule(seed)
    found = schedule(made)
    expected = stepwise(made)
    assert {tid: told(found, tid) for tid in found.threads} == {
        tid: expected[tid] for tid in found.threads
    }
    assert all(thread.unknown == 0 for thread in found.threads.values())


def test_who_ran_on_a_cpu_without_a_switch_is_unknown_and_not_left_out() -> None:
    # 7 is queued on CPU 5, moved, and runs on CPU 1.
    found = schedule(
        trace(
            [(0, 1, 7, SLEEPS, 0), (30, 1, 0, RUNNABLE, 7)], [(10, 7, 5)], [(25, 7, 1)], end_ns=40
        )
    ).threads[7]
    assert found.delays.total_ns == 20
    assert found.preempted_by_ns == {-1: 15, 0: 5}


def test_who_comes_and_leaves_in_one_moment_ran_for_no_time_and_is_known_thereafter() -> None:
    made = trace(
        [(10, 0, 9, SLEEPS, 1), (50, 0, 1, RUNNABLE, 2), (50, 0, 2, SLEEPS, 3)]
        + [(80, 0, 3, SLEEPS, 2), (90, 0, 2, SLEEPS, 9)],
        [(40, 2, 0), (70, 2, 0)],
        end_ns=100,
    )
    found = schedule(made).threads[2]
    assert (found.on_cpu_ns, found.unknown) == (10, 0)
    assert found.delays.length_ns.tolist() == [10, 10]
    assert schedule(made).threads[3].on_cpu_ns == 30
    # Who ran, and comes back in the moment in which it leaves, had left first.
    back = trace([(10, 0, 9, SLEEPS, 1), (50, 0, 1, 0, 2), (50, 0, 2, SLEEPS, 1)], end_ns=100)
    assert schedule(back).threads[1].on_cpu_ns == 90


def test_switches_of_one_moment_cut_a_wait_that_lasts_no_time_into_nothing() -> None:
    switches = [(10, 0, 7, PREEMPTED, 8), (10, 0, 8, SLEEPS, 9), (10, 0, 9, SLEEPS, 7)]
    found = schedule(trace(switches, end_ns=20)).threads[7]
    assert (found.delays.total_ns, sum(found.preempted_by_ns.values())) == (0, 0)


def test_who_slept_before_and_after_a_gap_may_have_run_in_it() -> None:
    switches = [(10, 0, 7, SLEEPS, 0), (91, 0, 0, RUNNABLE, 7), (95, 0, 7, SLEEPS, 0)]
    lost = (
        Gap(cpu=1, start_ns=20, end_ns=30, count=9),
        Gap(cpu=1, start_ns=60, end_ns=80, count=9),
    )
    found = schedule(trace(switches, [(90, 7, 0)], end_ns=100, gaps=lost)).threads[7]
    assert (found.on_cpu_ns, found.delays.total_ns, found.unknown_ns) == (10 + 4, 1, 60)


def test_who_is_seen_to_leave_after_a_loss_and_never_to_come_is_unknown_before() -> None:
    gap = Gap(cpu=0, start_ns=20, end_ns=30, count=2)
    switches: list[Switch] = [(10, 0, HOG, SLEEPS, 0), (60, 0, VCPU, SLEEPS, 0)]
    found = schedule(trace(switches, end_ns=100, gaps=(gap,))).threads[VCPU]
    assert (found.on_cpu_ns, found.unknown_ns) == (0, 60)
