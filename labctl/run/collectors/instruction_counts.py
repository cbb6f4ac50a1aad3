"""Count the instructions of a workload's operation on a machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.events import Listener, Warned
from labctl.base.tuning import Kind
from labctl.collect.counters import calibrated, perf_stat
from labctl.collect.counters.perf_attached import perf_attached
from labctl.collect.counters.perf_stat import countable
from labctl.collect.counters.perf_stat_text import counts, read_counters, totals
from labctl.study.study import StudyWorkload
from labctl.workloads.registry import workload
from labctl.workloads.workload import Setting

_COUNTING_S = 180.0
"""Timeout of one run under callgrind, some fifty times slower, in an emulated guest."""

_PMU, _LACKEY = "perf", "lackey"
PER_OPERATION = "instructions_per_operation"


def counted(
    channel: Channel, declared: StudyWorkload, vcpus: int, kind: Kind, listener: Listener
) -> dict[str, Any]:
    """Return the instructions of one operation of a workload, counted on that machine; natively a
    second time, in another way."""
    exact = [_exact(declared, operations, vcpus) for operations in calibrated.COUNTED_OPERATIONS]
    found = _count_of(
        "callgrind",
        [
            calibrated.collected_instructions(
                _stderr_of(channel, calibrated.callgrind_command(command))
            )
            for command in exact
        ],
    )
    if kind is Kind.NATIVE:
        found["second"] = _second(channel, exact, listener)
    return {**found, "counted_on": str(kind)}


def second_method() -> str:
    """Return what counts a second time natively: the CPU where it can, else another tool."""
    return _LACKEY if countable(str(Kind.NATIVE)).problem else _PMU


def _second(channel: Channel, exact: Sequence[Command], listener: Listener) -> dict[str, Any]:
    if second_method() == _PMU:
        try:
            return _count_of(_PMU, [_counted_by_pmu(channel, command) for command in exact])
        except BrokenError as error:
            # Somebody else's perf took the counters: a bound is no reason to end a run.
            listener(Warned(text=f"{error.message} Lackey counts instead."))
    return _count_of(
        _LACKEY,
        [
            calibrated.lackey_instructions(_stderr_of(channel, calibrated.lackey_command(command)))
            for command in exact
        ],
    )


def _exact(declared: StudyWorkload, operations: int, vcpus: int) -> Command:
    program = workload(declared.program)
    setting = Setting(
        parameters=program.check_parameters(declared.parameters),
        vcpus=vcpus,
        duration_s=declared.duration_s,
    )
    command = program.exact_command(setting, operations)
    if command is None:
        raise BrokenError(f"{declared.program} has no command for counting")
    return command


def _count_of(method: str, instructions: Sequence[int]) -> dict[str, Any]:
    pairs = list(zip(calibrated.COUNTED_OPERATIONS, instructions, strict=True))
    return {
        PER_OPERATION: calibrated.instructions_per_operation(pairs),
        "method": method,
        "counts": [list(pair) for pair in pairs],
    }


def _stderr_of(channel: Channel, command: Command) -> str:
    return channel.run(command, seconds=_COUNTING_S).stderr.decode(errors="replace")


def _counted_by_pmu(channel: Channel, command: Command) -> int:
    """Return user instructions of a native command; raises BrokenError where perf can't tell."""
    kind = str(Kind.NATIVE)
    _, event = perf_stat.user_events(kind)
    with channel.prepared(command, seconds=_COUNTING_S) as execution:
        asked = perf_stat.command(kind, (execution.pid,), (event,), countable(kind).output)
        with perf_attached(asked) as printed:
            execution.go()
            execution.wait_exited()
        execution.result()
    found = counts(totals(read_counters(printed.text, "perf stat")), (event,))
    if isinstance(found, str):
        raise BrokenError(f"counting instructions a second time: {found}")
    return round(found[0])
