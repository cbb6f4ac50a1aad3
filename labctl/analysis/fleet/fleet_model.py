"""Define what analysis says of a fleet, as values. Reports render these and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from labctl.analysis.fleet.host_effects import HostEffect, HostFacts, Where
from labctl.analysis.hosts import FTest, Pooled

GROUPING: Mapping[str, str] = {
    "cpu_model": "CPU",
    "kernel": "kernel",
    "firmware": "microcode",
    "topology": "topology",
}
"""Facts by which hosts may differ in groups: the field of HostFacts, and its name for people."""

ALL_HOSTS = "all hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """Say how far a host of the fleet came. `status` is done, failed, unreachable, "not touched",
    waiting or running; `reason` in words, "" where there is nothing to say."""

    host: str
    status: str
    reason: str = ""
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """Hold one effect or level of one host, with the host's facts."""

    host: str
    facts: HostFacts
    effect: HostEffect


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(Where):
    """Name what is pooled, under one accelerator."""

    accelerator: str

    @property
    def is_log(self) -> bool:
        """Return whether estimates are logarithms."""
        return self.kind != "difference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Hold one host at one place, on the scale of effects. `low`, `high`: its own interval of 95 %,
    its variance drawn to what is typical of the hosts (`hosts.moderated`); `verdict`: that of its
    own run. `distance`: from what the others predict, in standard errors; `p` of that, adjusted for
    all hosts and places (Holm); both None where too few hosts are there to predict anything.
    `typical`: of a host apart, the median of the others that it is held against."""

    host: str
    estimate: float
    low: float
    high: float
    units: int
    boots: int
    verdict: str | None
    distance: float | None = None
    p: float | None = None
    is_apart: bool = False
    typical: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEffect:
    """Hold the pooled effect of a group of hosts; None with the reason in `why`."""

    group: str
    hosts: tuple[str, ...]
    pooled: Pooled | None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactSplit:
    """Split the hosts of a place by a fact. `p`: of equal mean effects, adjusted for all places and
    facts (Holm); None with the reason in `why`."""

    fact: str
    groups: tuple[GroupEffect, ...]
    p: float | None
    differs: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEffect:
    """Say what a tuning does at a place over the hosts. `points` from the smallest estimate to the
    largest. `whole`: all hosts pooled. `test`: of equal true effects (F*), its `p` adjusted for all
    places (Holm); None with the reason in `why_no_test`."""

    place: Place
    points: tuple[Point, ...]
    whole: GroupEffect
    test: FTest | None
    p: float | None
    differ: bool
    why_no_test: str
    splits: tuple[FactSplit, ...]
    margin: float | None
    no_worse_than: float | None
    left_out: tuple[tuple[str, str], ...]
    """Hosts of which nothing is pooled here, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLevel:
    """Hold the baseline's levels of hosts alike (`group`) at a place; hosts apart are far from what
    the others predict. `why`: no host could be held against others."""

    place: Place
    group: str
    points: tuple[Point, ...]
    typical: float
    why: str = ""


class Take(StrEnum):
    """Name what the fleet says of a tuning for a group of hosts."""

    TAKE = "may take it"
    HARM = "does harm"
    OPEN = "not shown"
    FEW = "too few hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnswer:
    """Answer for a tuning and a group of hosts. `by`: the fact whose groups differ, "" for all
    hosts. `why`: the ground of it, a sentence's end; `place` and `pooled`: the effect that it
    hangs on, where it is one."""

    tuning: str
    accelerator: str
    group: str
    by: str
    hosts: int
    code: Take
    why: str
    place: Place | None = None
    pooled: Pooled | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetJudgement:
    """Hold all conclusions about a fleet. `alpha`: of all claims of one kind together;
    `confidence`: of the interval of each mean over all hosts, so that all hold together at
    1 - alpha; those of groups are wider."""

    hosts: int
    measured: int
    states: tuple[HostState, ...]
    alpha: float
    confidence: float
    effects: tuple[FleetEffect, ...]
    levels: tuple[FleetLevel, ...]
    answers: tuple[GroupAnswer, ...]
    facts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Fact to its values with how many hosts have each."""
    warnings: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
