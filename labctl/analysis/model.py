"""Define what analysis says of a run, as values. Reports render these and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Self

from labctl.analysis.answer.record import AnswerRecord
from labctl.analysis.verdicts.table import Verdict
from labctl.base.units import Better, Unit
from labctl.store.records.factor_record import PlannedFactor

# Define what analysis says of a run's factors, as values.


class Finding(StrEnum):
    """Name what a contrast's simultaneous interval says."""

    REAL = "real"
    """It excludes no effect."""
    SMALL = "real but small"
    """It does, and lies within the study's margin."""
    NOT_SHOWN = "not shown"
    """It includes no effect."""
    NONE = "demonstration, no verdict"
    """Fewer than ten blocks."""
    EXPLORATORY = "exploratory"
    """The metric isn't primary."""
    BEFORE_LOOK = "before the first look"
    """The plan declares looks, and none is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Compare levels of one factor, or say how one factor changes the effect of another.

    `factors` has one name for a main effect, two for an interaction; `levels` are compared with
    `against`, the first levels. `estimate`, `low`, `high`: the ratio of the levels (of an
    interaction the ratio of two ratios), or the difference where values may be 0; low and high are
    None where there is no interval. `values` has one for each block, or for each boot if `per` is
    "boot", in the same scale. `cells`: combinations of the other factors that it is averaged over.
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
    """Blocks in which one of its cells was tried and has no value: not imputed, so not in it."""
    without: tuple[str, ...] = ()
    """Cells that have no value in any block, and aren't in it; neither are those that they would
    be compared with."""
    paired: bool = True
    """False where trials were not interleaved: the cells' means are compared."""

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
    """Hold what a run says of its factors. `family`: planned contrasts, among which `alpha` is
    shared; `pictured`: the two factors that pictures show."""

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
    halves is 0.5) or as difference (tuning - against) in `unit`. `low`/`high` are None where no
    interval exists (one block). `confidence` is that of the interval: 1 - alpha/m for primaries.
    `blocks` holds the blocks' own effects in the same scale, by block number.
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
    """Blocks that detecting an effect of `margin` would take, where inconclusive."""
    error: float | None = None
    """Standard error of the estimate on the scale of effects: of its logarithm for ratios, else in
    `unit`. None where there is no interval."""
    units: int = 0
    """Independent values that `error` comes from: boots where blocks share several, else blocks."""
    boots: int = 1
    """Number of boots that the blocks shared: a level of variance of its own, unless it is one. As
    many as blocks: a boot each. 1 also where no guest is compared."""
    left_out: tuple[int, ...] = ()
    """Blocks in which one side was tried and has no valid value: not imputed, so not in it."""
    by_holm: bool = False
    """Holm's step-down procedure found what the simultaneous interval alone leaves open."""
    paired: bool = True
    """False where trials were not interleaved: means of all trials are compared, and `blocks` holds
    the tuning's trials against the mean of what it is compared with."""
    fallback: str | None = None
    """Reason why a ratio metric is compared by difference, as the predicate of a sentence ("is 0 or
    less in some block")."""


class AnswerCode(StrEnum):
    """Name the answer's conclusion about a tuning (METHOD 25)."""

    RECOMMENDED = "recommended"
    """It improves a primary metric, and in no other place does a loss stay possible that the study
    calls harmful."""
    PRICED = "trade-off-not-excluded"
    """It improves a primary metric and regresses none, but somewhere such a loss is not excluded:
    the sentence names that price, and is no recommendation."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unshown:
    """Say where a tuning was not shown to do no harm. `why`: what is open there, as a clause;
    `loss`: the worse end of the interval, in the scale of the estimate (2.3: a latency of 2.3 times
    baseline's), where it is beyond what the study allows."""

    workload: str
    condition: str
    metric: str
    why: str
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Rank a tuning for the answer, with its primary comparisons with baseline. `unshown`: why it
    is not recommended, or would not be if it improved something. `price`: its side costs in words,
    if any."""

    tuning: str
    code: AnswerCode
    judged: tuple[Comparison, ...]
    unshown: tuple[Unshown, ...]
    price: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Hold the typical value of a metric in one cell: geometric mean over blocks where all values
    are positive, else arithmetic mean, and of maxima the largest; `values` by block."""

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
    """Hold a sentence about a place: what stands `before` and `after` the place, and what was
    `found` there, "" where there is nothing to quote."""

    before: str
    after: str
    found: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheck:
    """Check the run: the control (does baseline equal itself?), the known loss (was 5 % less CPU
    found?), or the effect of a restore on a tuning (`name` is the tuning's)."""

    name: str
    workload: str
    condition: str
    metric: str
    passed: bool | None
    """None: it could not be checked (too few blocks, or the arm is missing), or, of the control,
    its interval includes no difference but also one larger than the threshold, or, of the known
    loss, it was found but is no proof that a loss as small as the threshold would have been."""
    estimate: float | None
    low: float | None
    high: float | None
    confidence: float
    """Confidence of that interval."""
    sentence: str
    said: Said | None = None
    """Parts of `sentence`, where others of the same parts may be said together with it."""


class DiagnosticKind(StrEnum):
    """Name what makes an interval less trustworthy than its confidence says."""

    OUTLIER = "outlier"
    DRIFT = "drift"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """Report a violation of the intervals' assumptions in a primary metric's blocks.

    Nothing is removed because of it. `sentence` says what was seen and what to do; `blocks` are
    those that show it, where it is some and not all. `tuning` is None where it is no single arm's.
    """

    kind: DiagnosticKind
    tuning: str | None
    workload: str
    condition: str
    metric: str
    sentence: str
    blocks: tuple[int, ...] = ()
    grave: bool = True
    """True if an answer may depend on it; else it is reported for completeness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Say where the variance of a place's effects comes from, and what would buy more precision.

    Standard deviations on the scale of effects (log for ratios), medians over the judged tunings;
    None where the run can't tell them apart. `sentence` is the proposal in words.
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
    """Describe blocks `first` to `last`, on which no verdict rests (METHOD 22); `label` says why,
    beginning with "exploratory". `comparisons`: what is primary, over all blocks with these."""

    first: int
    last: int
    label: str
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """Describe spare blocks (METHOD 27): how many the plan has, the numbers of those that `ran`,
    and why in a `sentence`, None where none did."""

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
    """Say how often an arm's trials were tried, and how many of these attempts were invalid;
    `reasons` with how often each was given, the most frequent first (an attempt may have
    several)."""

    tuning: str
    attempts: int
    invalid: int
    reasons: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float:
        return self.invalid / self.attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Count attempts. `reasons`: of all arms together. `p_value`: how often chance alone makes
    invalid attempts differ as much between arms; None where no arm differs from another in any
    block. `differ`: too rarely to be chance."""

    arms: tuple[ArmAttempts, ...] = ()
    reasons: tuple[tuple[str, int], ...] = ()
    p_value: float | None = None
    differ: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Hold the conclusions that an answer is made of. `blocks` and `boots` are those that they
    rest on, while trials are counted over the whole run. `warnings`: sentences that could change
    the answer, the gravest first; `standings`: where each tuning stands, the best first."""

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
    """Blocks added after those on which all else here rests. None in most runs."""
    spares: Spares | None = None
    """None of a plan without spares."""
    factors: FactorAnalysis | None = None
    """None of a plan without factors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement(Judged):
    """Hold all conclusions about a run. `decision`: the answer, which everything that shows one
    reads."""

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
