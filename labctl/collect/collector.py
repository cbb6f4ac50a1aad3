"""Define what a collector is, what it gets of a trial's machine to attach to, and what it is parsed
from."""

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
    """Hold what guests run under ("kvm", "tcg", or None where only a boot can tell), and the
    image."""

    accelerator: str | None
    tree: Path | None


Calibration = Callable[[], Mapping[str, object] | None]
"""The count of instructions per operation that holds for a trial's side, None where there is none;
it is made once per image."""


def uncalibrated() -> None:
    """Return no count, as for a workload whose operations are no constant."""
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Hold what a collector may use of a trial: its folder, its machine, and room to record.

    `threads`: those of the machine as they are now. `known_threads`: these, labctl's and those that
    run beside. `counters`: what QEMU, natively the cgroup, has counted so far. `pid`: natively the
    process that waits to become the workload, once it is there. `seconds`: what the measured
    command may take at most.
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
    """CPUs of the recording programs, for pinned guests and others alike, so that they cost each
    the same.
    """
    room_mib: int
    """Disk space for a recording, 0 for none at all."""
    is_traced: bool
    """True if the disk has room for the traces of all of the trial's block."""
    seconds: float
    calibration: Calibration = uncalibrated
    pid: int | None = None
    beside: Callable[[], list[dict[str, object]]] = list
    """Usage of neighbours so far, as host.json has it (`snapshots.beside`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourWork:
    """Hold what one neighbour did in its life. `operations`: None where `problem` says why its
    output doesn't tell."""

    workload: str
    cpu_s: float
    operations: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTrial:
    """Hold what a trial's metrics are made of: its raw files, and what else is known of it.

    `kind`: "guest" or "native". `accelerator`: "kvm" or "tcg". `program`, `calibratable`,
    `rate_metric`: the workload's. `own`: the readings of its own output. `neighbours`: what ran
    beside it. `readings`: all of the trial so far.
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
    """Order the attaching of collectors: the later, the closer to the measured window."""

    BEFORE_COMMAND = auto()
    """Collectors that ask the machine itself, before the command is prepared."""
    COUNTERS = auto()
    RECORDERS = auto()
    AT_WINDOW = auto()
    """Last: its window is to be the trial's own."""


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
    """Return what attaches nothing and adds this to the snapshots, the same at both edges."""
    return lambda target: nullcontext(lambda _: what(target))


def _works(_: Here) -> None:
    return None


def _nothing(_: Target) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Describe where some of a trial's metrics come from: a collector, or others' readings.

    `order`: what is made of others' readings is parsed after them. Samples are stored in it.
    """

    parse: Callable[[RawTrial], Iterable[Reading]]
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector(Source):
    """Hold everything that labctl knows of a collector.

    `gives`: its metrics in words. `why_unavailable`: why it can't work on this host, a sentence, or
    None. `attached`: collects as long as it is entered, and stores its raw files; where it can't,
    it stores why. It raises BrokenError when what it started ends before it is asked to.
    `raw`: the files of its own. `recorders`: names of the processes that run on the host for it,
    whose CPU time is labctl's.
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
