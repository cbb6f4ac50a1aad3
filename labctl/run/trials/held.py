"""Check whether a trial's threads were what was asked, before and after its window (METHOD rule
28).

What came and went between the two is not seen: nothing runs inside of the window but the workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from labctl.base.errors import BrokenError
from labctl.domain.asked import (
    EMULATOR,
    IOTHREAD,
    VCPU,
    VHOST,
    WORKLOAD,
    ExpectedThread,
    ThreadState,
    changes,
    mismatches,
)
from labctl.domain.readback import row_states, workload_states

RAW = "threads.json"

_MACHINE = (VCPU, EMULATOR, IOTHREAD, VHOST)
_OTHERS = ("neighbour", "peer")
"""Nothing is asked of them but to stay as they are. labctl's own tools move to a CPU to read it."""


def held(
    asked: Sequence[ExpectedThread],
    host: Mapping[str, Any],
    workload: Mapping[str, Any],
    *,
    places_itself: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Return what the trial's `threads.json` holds, and a sentence for each thread that was not
    what was asked, or that changed meanwhile.

    `host`: the two snapshots, `workload`: what the command's runner has read of its threads, each
    `before` and `after`. `places_itself`: whether the command's threads choose their own CPUs.
    Raises BrokenError when the runner has told something else.
    """
    before, after = (_machine(host, at) + _workload(workload, at) for at in ("before", "after"))
    # In a guest nothing is asked of the command but to stay what it was when it was started.
    asked = [*asked, *(_as_started(before) if not _is_asked(asked, WORKLOAD) else ())]
    others = [row_states(host[at]["threads"], _OTHERS) for at in ("before", "after")]
    at_end = [_where_asked(asked, state) for state in after] if places_itself else after
    wrong = [
        *(f"before the measured window {said}" for said in mismatches(asked, before)),
        *(f"after the measured window {said}" for said in mismatches(asked, at_end)),
        *changes(asked, [*before, *others[0]], [*at_end, *others[1]]),
    ]
    stored = {
        "asked": [thread.to_json() for thread in asked],
        "before": [state.to_json() for state in before],
        "after": [state.to_json() for state in after],
    }
    return stored, wrong


def _machine(host: Mapping[str, Any], at: str) -> list[ThreadState]:
    return row_states(host[at]["threads"], _MACHINE)


def _workload(told: Mapping[str, Any], at: str) -> list[ThreadState]:
    """There is at least one: the command's own, which has not been waited for."""
    try:
        if states := workload_states(told[at]):
            return states
        raise LookupError("none")
    except (LookupError, TypeError, ValueError) as error:
        raise BrokenError(
            f"the runner told nothing of the command's threads {at} its run ({error!r})"
        ) from error


def _as_started(before: Sequence[ThreadState]) -> list[ExpectedThread]:
    return [
        ExpectedThread(
            role=WORKLOAD,
            index=0,
            cpus=state.cpus,
            policy=state.policy,
            priority=state.priority,
        )
        for state in before
        if state.role == WORKLOAD
    ][:1]


def _is_asked(asked: Sequence[ExpectedThread], role: str) -> bool:
    return any(thread.role == role for thread in asked)


def _where_asked(asked: Sequence[ExpectedThread], state: ThreadState) -> ThreadState:
    """Return a command's thread as if it had stayed on its CPUs."""
    if state.role != WORKLOAD:
        return state
    (cpus,) = [thread.cpus for thread in asked if thread.role == WORKLOAD]
    return replace(state, cpus=cpus)
