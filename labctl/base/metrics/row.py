"""Define the columns of the table of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum, auto

from labctl.base.units import Better, Unit

ANY = "*"
"""Suffix of a row's name: the row covers every name with that prefix that has no row of its own."""


class Zero(Enum):
    """Say whether 0 is a usual value of a metric: then no ratio is computed (METHOD 15)."""

    RARE = auto()
    USUAL = auto()
    NATIVE = auto()
    """The row is about native arms alone."""


class Counts(StrEnum):
    """Name metrics that count single events: a small count supports no ratio (METHOD 15)."""

    EVENTS = "events"
    OPERATIONS = "operations"


class Page(Enum):
    """Say in which pages the table of all numbers includes a metric."""

    WHOLE = auto()
    """Shown if there is room for every metric."""
    LARGE = auto()
    """Shown for a large run, too."""
    LARGEST = auto()
    """Shown while there is room for more than the primary metric."""


class Column(IntEnum):
    """Name the columns of every table beside the primary metric's, from left to right. Metrics of
    one column are alternative names of one quantity."""

    IPC = auto()
    OPEN_MEAN = auto()
    OPEN_P95 = auto()
    P95 = auto()
    EXITS = auto()


class Table(StrEnum):
    """Name the tables of docs/metrics.md, by their marks."""

    WORKLOAD = "workload"
    HOST = "host"
    PER_OPERATION = "per-operation"
    CPU = "ipc-and-caches"
    EXITS = "exits"
    REASONS = "exits-by-reason"
    HOST_SCHEDULER = "host-scheduler"
    GUEST_SCHEDULER = "guest-scheduler"
    NEIGHBOUR = "neighbour"


Forms = Mapping[str, str]
"""Sources by the keys of their samples, separated by spaces."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Describe a metric: everything known before a run.

    `says`: its source, for docs/metrics.md; by key if it has labels. `elsewhere`: the same in
    tables other than the row's own. `title`: in words, if the name is not readable by itself; in a
    row of ANY with {} for the rest of the name. `facts`: by label, the values without a better
    direction. `felt`: a guest's user feels it; others are causes, or side costs. `samples`: how
    many latencies a program measured in a trial.
    """

    name: str
    unit: Unit
    better: Better
    says: str | Forms
    elsewhere: Mapping[Table, Forms] = field(default_factory=dict, kw_only=True)
    title: str = field(default="", kw_only=True)
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict, kw_only=True)
    zero: Zero = field(default=Zero.RARE, kw_only=True)
    counts: Counts | None = field(default=None, kw_only=True)
    compared: bool = field(default=True, kw_only=True)
    column: Column | None = field(default=None, kw_only=True)
    page: Page = field(default=Page.WHOLE, kw_only=True)
    felt: bool = field(default=False, kw_only=True)
    samples: bool = field(default=False, kw_only=True)

    @property
    def begins(self) -> str:
        """Return the prefix of the names that the row covers."""
        return self.name.removesuffix(ANY)

    @property
    def forms(self) -> Forms:
        return {self.name: self.says} if isinstance(self.says, str) else self.says

    def better_of(self, labels: Mapping[str, str]) -> Better:
        """Return the better direction of a sample with these labels."""
        if any(labels.get(label) in values for label, values in self.facts.items()):
            return Better.NEITHER
        return self.better

    def title_of(self, name: str) -> str:
        """Return `name`, which the row covers, in words."""
        title = self.title.format(name.removeprefix(self.begins))
        return title or name_in_words(name)


def name_in_words(name: str) -> str:
    return name.replace("_per_s", "/s").replace("_", " ")
