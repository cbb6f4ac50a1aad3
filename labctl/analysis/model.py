"""Define the results of an analysis as values. Reports render these and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Self

from labctl.analysis.answer.record import AnswerRecord
from labctl.analysis.verdicts.table import Verdict
from labctl.base.units import Better, Unit
from labctl.store.records.factor_record import PlannedFactor
from labctl.store.records.plan_record import AbLabels

# Define the results on a run's factors.


class Finding(StrEnum):
    """Name the result of a contrast's simultaneous interval."""

    REAL = "real"
    """The interval excludes no effect."""
    SMALL = "real but small"
    """The interval excludes no effect, and lies within the study's margin."""
    NOT_SHOWN = "not shown"
    """The interval includes no effect."""
    NONE = "demonstration, no verdict"
    """Fewer than ten blocks."""
    EXPLORATORY = "exploratory"
    """The metric is not primary."""
    BEFORE_LOOK = "before the first look"
    """The plan declares looks, and none is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Compare levels of one factor, or the effects of one factor at two levels of another.

    `factors` has one name for a main effect, two for an interaction; `levels` are compared with
    `against`, the first levels. `estimate`, `low`, `high`: the ratio of the levels (for an
    interaction the ratio of two ratios), or the difference if values may be 0; low and high are
    None without an interval. `values` has one for each block, or for each boot if `per` is "boot",
    on the same scale. `cells`: number of averaged combinations of the other factors.
    """

    arm: str
    workload: str
    condition: str
    metric: str
    unit: Unit
    better: Better
    is_ratio: bool
    factors: tuple[str, ...]
    levels: tuple[str, ...]
    against: tuple[str, ...]
    estimate: float
    low: float | None
    high: float | None
    confidence: float
    finding: Finding
    margin: float
    per: str
    values: Mapping[int, float]
    cells: int
    left_out: tuple[int, ...] = ()
    """Blocks without a value in one of the tried cells. They are left out: nothing is imputed."""
    without: tuple[str, ...] = ()
    """Cells without a value in any block. They and the cells that they are compared with are left
    out."""
    paired: bool = True
    """False if trials were not interleaved: then the cells' means are compared."""

    @property
    def is_interaction(self) -> bool:
        return len(self.factors) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMean:
    """Hold the typical value of the primary metric at a cell's levels, over blocks."""

    arm: str
    workload: str
    condition: str
    metric: str
    unit: Unit
    levels: Mapping[str, str]
    typical: float
    blocks: int
    is_geometric: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorAnalysis:
    """Hold the results on a run's factors. `family`: planned contrasts, which share `alpha`;
    `pictured`: the two factors that pictures show."""

    factors: Mapping[str, PlannedFactor]
    family: int
    confidence: float
    contrasts: tuple[Contrast, ...]
    means: tuple[CellMean, ...]
    pictured: tuple[str, str] | None
    problems: tuple[str, ...] = ()


class Role(StrEnum):
    PRIMARY = "primary"
    EXPLORATORY = "exploratory"


class EffectKind(StrEnum):
    RATIO = "ratio"
    DIFFERENCE = "difference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Compare one tuning with baseline or a native twin, for one workload, condition and metric.

    `estimate`, `low`, `high`: as ratio (tuning / against, natural direction: a latency that
    halves is 0.5) or as difference (tuning - against) in `unit`. `low`/`high` are None if no
    interval exists (one block). `confidence` is that of the interval: 1 - alpha/m for primaries.
    `blocks` holds the blocks' effects on the same scale, by block number.
    """

    tuning: str
    against: str
    workload: str
    condition: str
    metric: str
    unit: Unit
    better: Better
    kind: EffectKind
    estimate: float
    low: float | None
    high: float | None
    confidence: float
    verdict: Verdict | None
    role: Role
    source: str
    blocks: Mapping[int, float]
    margin: float | None = None
    """The practical threshold delta in the comparison's scale (0.05: five percent)."""
    look: int | None = None
    """Blocks after which the plan's look decided it; None without looks, and if undecided."""
    no_worse_than: float | None = None
    """The loss that a recommendation must exclude, in the scale of `margin` (METHOD 25)."""
    no_worse: bool | None = None
    """True if a larger loss is excluded; None for a metric that is not primary."""
    smallest_visible: float | None = None
    """Minimum detectable effect of an inconclusive comparison, with 80 % power."""
    blocks_needed: int | None = None
    """Blocks needed to detect an effect of `margin`, if inconclusive."""
    error: float | None = None
    """Standard error of the estimate on the scale of effects: of its logarithm for ratios, else in
    `unit`. None without an interval."""
    units: int = 0
    """Number of independent values behind `error`: boots if blocks share several, else blocks."""
    boots: int = 1
    """Number of boots of the blocks, which are a separate level of variance unless it is 1. Equal
    to the number of blocks if each has a boot; 1 also if no guest is compared."""
    left_out: tuple[int, ...] = ()
    """Blocks in which one side was tried and has no valid value. They are left out: nothing is
    imputed."""
    by_holm: bool = False
    """True if Holm's step-down procedure decided what the simultaneous interval leaves open."""
    paired: bool = True
    """False if trials were not interleaved: then means of all trials are compared, and `blocks`
    holds the tuning's trials against the reference's mean."""
    fallback: str | None = None
    """Reason why a ratio metric is compared by difference, as the predicate of a sentence ("is 0 or
    less in some block")."""


