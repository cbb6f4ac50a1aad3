"""Instructions per operation, counted on each side once per image and kept (METHOD rule 13)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from labctl.base.channel import Channel
from labctl.base.errors import BrokenError
from labctl.base.events import Note
from labctl.base.tuning import Kind
from labctl.collect import calibrated
from labctl.host.native import native_session
from labctl.run.bench import MIB, RUNNER, Bench, native_channel
from labctl.run.lab import Lab
from labctl.store.jsonfile import canonical, read_json, write_json
from labctl.store.trial import TrialFolder
from labctl.study.plan import Plan
from labctl.study.study import StudyWorkload
from labctl.workloads.model import Setting
from labctl.workloads.registry import workload

_COUNTING_S = 180.0
"""For one run under callgrind, which is some fifty times slower, in an emulated guest."""


class Calibrations:
    """The counts of a run's workloads; nothing for those whose operations are no constant."""

    def __init__(self, lab: Lab, plan: Plan) -> None:
        self._lab = lab
        self._declared = [
            declared
            for declared in plan.workloads.values()
            if workload(declared.program).calibratable and lab.source.has_native_side
        ]
        self._tsc_hz = calibrated.tsc_hz(
            Path("/proc/cpuinfo").read_text(),
            _text(Path("/sys/devices/system/cpu/cpu0/tsc_freq_khz")),
        )

    def count_natively(self) -> None:
        """Count in the image's tree what isn't counted yet."""
        if self._all_counted(Kind.NATIVE):
            return
        with native_session(
            self._lab.image.tree,
            data_folder=None,
            memory_bytes=self._lab.memory_mib * MIB,
            layout=self._lab.layout,
            journal=self._lab.journal,
            runner_program=RUNNER,
        ) as session:
            self._count(native_channel(session), Kind.NATIVE)

    def count_in_guest(self, channel: Channel) -> None:
        """Count in a booted guest what isn't counted yet."""
        if self._all_counted(Kind.GUEST):
            return
        self._lab.listener(
            Note(text="Counting instructions per operation in the guest with callgrind (once).")
        )
        self._count(channel, Kind.GUEST)

    def summary(self) -> list[dict[str, Any]]:
        """Both sides' counts of each workload and by how much they differ (a share of native's):
        the bound on what counting once can get wrong."""
        rows = []
        for declared in self._declared:
            native, guest = (
                float(read_json(self._path(declared, kind))["instructions_per_operation"])
                for kind in (Kind.NATIVE, Kind.GUEST)
            )
            rows.append(
                {
                    "program": declared.program,
                    "native": native,
                    "guest": guest,
                    "difference": guest / native - 1,
                }
            )
        return rows

    def store(self, folder: TrialFolder, bench: Bench, declared: StudyWorkload) -> None:
        """Put the count that holds for this side beside the trial's raw files."""
        if declared in self._declared:
            counts = read_json(self._path(declared, bench.kind))
            folder.write_raw_json(calibrated.RAW, {**counts, "tsc_hz": self._tsc_hz})

    def _all_counted(self, kind: Kind) -> bool:
        return all(self._path(declared, kind).is_file() for declared in self._declared)

    def _count(self, channel: Channel, kind: Kind) -> None:
        for declared in self._declared:
            path = self._path(declared, kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, self._counted(channel, declared, kind))

    def _counted(self, channel: Channel, declared: StudyWorkload, kind: Kind) -> dict[str, Any]:
        program = workload(declared.program)
        setting = Setting(
            parameters=program.check_parameters(declared.parameters),
            vcpus=self._lab.vcpus,
            duration_s=declared.duration_s,
        )
        counts: list[tuple[int, int]] = []
        for operations in calibrated.COUNTED_OPERATIONS:
            exact = program.exact_command(setting, operations)
            if exact is None:
                raise BrokenError(f"{declared.program} has no command for counting")
            result = channel.run(calibrated.callgrind_command(exact), seconds=_COUNTING_S)
            stderr = result.stderr.decode(errors="replace")
            counts.append((operations, calibrated.collected_instructions(stderr)))
        return {
            "instructions_per_operation": calibrated.instructions_per_operation(counts),
            "method": "callgrind",
            "counted_on": str(kind),
            "counts": [list(pair) for pair in counts],
        }

    def _path(self, declared: StudyWorkload, kind: Kind) -> Path:
        """One file per image, side, accelerator and the workload with its parameters."""
        key = {
            "image": self._lab.image.digest,
            "kind": str(kind),
            "accelerator": self._lab.accelerator.name if kind is Kind.GUEST else None,
            "program": declared.program,
            "parameters": dict(declared.parameters),
            "operations": list(calibrated.COUNTED_OPERATIONS),
            # A libc picks its routines by CPU.
            "cpu": _cpu_model(),
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
