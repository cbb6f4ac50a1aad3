"""Count instructions per operation on each side, once per image, and keep them (METHOD rule 13).

Natively they are counted a second time, by the CPU itself where it has a PMU, else by another
tool: by how much the counts differ bounds the error of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypedDict

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.events import Listener, Note, Warned
from labctl.base.tuning import Kind, Tuning
from labctl.collect.counters import calibrated, perf_stat
from labctl.collect.counters.perf import counts, perf_attached, read_counters, totals
from labctl.collect.counters.perf_stat import countable
from labctl.run.guests.bench import tree_channel
from labctl.run.guests.lab import Lab
from labctl.store.jsonfile import canonical, read_json, write_json
from labctl.study.study import StudyWorkload
from labctl.workloads.registry import workload_of
from labctl.workloads.setting import Setting

_COUNTING_S = 180.0
"""Timeout of one run under callgrind, some fifty times slower, in an emulated guest."""
_PMU, _LACKEY = "perf", "lackey"
_PER_OPERATION: Final = "instructions_per_operation"


class _Count(TypedDict):
    """Hold the count of one tool. `counts`: pairs of operations and their instructions."""

    instructions_per_operation: float
    method: str
    counts: list[list[int]]


class _Counts(_Count):
    """Hold the count of one side as its file has it."""

    counted_on: str


class _NativeCounts(_Counts):
    """Hold the native count, and that of a second tool."""

    second: _Count


class Calibrations:
    """Hold the counts of a run's workloads; none for those whose operations vary."""

    def __init__(self, lab: Lab, workloads: Mapping[str, StudyWorkload]) -> None:
        self._lab = lab
        self._declared = {
            name: declared
            for name, declared in workloads.items()
            if workload_of(declared).calibratable and lab.source.has_native_side
        }
        self._tsc_hz = calibrated.tsc_hz(
            Path("/proc/cpuinfo").read_text(),
            _text(Path("/sys/devices/system/cpu/cpu0/tsc_freq_khz")),
        )
        self._others = {
            name: Calibrations(other, workloads) for name, other in lab.other_images.items()
        }

    def for_arm(self, tuning: Tuning) -> Calibrations:
        """Return the counts in the image in which a tuning runs."""
        return self._others.get(self._lab.for_arm(tuning).image.name, self)

    def count_natively(self) -> None:
        """Count in the trees of the images what isn't counted yet."""
        if not self._all_counted(Kind.NATIVE):
            with tree_channel(self._lab) as channel:
                self._count(channel, Kind.NATIVE)
        for other in self._others.values():
            other.count_natively()

    def count_in_guest(self, channel: Channel) -> None:
        """Count in a booted guest what isn't counted yet."""
        if self._all_counted(Kind.GUEST):
            return
        self._lab.listener(
            Note(text="Counting instructions per operation in the guest with callgrind (once).")
        )
        self._count(channel, Kind.GUEST)

    def summary(self) -> list[dict[str, object]]:
        """Return the counts of each workload: both sides', the second one and who made it, by how
        much the guest's differs from native's (a share of it), and the bound on the error of any.
        """
        rows = []
        for name, declared in self._declared.items():
            native, guest = self._native(declared), self._guest(declared)
            rows.append(
                {
                    "workload": name,
                    "program": declared.program,
                    "native": native[_PER_OPERATION],
                    "guest": guest[_PER_OPERATION],
                    "difference": guest[_PER_OPERATION] / native[_PER_OPERATION] - 1,
                    "second": native["second"][_PER_OPERATION],
                    "second_method": native["second"]["method"],
                    "bound": self._bound(declared),
                }
            )
        return rows

    def of(self, kind: Kind, declared: StudyWorkload) -> dict[str, object] | None:
        """Return the count that holds for this side's trials of a workload, None where there is
        none."""
        if declared not in self._declared.values():
            return None
        bound = self._bound(declared)
        return {**read_json(self._path(declared, kind)), "bound": bound, "tsc_hz": self._tsc_hz}

    def _native(self, declared: StudyWorkload) -> _NativeCounts:
        found: _NativeCounts = read_json(self._path(declared, Kind.NATIVE))
        return found

    def _guest(self, declared: StudyWorkload) -> _Counts:
        found: _Counts = read_json(self._path(declared, Kind.GUEST))
        return found

    def _bound(self, declared: StudyWorkload) -> float:
        """Bound the error, also by the guest's count: the same binary should execute the same
        there.
        """
        native, guest = self._native(declared), self._guest(declared)
        others = (native["second"][_PER_OPERATION], guest[_PER_OPERATION])
        return calibrated.error_bound(native[_PER_OPERATION], *others)

    def _all_counted(self, kind: Kind) -> bool:
        return all(self._path(declared, kind).is_file() for declared in self._declared.values())

    def _count(self, channel: Channel, kind: Kind) -> None:
        for declared in self._declared.values():
            path = self._path(declared, kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, _counted(channel, declared, self._lab.vcpus, kind, self._lab.listener))

    def _path(self, declared: StudyWorkload, kind: Kind) -> Path:
        """Return one file per image, side, accelerator and the workload with its parameters."""
        key = {
            "image": self._lab.image.digest,
            "kind": str(kind),
            "accelerator": self._lab.accelerator.name if kind is Kind.GUEST else None,
            "program": declared.program,
            "parameters": dict(declared.parameters),
            "operations": list(calibrated.COUNTED_OPERATIONS),
            # A libc picks its routines by CPU.
            "cpu": _cpu_model(),
            "second": _second_method() if kind is Kind.NATIVE else None,
        }
        digest = hashlib.sha256(canonical(key).encode()).hexdigest()[:16]
        return self._lab.places.cache / f"calibration-{digest}.json"


def _cpu_model() -> list[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return sorted({line for line in lines if line.startswith(("model name", "flags", "CPU part"))})


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _counted(
    channel: Channel, declared: StudyWorkload, vcpus: int, kind: Kind, listener: Listener
) -> _Counts | _NativeCounts:
    """Return the instructions of one operation of a workload, counted on that machine; natively a
    second time, in another way."""
    exact = [_exact(declared, operations, vcpus) for operations in calibrated.COUNTED_OPERATIONS]
    count = _count_of(
        "callgrind",
        [
            calibrated.collected_instructions(
                _stderr_of(channel, calibrated.callgrind_command(command))
            )
            for command in exact
        ],
    )
    if kind is Kind.NATIVE:
        second = _second(channel, exact, listener)
        return {**count, "second": second, "counted_on": str(kind)}
    return {**count, "counted_on": str(kind)}


def _second_method() -> str:
    """Return what counts a second time natively: the CPU where it can, else another tool."""
    return _LACKEY if countable(str(Kind.NATIVE)).problem else _PMU


def _second(channel: Channel, exact: Sequence[Command], listener: Listener) -> _Count:
    if _second_method() == _PMU:
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
    program = workload_of(declared)
    setting = Setting(
        parameters=program.check_parameters(declared.parameters),
        vcpus=vcpus,
        duration_s=declared.duration_s,
    )
    command = program.exact_command(setting, operations)
    if command is None:
        raise BrokenError(f"{declared.program} has no command for counting")
    return command


def _count_of(method: str, instructions: Sequence[int]) -> _Count:
    pairs = list(zip(calibrated.COUNTED_OPERATIONS, instructions, strict=True))
    return {
        _PER_OPERATION: calibrated.instructions_per_operation(pairs),
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
