"""Decide whether a fresh run shows again what advice rests on (`labctl advise RUN --verify`).

The two are never pooled (METHOD 22): the first estimate chose the tuning, so it is likely too
large. What a fresh run says is worked out from both runs each time; the fresh run names the run
whose advice it measures by the digest of what that run measured (`evidence`), so that another run
of that name, or a changed one, isn't confirmed by it (docs/decisions/answer-record.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from labctl.analysis.added import confirmatory
from labctl.analysis.answer_record import FEWEST_BOOTS, FreshRun
from labctl.analysis.cells import Scenario, scenario_of
from labctl.analysis.decide import decide
from labctl.analysis.model import Comparison, Standing
from labctl.analysis.standing import standings
from labctl.analysis.verdict_table import Verdict, verdict_text
from labctl.base.wording import counted
from labctl.store.jsonfile import canonical
from labctl.store.readings import Kinds
from labctl.store.records.plan_record import PlanRecord
from labctl.store.run_folder import LoadedRun, LoadedTrial

SAME = ("workloads", "conditions", "guest", "blocks", "stopping")
"""Keys of a plan that must not differ, or the fresh numbers answer another question."""


def differing(plan: PlanRecord, other: PlanRecord) -> list[str]:
    """Return the keys by which two plans ask for other things. Plans of an older labctl say
    nothing of neighbours."""
    found = [key for key in SAME if getattr(plan, key) != getattr(other, key)]
    if plan.neighbours and other.neighbours and plan.neighbours != other.neighbours:
        found.append("neighbours")
    return found


@dataclass(frozen=True, slots=True)
class Pair:
    """Pair a primary comparison as advised with the fresh one (None: missing). `unshown`: the harm
    that the fresh run does not rule out."""

    advised: Comparison
    fresh: Comparison | None
    unshown: str | None

    @property
    def stands(self) -> bool:
        """Return whether the fresh run shows it again."""
        if self.fresh is None or self.unshown is not None:
            return False
        if self.advised.verdict is Verdict.IMPROVES:
            return self.fresh.verdict is Verdict.IMPROVES
        return self.fresh.verdict is not Verdict.REGRESSES

    @property
    def why_not(self) -> str:
        if self.fresh is None:
            return "not measured"
        verdict = verdict_text(self.fresh.verdict)
        return verdict if self.unshown is None else f"{verdict}, not excluded: {self.unshown}"


def pairs_of(
    advised: Sequence[Comparison], tuning: str, fresh: Sequence[Standing]
) -> tuple[Pair, ...]:
    """Return each comparison of a tuning beside the one of a fresh run, whose standings these
    are."""
    again = next((of for of in fresh if of.tuning == tuning), None)
    judged: dict[tuple[Scenario, str], Comparison] = {}
    left_open: dict[Scenario, str] = {}
    if again is not None:
        judged = {(scenario_of(c), c.metric): c for c in again.judged}
        left_open = {scenario_of(one): one.why for one in again.unshown}
    return tuple(
        Pair(c, judged.get((scenario_of(c), c.metric)), left_open.get(scenario_of(c)))
        for c in advised
    )


def not_again(pairs: Sequence[Pair]) -> str:
    """Return where a fresh run doesn't show it again, and what it found there; "" where it does
    everywhere."""
    return ", ".join(
        f"{scenario_of(pair.advised).title} ({pair.why_not})" for pair in pairs if not pair.stands
    )


def evidence(run: LoadedRun) -> str:
    """Return the SHA-256 of what the verdicts of a run rest on: its plan, and what each trial
    measured. Parsing the same raw files anew leaves it as it is."""
    deciding = confirmatory(run)
    content = {
        "plan": run.plan.digest,
        "trials": sorted(_measured(trial) for trial in deciding.trials),
    }
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def _measured(trial: LoadedTrial) -> list[object]:
    record = trial.record
    if record.digests is not None:
        of: object = record.digests.raw
    else:
        # A labctl before the digests: what was read stands for the files.
        values = Kinds().pack(trial.readings).numbers()
        of = [record.cell, hashlib.sha256(values).hexdigest()]
    return [record.number, record.attempt, canonical(of)]


def fresh_answers(
    run: LoadedRun, standing: Standing, fresh: Sequence[LoadedRun], digest: str
) -> tuple[FreshRun, ...]:
    """Return what each fresh run says of a tuning; runs of other advice are left out. `digest`:
    the run's own evidence."""
    return tuple(
        _fresh_answer(run, standing, one, digest)
        for one in fresh
        if (asked := one.run.verifies) is not None
        and (asked.run, asked.tuning) == (run.name, standing.tuning)
    )


def _fresh_answer(run: LoadedRun, standing: Standing, fresh: LoadedRun, digest: str) -> FreshRun:
    why = unusable(run, fresh, digest)
    agrees: bool | None = None
    if why:
        text = f"Run {fresh.name} can't confirm it: {why}."
    else:
        decided = decide(fresh)
        found = standings(decided.design, decided.comparisons, decided.checked)
        pairs = pairs_of(standing.judged, standing.tuning, found)
        boots = min((pair.fresh.boots for pair in pairs if pair.fresh), default=0)
        if open_ := not_again(pairs):
            agrees, text = False, f"Fresh run {fresh.name} does not show it again: {open_}."
        elif boots < FEWEST_BOOTS:
            text = f"Run {fresh.name} can't confirm it: it has {counted(boots, 'boot')}."
        else:
            agrees, text = True, f"Fresh run {fresh.name} shows it again."
    return FreshRun(run=fresh.name, evidence=evidence(fresh), agrees=agrees, text=text)


def unusable(run: LoadedRun, fresh: LoadedRun, digest: str) -> str:
    """Return why a run says nothing of another's advice, whose evidence has that digest; "" where
    it does."""
    asked = fresh.run.verifies
    if asked is None or asked.evidence != digest:
        return f"it names another state of run {run.name}, or none"
    if fresh.run.imported:
        return "labctl did not measure it"
    if fresh.run.status != "done":
        return "it is not finished"
    if fresh.problems:
        return f"its folder is not whole ({fresh.problems[0]})"
    if fresh.run.accelerator != run.run.accelerator:
        return f"its guests ran under {fresh.run.accelerator}"
    if fresh.plan.seed == run.plan.seed:
        return "it has the same seed, and so is no new sample"
    keys = differing(fresh.plan, run.plan)
    return f"its plan differs in {', '.join(keys)}" if keys else ""
