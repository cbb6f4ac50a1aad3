"""Hold the answer of a run as one record, which page, terminal, gate, advice and JSON all show.

`analysis/answer/answer.py` makes it; docs/report-schema.md documents its keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from labctl.base.wording import roughly

FEWEST_BOOTS = 5
"""Boots that a grade above *not shown* takes: what differs from boot to boot needs to be seen."""


class Grade(StrEnum):
    """Name how sure an answer is (docs/decisions/answer-record.md)."""

    CONFIRMED = "confirmed"
    """All that `CANDIDATE` takes, and a fresh run of the advice shows it again."""
    CANDIDATE = "candidate"
    """The run shows an improvement and no harm, over enough boots, with checks that passed."""
    NOT_SHOWN = "not shown"


class Statistic(StrEnum):
    """Name the statistic that is shown of a metric's trials."""

    TYPICAL = "typical"
    """Mean of `Level.typical`."""
    LARGEST = "largest"
    """Largest value of all trials, of a maximum."""
    MEDIAN = "median"
    """Median of the trials' maxima: the lower one for a tuning, the upper one for others."""


class Basis(StrEnum):
    """Name what shows that something got worse."""

    VERDICT = "verdict"
    """A primary metric that regresses: part of the family of tests."""
    INTERVAL = "interval"
    """A metric without a verdict, whose own 95 % interval lies on the worse side."""
    NOT_TESTED = "not tested"
    """A maximum: it grows with the number of samples, and no interval belongs to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Hold a tuning's change of a metric against baseline, in the scale of a comparison; `text` has
    it in words."""

    workload: str
    condition: str
    metric: str
    unit: str
    better: str
    kind: str
    estimate: float
    low: float | None
    high: float | None
    confidence: float
    verdict: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worse:
    """Hold what got worse. `before`, `after`: baseline's `statistic` and the tuning's, in `unit`,
    each of `trials` trials."""

    workload: str
    condition: str
    metric: str
    unit: str
    tested: Basis
    statistic: Statistic
    before: float | None
    after: float | None
    trials: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCost:
    """Hold what another party pays for a tuning in one place, against baseline, in words;
    `interval` is "" where there is none. `ratio`: the change as a number, where it is one."""

    workload: str
    condition: str
    who: str
    change: str
    interval: str
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Hold one requirement of a grade: whether it is met, and what was found or is lacking."""

    name: str
    met: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshRun:
    """Hold what a run that measured the advice once more says of it. `agrees`: None where it can't
    say. `evidence`: the digest of what it measured."""

    run: str
    evidence: str
    agrees: bool | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningAnswer:
    """Hold what the run says of one tuning. `code`: as in `Standing`; `price`: what an advantage
    may cost elsewhere, in words ("" without); `grounds`: those of its grade, met or not."""

    tuning: str
    grade: Grade
    code: str
    better: tuple[Change, ...]
    worse: tuple[Worse, ...]
    side_costs: tuple[SideCost, ...]
    price: str
    grounds: tuple[Ground, ...]
    fresh: tuple[FreshRun, ...]

    @property
    def lacking(self) -> list[str]:
        """Return what keeps it from the grade of a candidate, in words."""
        return [ground.text for ground in self.grounds if not ground.met]


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """Hold what to do next. `command`: None where no command does it; `seconds`: about how long it
    takes, None where that isn't known."""

    command: str | None
    text: str
    seconds: float | None = None

    @property
    def told(self) -> str:
        """Return what it does, and about how long it takes."""
        return f"{self.text}, about {roughly(self.seconds)}" if self.seconds else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord:
    """Hold the answer. `evidence`: the digest of what was measured (`confirmation.evidence`).

    `status`: a sentence on a run that isn't finished, "" of one that is. `lead`, `because`, `sure`,
    `price`, `worse`, `others`: the answer in sentences, to be read in this order; "" where there is
    nothing to say. `tunings`: each candidate, the best first; the sentences are of the first.
    """

    run: str
    evidence: str
    grade: Grade
    tuning: str | None
    emulated: bool
    status: str
    lead: str
    because: str
    price: str
    worse: str
    sure: str
    others: str
    next: tuple[Next, ...]
    tunings: tuple[TuningAnswer, ...]

    @property
    def conditions(self) -> list[tuple[str, str]]:
        """Return the lines that stand beside the first sentence: what a skimmer must not miss."""
        return [(label, words) for label, words in self.lines if label in ("cost", "worse")]

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """Return the other lines."""
        return [line for line in self.lines if line not in self.conditions]

    @property
    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the sentences after the first with a label each, as pages and terminals show
        them."""
        labels = (
            ("why" if self.tunings else "findings", self.because),
            ("confidence", self.sure),
            ("cost", self.price),
            ("worse", self.worse),
            ("others", self.others),
        )
        return ((label, text) for label, text in labels if text)

    @property
    def text(self) -> str:
        """Return the whole answer as one paragraph."""
        parts = (self.status, self.lead, *(text for _, text in self.lines))
        return " ".join(filter(None, parts))

    def of(self, tuning: str) -> TuningAnswer | None:
        """Return what it says of a tuning."""
        return next((one for one in self.tunings if one.tuning == tuning), None)


UNDECIDED = AnswerRecord(
    run="",
    evidence="",
    grade=Grade.NOT_SHOWN,
    tuning=None,
    emulated=False,
    status="",
    lead="Nothing is decided yet.",
    because="",
    price="",
    worse="",
    sure="",
    others="",
    next=(),
    tunings=(),
)
"""The record where no answer was worked out."""
