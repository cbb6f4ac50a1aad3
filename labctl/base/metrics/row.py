"""Define what a row of the table of metrics says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum, auto

from labctl.base.units import Better, Unit

ANY = "*"
"""Suffix of a row's name: the row covers every name with that prefix and no row of its own."""


class Zero(Enum):
    """Say whether 0 is one of a metric's usual values: then no ratio is taken (METHOD 15)."""

    RARE = auto()
    USUAL = auto()
    NATIVE = auto()
    """The row is about native arms alone."""


class Counts(StrEnum):
    """Say what comes in ones, so that a small number of them bears no ratio (METHOD 15)."""

    EVENTS = "events"
    OPERATIONS = "operations"


class Page(Enum):
    """Say in which pages the table of all numbers has a metric."""

    WHOLE = auto()
    """Shown where there is room for every metric."""
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
    """Name the tables of docs/metrics.md, as their marks do."""

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
"""Sources by the keys under which samples come, separated by spaces."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Describe a metric: all that is known before a run.

    `says`: where it is from, for docs/metrics.md; by key where it has labels. `elsewhere`: the
    same in tables other than the row's own. `title`: in words, where the name doesn't read well
    by itself; of a row of ANY with {} for the rest of the name. `facts`: by label, the values of
    which neither direction is better. `felt`: a guest's user feels it; others are causes, or side
    costs. `samples`: how many latencies a program measured in a trial.
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
        """Return how the names begin that the row is about."""
        return self.name.removesuffix(ANY)

    @property
    def forms(self) -> Forms:
        return {self.name: self.says} if isinstance(self.says, str) else self.says

    def better_of(self, labels: Mapping[str, str]) -> Better:
        """Return which direction is better of a sample with these labels."""
        if any(labels.get(label) in values for label, values in self.facts.items()):
            return Better.NEITHER
        return self.better

    def title_of(self, name: str) -> str:
        """Return `name`, which the row is of, in words."""
        title = self.title.format(name.removeprefix(self.begins))
        return title or name_in_words(name)


def name_in_words(name: str) -> str:
    return name.replace("_per_s", "/s").replace("_", " ")