# Define what analysis says of a comparison of A and B, as values.


class Outcome(StrEnum):
    """Name what a comparison says of B against A."""

    BETTER = "better"
    NOT_WORSE = "not worse"
    WORSE = "worse"
    OPEN = "open"


class Depends(StrEnum):
    """Name what the interaction says: whether the change hangs on virtualization."""

    YES = "yes"
    """Its interval excludes that both sides have the same effect."""
    NO = "no"
    """Its interval lies within the threshold, and the run has shown that it can see a loss of about
    that size."""
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbEffect:
    """Hold an effect with the interval of one comparison, in the scale of a `Comparison`."""

    kind: EffectKind
    estimate: float
    low: float | None
    high: float | None
    confidence: float
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbPlace:
    """Hold what is known of B against A in one place. `guest`: the comparison that decides;
    `native`: None where one of the two has no native arm of its own; `interaction`: None without
    `native`, and where the two sides are not compared on the same scale."""

    guest: Comparison
    outcome: Outcome
    native: AbEffect | None
    interaction: AbEffect | None
    depends: Depends | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbAnswer:
    """Hold the answer of a comparison of A and B. `labels`: what they are."""

    labels: AbLabels
    outcome: Outcome
    places: tuple[AbPlace, ...]


class AnswerCode(StrEnum):
    """Name the answer's conclusion about a tuning (METHOD 25)."""

    RECOMMENDED = "recommended"
    """It improves a primary metric, and a loss that the study calls harmful is excluded in every
    other place."""
    PRICED = "trade-off-not-excluded"
    """It improves a primary metric and regresses none, but somewhere such a loss is not excluded:
    the sentence names that price, and is not a recommendation."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unshown:
    """Hold a place where harm of a tuning is not excluded. `why`: the open question, as a clause;
    `loss`: the worse end of the interval on the scale of the estimate (2.3: a latency of 2.3 times
    baseline's), if it exceeds the study's limit."""

    workload: str
    condition: str
    metric: str
    why: str
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Rank a tuning for the answer, with its primary comparisons with baseline. `unshown`: reasons
    against a recommendation, even if it improves nothing. `price`: its side costs in words, if
    any."""

    tuning: str
    code: AnswerCode
    judged: tuple[Comparison, ...]
    unshown: tuple[Unshown, ...]
    price: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Hold the typical value of a metric in one cell: geometric mean over blocks if all values are
    positive, else arithmetic mean, and for maxima the largest; `values` by block."""

    tuning: str
    workload: str
    condition: str
    metric: str
    unit: Unit
    better: Better
    source: str
    typical: float
    values: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Said:
    """Hold a sentence about a place: its text `before` and `after` the place, and the numbers
    `found` there, "" without any."""

    before: str
    after: str
    found: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheck:
    """Hold a check of the run: the control (does baseline equal itself?), the known loss (was 5 %
    less CPU time detected?), or the effect of a restore on a tuning (`name` is the tuning's)."""

    name: str
    workload: str
    condition: str
    metric: str
    passed: bool | None
    """None if it could not be checked (too few blocks, or a missing arm). Also None for a control
    whose interval includes 0 and a difference larger than the threshold, and for a known loss that
    was detected, but does not prove that a loss as small as the threshold would be."""
    estimate: float | None
    low: float | None
    high: float | None
    confidence: float
    """Confidence of that interval."""
    sentence: str
    said: Said | None = None
    """Parts of `sentence`, if checks with equal parts may share a sentence."""


class DiagnosticKind(StrEnum):
    """Name the reasons to trust an interval less than its confidence says."""

    OUTLIER = "outlier"
    DRIFT = "drift"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """Report a violation of the intervals' assumptions in a primary metric's blocks.

    No value is removed because of it. `sentence` has the observation and a remedy; `blocks` are
    those that show it, if not all do. `tuning` is None if it concerns several arms.
    """

    kind: DiagnosticKind
    tuning: str | None
    workload: str
    condition: str
    metric: str
    sentence: str
    blocks: tuple[int, ...] = ()
    grave: bool = True
    """True if an answer may depend on it. Others are reported for completeness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Hold the sources of the variance of a place's effects, and a proposal for more precision.

    Standard deviations are on the scale of effects (log for ratios), medians over the judged
    tunings; None if the run can't separate them. `sentence` is the proposal in words.
    """

    workload: str
    condition: str
    metric: str
    between_boots: float | None
    between_blocks: float | None
    within_trials: float | None
    boots: int | None
    """Proposed, with `blocks_per_boot` and `seconds` of measuring per trial."""
    blocks_per_boot: int | None
    seconds: float | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Describe blocks `first` to `last`, on which no verdict rests (METHOD 22); `label` gives the
    reason, beginning with "exploratory". `comparisons`: the primary ones, over all blocks,
    including these."""

    first: int
    last: int
    label: str
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """Describe spare blocks (METHOD 27): their number in the plan, the block numbers of those that
    `ran`, and the reason as a `sentence`, None if none ran."""

    planned: int
    ran: tuple[int, ...]
    sentence: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingMetric:
    metric: str
    reason: str
    trials: int
    tunings: tuple[str, ...]
    workloads: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmAttempts:
    """Count the attempts at an arm's trials, and the invalid ones; `reasons`: with their counts,
    the most frequent first (an attempt may have several)."""

    tuning: str
    attempts: int
    invalid: int
    reasons: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float:
        return self.invalid / self.attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Count attempts. `reasons`: of all arms together. `p_value`: the probability that chance makes
    invalid attempts differ as much between arms; None if no arm differs from another in any block.
    `differ`: whether that is too improbable to be chance."""

    arms: tuple[ArmAttempts, ...] = ()
    reasons: tuple[tuple[str, int], ...] = ()
    p_value: float | None = None
    differ: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Hold the conclusions behind an answer. They rest on `blocks` and `boots`, while trials are
    counted over the whole run. `warnings`: caveats that could change the answer, the gravest first;
    `standings`: the tunings by rank, the best first."""

    comparisons: tuple[Comparison, ...]
    levels: tuple[Level, ...]
    control: tuple[RunCheck, ...]
    known_loss: tuple[RunCheck, ...]
    unavailable: tuple[MissingMetric, ...]
    warnings: tuple[str, ...]
    blocks: int
    boots: int
    planned: int
    done: int
    invalid: int
    standings: tuple[Standing, ...] = ()
    primaries: Mapping[str, str] = field(default_factory=dict)
    """Workload to its primary metric."""
    restored: tuple[RunCheck, ...] = ()
    """Checks that each tuning's effect is the same restored and booted. Empty in most runs."""
    diagnostics: tuple[Diagnostic, ...] = ()
    precision: tuple[Precision, ...] = ()
    ending: str | None = None
    """Sentence on the rule by which the run ended or would; None for a fixed number of blocks."""
    attempts: Attempts = Attempts()
    added: Added | None = None
    """Blocks that were added after those on which the conclusions rest. None in most runs."""
    spares: Spares | None = None
    """None for a plan without spares."""
    factors: FactorAnalysis | None = None
    """None for a plan without factors."""
    ab: AbAnswer | None = None
    """None for a plan that does not compare A and B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement(Judged):
    """Hold all conclusions about a run. `decision`: the answer, the source of every form of it."""

    decision: AnswerRecord

    @classmethod
    def of(cls, judged: Judged, decision: AnswerRecord) -> Self:
        """Return the judgement with its answer."""
        known = {field.name: getattr(judged, field.name) for field in fields(judged)}
        return cls(**known, decision=decision)

    @property
    def answer(self) -> str:
        """Return the answer in sentences, as one paragraph."""
        return self.decision.text
