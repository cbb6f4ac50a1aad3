"""What ended tasks' sleeps, also where a kernel kept its events back."""

from __future__ import annotations

from labctl.trace.timeline.wakeups import Woken, woken
from tests.unit.trace.recorded import DEAD, PREEMPTED, RUNNABLE, SLEEPING, Recorded
from tests.unit.trace.two_sides import CYCLICTEST, SHELL, TIMER, guest

OTHER_TIMER = -0x6000
US = 1000


def asleep(side: Recorded, slept_us: float, ran_us: float, cpu: int = 0) -> None:
    """cyclictest sleeps and comes again; what woke it is for others to tell."""
    side.switch(slept_us, cpu, CYCLICTEST, 0, SLEEPING)
    side.switch(ran_us, cpu, 0, CYCLICTEST, RUNNABLE)


def found(side: Recorded, *, by_timers: bool = True) -> Woken:
    return woken(side.trace(), [CYCLICTEST], by_timers=by_timers)


def unseen(told: Woken) -> list[tuple[int, int]]:
    """In microseconds."""
    columns = (told.unseen.start_ns // US, told.unseen.end_ns // US)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_sleep_that_ends_without_a_wake_up_is_counted_as_unseen() -> None:
    side = guest()
    asleep(side, 1_000, 2_000)
    asleep(side, 2_100, 3_000)
    side.wake(2_950, 0, CYCLICTEST)
    told = found(side)
    assert told.wakeups.ran_ns.tolist() == [3_000 * US]
    assert unseen(told) == [(1_000, 2_000)]
    assert told.unseen.total_ns == 1_000 * US


def test_a_wake_up_of_which_only_the_answer_is_told_is_seen() -> None:
    side = guest()
    asleep(side, 1_000, 2_000)
    side.add("sched:sched_waking", 1_500, 0, SHELL, pid=SHELL, target_cpu=0)
    side.add("sched:sched_wakeup", 1_900, 0, 0, pid=CYCLICTEST, target_cpu=0)
    told = found(side)
    assert told.wakeups.woken_ns.tolist() == [1_900 * US]
    assert not len(told.unseen)


def test_a_hidden_wake_up_by_an_own_timer_is_inferred_with_when_it_was_due() -> None:
    side = guest()
    side.timer(990, 0, CYCLICTEST, TIMER, 1_950)
    asleep(side, 1_000, 2_000)
    told = found(side)
    assert told.wakeups.inferred.tolist() == [True]
    assert told.wakeups.timed.tolist() == [True]
    assert told.wakeups.meant_ns.tolist() == [1_950 * US]
    assert not len(told.unseen)
    assert not len(told.unslept_ns)


def test_a_program_that_others_may_wake_has_none_inferred() -> None:
    side = guest()
    side.timer(990, 0, CYCLICTEST, TIMER, 1_950)
    asleep(side, 1_000, 2_000)
    told = found(side, by_timers=False)
    assert not len(told.wakeups)
    assert unseen(told) == [(1_000, 2_000)]


def test_an_own_timer_tells_when_a_wake_up_that_was_seen_was_meant() -> None:
    """Natively no expiry is recorded."""
    side = guest()
    side.timer(990, 0, CYCLICTEST, TIMER, 1_500)
    asleep(side, 1_000, 2_000)
    side.wake(1_900, 0, CYCLICTEST)
    told = found(side, by_timers=False)
    assert told.wakeups.meant_ns.tolist() == [1_500 * US]
    assert told.wakeups.woken_ns.tolist() == [1_900 * US]
    assert told.wakeups.inferred.tolist() == [False]


def test_who_comes_before_its_timer_was_due_was_woken_by_something_else() -> None:
    side = guest()
    side.timer(990, 0, CYCLICTEST, TIMER, 2_500)
    asleep(side, 1_000, 2_000)
    told = found(side)
    assert not len(told.wakeups)
    assert not len(told.unseen)  # no wake-up by a timer


def test_a_timer_that_others_start_too_is_no_tasks_own() -> None:
    side = guest()
    side.timer(500, 0, CYCLICTEST, OTHER_TIMER, 700)
    asleep(side, 600, 800)
    side.timer(900, 0, CYCLICTEST, TIMER, 1_950)
    side.timer(950, 1, SHELL, TIMER, 5_000)
    asleep(side, 1_000, 2_000)
    side.switch(9_000, 0, CYCLICTEST, 0, SLEEPING)
    told = found(side)
    assert told.wakeups.meant_ns.tolist() == [700 * US]


def test_a_stack_that_another_task_had_before_is_its_owners() -> None:
    side = guest()
    side.timer(100, 1, SHELL, TIMER, 200)
    side.switch(800, 0, 0, CYCLICTEST, RUNNABLE)
    side.timer(990, 0, CYCLICTEST, TIMER, 1_950)
    asleep(side, 1_000, 2_000)
    assert found(side).wakeups.meant_ns.tolist() == [1_950 * US]


def test_the_last_of_several_own_timers_is_the_one_that_was_slept_on() -> None:
    side = guest()
    side.timer(980, 0, CYCLICTEST, OTHER_TIMER, 981)  # over before it slept
    side.timer(990, 0, CYCLICTEST, TIMER, 1_950)
    asleep(side, 1_000, 2_000)
    told = found(side)
    assert told.wakeups.meant_ns.tolist() == [1_950 * US]
    assert told.unslept_ns.tolist() == [980 * US]


def test_a_preempted_task_does_not_sleep() -> None:
    side = guest()
    side.switch(1_000, 0, CYCLICTEST, SHELL, PREEMPTED)
    side.switch(2_000, 0, SHELL, CYCLICTEST, SLEEPING)
    told = found(side)
    assert not len(told.wakeups)
    assert not len(told.unseen)


def test_a_new_task_with_the_number_of_one_that_ended_was_not_asleep() -> None:
    side = guest()
    side.switch(1_000, 0, CYCLICTEST, 0, DEAD)
    side.switch(2_000, 0, 0, CYCLICTEST, RUNNABLE)
    assert not len(found(side).unseen)


def test_who_leaves_without_being_seen_to_come_was_woken_unseen() -> None:
    side = guest()
    side.switch(1_000, 0, CYCLICTEST, 0, SLEEPING)
    side.switch(3_000, 0, CYCLICTEST, 0, SLEEPING)
    assert unseen(found(side)) == [(1_000, 3_000)]


def test_what_goes_on_over_lost_events_is_unseen_where_they_may_have_told_of_it() -> None:
    side = guest()
    side.switch(100, 1, 0, CYCLICTEST, RUNNABLE)  # runs on CPU 1
    side.switch(1_000, 1, CYCLICTEST, 0, SLEEPING)
    side.switch(2_000, 0, 0, CYCLICTEST, RUNNABLE)
    side.wake(1_900, 0, CYCLICTEST)
    side.lose(500, 600, cpu=0)
    assert unseen(found(side)) == []
    side.lose(1_500, 1_600, cpu=0)
    assert unseen(found(side)) == [(1_000, 2_000)]
    side.lose(300, 400, cpu=1)
    assert unseen(found(side)) == [(100, 1_000), (1_000, 2_000)]


def test_unseen_stretches_are_cut_to_the_window() -> None:
    side = guest()
    asleep(side, 1_000, 2_000)
    asleep(side, 3_000, 4_000)
    assert unseen(found(side).within(1_500 * US, 2_500 * US)) == [(1_500, 2_000)]


def test_when_a_task_slept_again_is_told_over_preemptions() -> None:
    side = guest()
    asleep(side, 1_000, 2_000)
    side.wake(1_900, 0, CYCLICTEST)
    side.switch(2_100, 0, CYCLICTEST, SHELL, PREEMPTED)
    side.switch(2_500, 0, SHELL, CYCLICTEST, SLEEPING)
    asleep(side, 2_600, 3_000)
    side.wake(2_900, 0, CYCLICTEST)
    assert found(side).wakeups.again_ns.tolist() == [2_600 * US, 3_000 * US]
