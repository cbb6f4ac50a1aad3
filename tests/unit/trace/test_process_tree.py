"""Which threads are a workload's."""

from __future__ import annotations

import numpy as np

from labctl.trace.model import FORK, Events, Trace
from labctl.trace.threads import process_tree


def trace(*forks: tuple[int, int], processes: dict[int, int] | None = None) -> Trace:
    columns = np.array(forks, np.int32).reshape(-1, 2)
    events = Events(
        time_ns=np.arange(len(forks), dtype=np.int64),
        cpu=np.zeros(len(forks), np.int32),
        tid=columns[:, 0],
        fields={"parent_pid": columns[:, 0], "child_pid": columns[:, 1]},
    )
    return Trace(
        where="here", start_ns=0, end_ns=9, events={FORK: events}, processes=processes or {}
    )


def test_children_and_theirs_are_of_the_family_and_others_are_not() -> None:
    assert process_tree(trace((1, 10), (10, 11), (2, 20), (11, 12), (20, 21)), 10) == {10, 11, 12}


def test_threads_that_ran_before_the_recorder_are_of_it_by_their_process() -> None:
    assert process_tree(trace((11, 30), processes={10: 10, 11: 10, 20: 20}), 10) == {10, 11, 30}


def test_a_trace_without_forks_knows_the_process_alone() -> None:
    empty = Trace(where="here", start_ns=0, end_ns=9, events={})
    assert process_tree(empty, 10) == {10}
