"""Measure with stress-ng what it costs to make a process, and to map and touch memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.yamltext import parse_yaml
from labctl.store.samples import Reading, sample
from labctl.store.trial import TrialFolder
from labctl.workloads.workload import IntegerParameter, Setting, WorkloadBase

BINARY = "/usr/bin/stress-ng"
OUTPUT = "stress-ng.yaml"
_END = "\n..."
"""A number that is cut is still a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StressNg(WorkloadBase):
    """Define a stressor. `stressor`: as stress-ng names it. `first_window`: operations of each
    worker before the machine's rate is known: an emulated guest does them in a tenth of a second.
    """

    stressor: str
    first_window: int

    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        return self._command(setting, f"--timeout={int(setting.duration_s)}s")

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        each = self.first_window if rate is None else max(1, round(rate * window_s / setting.vcpus))
        # It divides them among its workers by itself.
        return self._command(setting, f"--{self.stressor}-ops={each * setting.vcpus}")

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        if OUTPUT not in files:
            raise BrokenError(f"stress-ng wrote no {OUTPUT}")
        count, seconds = self._done(files[OUTPUT].decode(errors="replace"), OUTPUT)
        return [count / seconds]

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        source = f"files/{OUTPUT}"
        count, seconds = self._done(raw.read_text(source), str(raw.path / source))
        yield sample("ops_per_s", count / seconds, source=source)
        yield sample("operations", count, source=source)

    def _command(self, setting: Setting, length: str) -> Command:
        size_kib = setting.parameters.get("size_kib")
        return Command(
            argv=(
                BINARY,
                f"--{self.stressor}={setting.vcpus}",
                *((f"--{self.stressor}-bytes={size_kib}k",) if size_kib else ()),
                length,
                "--metrics-brief",
                # Not the machine's temporary folder, which may be on a disk.
                "--temp-path=.",
                f"--yaml={OUTPUT}",
            ),
            files=(OUTPUT,),
        )

    def _done(self, text: str, where: str) -> tuple[int, float]:
        """Operations of all workers, and for how long they ran, on average."""
        if not text.rstrip().endswith(_END):
            raise BrokenError(
                f"{where}: expected '{_END}' at the end of stress-ng's YAML, found none"
            )
        try:
            report: Any = parse_yaml(text)
            (metrics,) = report["metrics"]
            name, count, seconds = (
                metrics[key] for key in ("stressor", "bogo-ops", "wall-clock-time")
            )
            if name != self.stressor or not _is_number(count) or not _is_number(seconds):
                found = f"{count!r} operations of '{name}' in {seconds!r} s"
                raise ValueError(found[:200])
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenError(
                f"{where}: expected stress-ng's YAML with the metrics of '{self.stressor}', found "
                f"something else ({error})"
            ) from error
        return int(count), float(seconds)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e18


STRESS_NG_FORK = StressNg(
    name="stress-ng-fork",
    operation="one child made, ended and waited for",
    binaries=(BINARY,),
    primary="ops_per_s",
    rate_metric="ops_per_s",
    stressor="fork",
    first_window=50,
)

STRESS_NG_MMAP = StressNg(
    name="stress-ng-mmap",
    operation="one mapping made, touched, protected and unmapped",
    parameters=(
        # 256 pages of 4 KiB: the default of 256 MiB makes an operation of a second.
        IntegerParameter(
            name="size_kib",
            default=1024,
            minimum=64,
            maximum=1_048_576,
            description="memory that one operation of a process maps",
        ),
    ),
    binaries=(BINARY,),
    primary="ops_per_s",
    rate_metric="ops_per_s",
    stressor="mmap",
    first_window=2,
)
