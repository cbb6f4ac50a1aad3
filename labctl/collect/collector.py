"""Define collectors: what they may use of a trial's machine, and the raw trial that they parse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from pathlib import Path

from labctl.base.channel import Channel
from labctl.base.cpus import CpuSet
from labctl.base.tuning import Kind, Level
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.trace.timeline.recordings import Traces


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRef:
    """Refer to a thread. `index`: its number among those of its role."""

    pid: int
    tid: int
    role: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Hold the accelerator of the guests ("kvm", "tcg", or None if only a boot can determine it),
    and the image."""

    accelerator: str | None
    tree: Path | None


Calibration = Callable[[], Mapping[str, object] | None]
"""The count of instructions per operation for a trial's side, None if there is none; it is made
once per image."""


def uncalibrated() -> None:
    """Return no count, for a workload whose operations vary."""
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Hold what a collector may use of a trial: its folder, its machine, and room to record.

    `threads`: those of the machine now. `known_threads`: these, labctl's, and those of neighbours.
    `counters`: QEMU's counts so far; natively those of the cgroup. `pid`: natively the process that
    waits to become the workload, once it exists. `seconds`: time limit of the measured command.
    """

    folder: TrialFolder
    kind: Kind
    accelerator: str
    channel: Channel
    trial_cpus: CpuSet
    vcpu_tids: Sequence[int]
    threads: Callable[[], list[ThreadRef]]
    known_threads: Callable[[], list[ThreadRef]]
    counters: Callable[[], dict[str, object]]
    housekeeping: Callable[[], CpuSet]
    """CPUs of the recording programs. They are the same for pinned and other guests, so that
    recording costs each the same."""
    room_mib: int
    """Disk space for a recording, 0 if there is none."""
    is_traced: bool
    """True if the disk has room for the traces of the trial's whole block."""
    seconds: float
    calibration: Calibration = uncalibrated
    pid: int | None = None
    beside: Callable[[], list[dict[str, object]]] = list
    """Usage of neighbours so far, as host.json has it (`snapshots.beside`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourWork:
    """Hold the work of one neighbour over its life. `operations`: None if its output does not say,
    with the reason in `problem`."""

    workload: str
    cpu_s: float
    operations: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTrial:
    """Hold the inputs of a trial's metrics: raw files and trial metadata.

    `kind`: "guest" or "native". `accelerator`: "kvm" or "tcg". `program`, `calibratable`,
    `rate_metric`: the workload's. `own`: the readings of its own output. `neighbours`: those that
    ran beside it. `readings`: all of the trial so far.
    """

    folder: TrialFolder
    traces: Traces
    kind: str
    accelerator: str
    program: str
    calibratable: bool
    rate_metric: str | None
    own: Sequence[Reading]
    neighbours: Sequence[NeighbourWork] = ()
    readings: list[Reading] = field(default_factory=list)


class Attaching(IntEnum):
    """Order in which collectors attach: the later, the closer to the measured window."""

    BEFORE_COMMAND = auto()
    """Collectors that query the machine itself, before the command is prepared."""
    COUNTERS = auto()
    RECORDERS = auto()
    AT_WINDOW = auto()
    """Last, because its window should be the trial's own."""


class Edge(Enum):
    """Name the edges of the measured window at which snapshots are taken."""

    OPENS = auto()
    CLOSES = auto()


Snapshot = Callable[[Edge], Mapping[str, object]]
"""Part of host.json that an attached collector adds, at either edge of the measured window."""


def why_no_image(at: Here) -> str | None:
    """Return why nothing of the guest image can be used, a sentence, or None."""
    return None if at.tree else "no guest image is built yet: 'labctl image build'."


def reads(
    what: Callable[[Target], Mapping[str, object]],
) -> Callable[[Target], AbstractContextManager[Snapshot]]:
    """Return a collector's `attached` that attaches nothing and adds this to both snapshots."""
    return lambda target: nullcontext(lambda _: what(target))


def _works(_: Here) -> None:
    return None


def _nothing(_: Target) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Describe the origin of some of a trial's metrics: a collector, or others' readings.

    `order`: metrics derived from others' readings are parsed after them. Samples are stored in this
    order.
    """

    parse: Callable[[RawTrial], Iterable[Reading]]
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector(Source):
    """Describe a collector.

    `gives`: its metrics in words. `why_unavailable`: why it cannot work on this host, a sentence,
    or None. `attached`: collects while it is entered, and stores its raw files; if it cannot, it
    stores the reason. It raises BrokenError if a program that it started ends early. `raw`: its own
    files. `recorders`: names of its processes on the host, whose CPU time counts as labctl's.
    """

    name: str
    level: Level
    gives: str
    sides: tuple[Kind, ...] = (Kind.NATIVE, Kind.GUEST)
    why_unavailable: Callable[[Here], str | None] = _works
    attaching: Attaching = Attaching.AT_WINDOW
    attached: Callable[[Target], AbstractContextManager[Snapshot | None]] = _nothing
    raw: tuple[str, ...] = ()
    recorders: tuple[str, ...] = ()
