"""Count instructions per operation on each side, once per image, and keep them (METHOD rule 13).

Natively they are counted a second time, by the CPU itself where it has a PMU, else by another
tool: by how much the counts differ bounds the error of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labctl.base.channel import Channel
from labctl.base.events import Note
from labctl.base.tuning import Kind
from labctl.collect.counters import calibrated
from labctl.run.collectors.instruction_counts import PER_OPERATION, counted, second_method
from labctl.run.guests.lab import Lab
from labctl.run.guests.native_bench import tree_channel
from labctl.store.jsonfile import canonical, read_json, write_json
from labctl.study.study import StudyWorkload
from labctl.workloads.registry import workload


class Calibrations:
    """Hold the counts of a run's workloads; none for those whose operations vary."""

    def __init__(self, lab: Lab, workloads: Mapping[str, StudyWorkload]) -> None:
        self._lab = lab
        self._declared = {
            name: declared
            for name, declared in workloads.items()
            if workload(declared.program).calibratable and lab.source.has_native_side
        }
        self._tsc_hz = calibrated.tsc_hz(
            Path("/proc/cpuinfo").read_text(),
            _text(Path("/sys/devices/system/cpu/cpu0/tsc_freq_khz")),
        )

    def count_natively(self) -> None:
        """Count in the image's tree what isn't counted yet."""
        if self._all_counted(Kind.NATIVE):
            return
        with tree_channel(self._lab) as channel:
            self._count(channel, Kind.NATIVE)

    def count_in_guest(self, channel: Channel) -> None:
        """Count in a booted guest what isn't counted yet."""
        if self._all_counted(Kind.GUEST):
            return
        self._lab.listener(
            Note(text="Counting instructions per operation in the guest with callgrind (once).")
        )
        self._count(channel, Kind.GUEST)

    def summary(self) -> list[dict[str, Any]]:
        """Return the counts of each workload: both sides', the second one and who made it, by how
        much the guest's differs from native's (a share of it), and the bound on the error of any.
        """
        rows = []
        for name, declared in self._declared.items():
            native, guest = (self._read(declared, kind) for kind in (Kind.NATIVE, Kind.GUEST))
            rows.append(
                {
                    "workload": name,
                    "program": declared.program,
                    "native": native[PER_OPERATION],
                    "guest": guest[PER_OPERATION],
                    "difference": guest[PER_OPERATION] / native[PER_OPERATION] - 1,
                    "second": native["second"][PER_OPERATION],
                    "second_method": native["second"]["method"],
                    "bound": self._bound(declared),
                }
            )
        return rows

    def of(self, kind: Kind, declared: StudyWorkload) -> dict[str, Any] | None:
        """Return the count that holds for this side's trials of a workload, None where there is
        none."""
        if declared not in self._declared.values():
            return None
        bound = self._bound(declared)
        return {**self._read(declared, kind), "bound": bound, "tsc_hz": self._tsc_hz}

    def _read(self, declared: StudyWorkload, kind: Kind) -> dict[str, Any]:
        found: dict[str, Any] = read_json(self._path(declared, kind))
        return found

    def _bound(self, declared: StudyWorkload) -> float:
        """Bound the error, also by the guest's count: the same binary should execute the same
        there.
        """
        native, guest = (self._read(declared, kind) for kind in (Kind.NATIVE, Kind.GUEST))
        others = (native["second"][PER_OPERATION], guest[PER_OPERATION])
        return calibrated.error_bound(native[PER_OPERATION], *others)

    def _all_counted(self, kind: Kind) -> bool:
        return all(self._path(declared, kind).is_file() for declared in self._declared.values())

    def _count(self, channel: Channel, kind: Kind) -> None:
        for declared in self._declared.values():
            path = self._path(declared, kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, counted(channel, declared, self._lab.vcpus, kind, self._lab.listener))

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
            "second": second_method() if kind is Kind.NATIVE else None,
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
