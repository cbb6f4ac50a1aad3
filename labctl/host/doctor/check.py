"""Define checks, their findings, and the sweep that they check for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from labctl.base.cpus import CpuSet
from labctl.base.errors import LabctlError
from labctl.base.hostfacts import EVERYTHING, Rests
from labctl.base.tuning import Requires, Tuning
from labctl.host.accelerator import Accelerator
from labctl.host.doctor.activity import Activity
from labctl.host.doctor.reader import Reader

MIB = 1024 * 1024
GIB = 1024 * MIB


class Status(StrEnum):
    """Name the statuses in order of severity."""

    BLOCK = "block"
    """No sweep starts, or none can be valid, until this is changed."""
    WARN = "warn"
    """It affects the figures, or a tuning or a metric is unavailable."""
    UNKNOWN = "unknown"
    """Unknown; `found` says why."""
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Hold one row. `remedy`: a command, or a sentence if no command helps; "" if nothing needs
    doing. `value`: the finding for programs; None if it is unknown."""

    name: str
    group: str
    status: Status
    found: str
    why: str
    remedy: str = ""
    value: Any = None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Describe what a sweep would need of this host.

    `accelerator`: the guests' accelerator, or the error from asking for it. `cpus`: those that the
    pin plan gives the vCPUs. `memory_bytes`, `disk_bytes`: of the guest, of the state folder.
    """

    accelerator: Accelerator | LabctlError
    activity: Activity
    state_folder: Path
    lock: Path
    journal: Path
    cpus: CpuSet = frozenset()
    memory_bytes: int = GIB
    disk_bytes: int = 0
    tunings: Mapping[str, Tuning] = field(default_factory=dict)
    has_link: bool = True
    """True if its guests send packets to a peer."""
    hwlat_s: int | None = None
    """Seconds to look for firmware interruptions, which stops CPUs; None: not at all."""

    def requiring(self, wanted: Callable[[Requires], object]) -> list[str]:
        """Return the names of the tunings with a requirement that matches."""
        return [name for name, tuning in self.tunings.items() if wanted(tuning.requires)]

    def using(self, wanted: Callable[[Tuning], object]) -> list[str]:
        return [name for name, tuning in self.tunings.items() if wanted(tuning)]


S = TypeVar("S", bound=Scope)


@dataclass(frozen=True, slots=True)
class Result:
    """Hold the result of a check; its row is made of this and of the check's own name and
    reason."""

    status: Status
    found: str
    remedy: str = ""
    value: Any = None


def fine(found: str, value: Any = None) -> Result:
    return Result(Status.OK, found, "", value)


def warn(found: str, remedy: str, value: Any = None) -> Result:
    return Result(Status.WARN, found, remedy, value)


def block(found: str, remedy: str, value: Any = None) -> Result:
    return Result(Status.BLOCK, found, remedy, value)


def unknown(found: str, remedy: str = "") -> Result:
    return Result(Status.UNKNOWN, found, remedy, None)


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    """Check one thing. `why`: why it matters, one sentence. `look` reads and changes nothing.
    `applies`: whether there is anything to check."""

    name: str
    group: str
    why: str
    look: Callable[[Reader, S], Result]
    applies: Callable[[S], bool] = lambda _: True

    def finding(self, reader: Reader, scope: S) -> Finding:
        """Return the row of this check. A check that fails is a row as well, and the others go
        on."""
        try:
            result = self.look(reader, scope)
        except LabctlError as error:
            result = unknown(error.message, error.hint or "")
        except (OSError, ValueError, LookupError) as error:
            result = unknown(f"unexpected output on this host: {error}")
        except Exception as error:
            result = unknown(f"a fault in the check: {type(error).__name__}: {error}")
        return Finding(
            name=self.name,
            group=self.group,
            status=result.status,
            found=result.found,
            why=self.why,
            remedy=result.remedy,
            value=result.value,
        )


def size(number_of_bytes: float) -> str:
    """Return "512 MiB", "23.1 GiB"."""
    if number_of_bytes >= GIB:
        return f"{number_of_bytes / GIB:.3g} GiB"
    return f"{number_of_bytes / MIB:.0f} MiB"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2g} %" if fraction < 0.1 else f"{100 * fraction:.0f} %"


def some(names: Iterable[str], most: int = 3) -> str:
    """Return "a, b, c and 4 more"."""
    listed = list(names)
    if len(listed) <= most + 1:
        return ", ".join(listed)
    return f"{', '.join(listed[:most])} and {len(listed) - most} more"


# Choose the warnings that matter most to a study, by what its tunings change.


PINNING = frozenset({Rests.PLACEMENT, Rests.SCHEDULING})
"""Changes that the tunings of `pinning` make, the first study that people run."""

_ALWAYS = ("kvm-right", "kvm-boot")
"""Checks that come first for any study: under emulation, differences from native are the
emulator's."""
_BEARING = {
    "cpus": frozenset({Rests.PLACEMENT, Rests.SCHEDULING}),
    "core-kinds": frozenset({Rests.PLACEMENT}),
    "rt-group-sched": frozenset({Rests.SCHEDULING}),
    "rt-throttling": frozenset({Rests.SCHEDULING}),
    "rt-right": frozenset({Rests.SCHEDULING}),
    "hugepages": frozenset({Rests.MEMORY}),
    "hugetlbfs": frozenset({Rests.MEMORY}),
    "memlock": frozenset({Rests.MEMORY}),
    "numa-balancing": frozenset({Rests.MEMORY}),
    "thp": frozenset({Rests.MEMORY}),
    "ksm": frozenset({Rests.MEMORY}),
    "file-system": frozenset({Rests.DISK}),
    "io-uring": frozenset({Rests.DISK}),
    "vhost-net": frozenset({Rests.NETWORK}),
    "tap-devices": frozenset({Rests.NETWORK}),
    "traffic-control": frozenset({Rests.NETWORK}),
    "settings-right": frozenset({Rests.HOST}),
    "tuned-drift": frozenset({Rests.HOST}),
    "governor": frozenset({Rests.HOST, Rests.CPU}),
    "c-states": frozenset({Rests.HOST, Rests.CPU}),
    "mitigations": frozenset({Rests.CPU}),
    "workloads": EVERYTHING,
    "conditions": EVERYTHING,
    "irq-affinity": frozenset({Rests.PLACEMENT}),
    "smt": frozenset({Rests.PLACEMENT}),
}
"""Checks that affect tunings which change one of these, most severe first."""
_OTHERWISE = ("steal", "other-guests", "cpu-load", "swap", "nested", "pmu", "kvm-exits")
"""Checks that affect any study, less than those above."""


def foremost(
    findings: Iterable[Finding], rests: frozenset[Rests], most: int = 3
) -> tuple[Finding, ...]:
    """Return the warnings that matter most to a study whose tunings change `rests`, most severe
    first and one per group, because two of a group mostly have one cause."""
    order = (
        *_ALWAYS,
        *(name for name, bears_on in _BEARING.items() if bears_on & rests),
        *_OTHERWISE,
    )
    ranks = {name: rank for rank, name in enumerate(order)}
    warnings = [finding for finding in findings if finding.status is Status.WARN]
    warnings.sort(key=lambda finding: ranks.get(finding.name, len(ranks)))
    of_groups: dict[str, Finding] = {}
    for finding in warnings:
        of_groups.setdefault(finding.group, finding)
    return tuple(of_groups.values())[:most]
