"""Hold what became of a policy's rules in a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from labctl.analysis.answer_record import AnswerRecord
from labctl.analysis.gate.policy import Undecided
from labctl.analysis.model import EffectKind
from labctl.base.units import Unit


class Outcome(StrEnum):
    HOLDS = "holds"
    VIOLATED = "violated"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Hold what became of a rule in one cell. `tuning`, `workload`, `condition` are "" for a rule
    that speaks of nothing in the run, and for one that speaks of its facts (`of_facts`); of a grade
    (`of_grade`) only `tuning` is there.

    `estimate`, `low`, `high`: the ratio, the difference in `unit`, or the value, as `kind` says
    (None: the value itself), in natural direction; the interval's ends are one-sided, 95 % each,
    and more in a run that a rule may have ended.
    `why`: what keeps it undecided, or which facts differ.
    """

    rule: str
    limit: str
    against: str | None
    tuning: str
    workload: str
    condition: str
    metric: str
    unit: Unit | None
    kind: EffectKind | None
    estimate: float | None
    low: float | None
    high: float | None
    blocks: int
    outcome: Outcome
    why: str
    counts_as: Undecided
    of_facts: bool = False
    of_grade: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    run: str
    findings: tuple[Finding, ...]
    decision: AnswerRecord
    cautions: tuple[str, ...] = ()
    """Notes on damaged parts of the run, and on its import."""

    @property
    def passed(self) -> bool | None:
        """Return False: a rule is violated, or counts as that; None: nothing is violated, but
        something that must be decided isn't."""
        states = [_passes(finding) for finding in self.findings]
        if False in states:
            return False
        return None if None in states else True


def _passes(finding: Finding) -> bool | None:
    if finding.outcome is not Outcome.UNDECIDED:
        return finding.outcome is Outcome.HOLDS
    return {Undecided.FAIL: False, Undecided.PASS: True, Undecided.OPEN: None}[finding.counts_as]
