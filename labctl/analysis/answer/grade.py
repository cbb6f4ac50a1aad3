"""Grade how sure a run is of a tuning, by rule (docs/decisions/answer-record.md).

*Candidate* takes every ground below; *confirmed* also a fresh run that shows it again, on guests
under real virtualization. Everything else is *not shown*.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from labctl.analysis.answer.record import FEWEST_BOOTS, FreshRun, Grade, Ground
from labctl.analysis.answer.standing import standings
from labctl.analysis.answer.words import listed
from labctl.analysis.caveats.run import closed_loop, count_trials
from labctl.analysis.effects.cells import Scenario, scenario_of
from labctl.analysis.effects.effects import on_scale
from labctl.analysis.model import AnswerCode, Comparison, EffectKind, Standing
from labctl.analysis.verdicts.checks import Checked
from labctl.analysis.verdicts.decide import Decided, confirmatory, decide
from labctl.analysis.verdicts.table import Verdict, verdict_text
from labctl.base.units import Better
from labctl.base.wording import counted
from labctl.store.jsonfile import canonical
from labctl.store.records.plan_record import PlanRecord
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.samples import Kinds


def graded(
    run: LoadedRun, decided: Decided, standing: Standing, fresh: Sequence[FreshRun]
) -> tuple[Grade, tuple[Ground, ...]]:
    """Return a tuning's grade in a run, and the grounds of it. `fresh`: what fresh runs say."""
    grounds = tuple(_grounds(run, decided, standing, fresh))
    if not all(ground.met for ground in grounds):
        return Grade.NOT_SHOWN, grounds
    shown_again = any(one.agrees for one in fresh)
    if shown_again and not run.run.is_emulated:
        return Grade.CONFIRMED, grounds
    return Grade.CANDIDATE, grounds


def _grounds(
    run: LoadedRun, decided: Decided, standing: Standing, fresh: Sequence[FreshRun]
) -> Iterator[Ground]:
    code, checked = standing.code, decided.checked
    yield _finished(run)
    yield _whole(run)
    yield Ground(
        name="a host's own times",
        met=not run.run.host_is_emulated,
        text="the host itself was emulated, so its times say nothing about other hosts",
    )
    yield Ground(
        name="improvement",
        met=code is not AnswerCode.NONE,
        text="no declared metric improves without another regressing",
    )
    yield Ground(
        name="no harm",
        met=code is AnswerCode.RECOMMENDED,
        text="a loss that the study calls harmful is not excluded everywhere",
    )
    yield _boots(standing)
    yield _control(standing, checked)
    yield _sensitivity(standing, checked)
    untrusted = list(closed_loop(run, decided.design, decided.cells))
    yield Ground(
        name="open-loop latency",
        met=not untrusted,
        text="a latency that hides stalls (coordinated omission) is a declared metric",
    )
    against = [one.text.rstrip(".") for one in fresh if one.agrees is False]
    yield Ground(
        name="no fresh run against it",
        met=not against,
        text=listed([_lower(t) for t in against]),
    )


def _finished(run: LoadedRun) -> Ground:
    counts = count_trials(run)
    return Ground(
        name="finished",
        met=run.run.status == "done",
        text=f"{counts.done} of {counts.planned} trials are done",
    )


def _whole(run: LoadedRun) -> Ground:
    count = counted(len(run.problems), "problem")
    return Ground(
        name="whole folder", met=not run.problems, text=f"the run's folder is incomplete ({count})"
    )


def _boots(standing: Standing) -> Ground:
    boots = min((c.boots for c in standing.judged), default=0)
    return Ground(
        name="boots",
        met=boots >= FEWEST_BOOTS,
        text=f"{counted(boots, 'boot')}; a grade needs {FEWEST_BOOTS}",
    )


def _control(standing: Standing, checked: Mapping[Scenario, Checked]) -> Ground:
    """An open control has not failed: verdicts stay beyond what it leaves open (METHOD 18)."""
    places = [scenario_of(c) for c in standing.judged]
    failed = [str(p) for p in places if p in checked and checked[p].control.passed is False]
    unchecked = [str(p) for p in places if p not in checked or not checked[p].eligibility.judges]
    if failed:
        text = f"the A/A control failed in {listed(failed)}"
    else:
        text = f"the A/A control could not be checked in {listed(unchecked)}"
    return Ground(name="control", met=bool(places) and not failed and not unchecked, text=text)


def _sensitivity(standing: Standing, checked: Mapping[Scenario, Checked]) -> Ground:
    """Ask for the known loss only where "no harm" means "no change": a metric that shows a gain
    reacts, but one that shows nothing may be blind (docs/decisions/control-and-handicap.md)."""
    blind = [
        str(place)
        for c in standing.judged
        if c.no_worse and c.no_worse_than is not None and not _gains(c)
        if (place := scenario_of(c)) not in checked
        or not checked[place].eligibility.sees(on_scale(c.no_worse_than, c.kind))
    ]
    return Ground(
        name="sensitivity",
        met=not blind,
        text="the known loss does not show that this run would have detected harm in "
        + listed(blind),
    )


def _gains(c: Comparison) -> bool:
    """Return whether a comparison shows a change for the better, of whatever size."""
    if c.verdict is Verdict.IMPROVES:
        return True
    none = 1.0 if c.kind is EffectKind.RATIO else 0.0
    if c.better is Better.LOWER:
        return c.high is not None and c.high < none
    return c.low is not None and c.low > none


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


# Decide whether a fresh run shows again what advice rests on (`labctl advise RUN --verify`).
#
# The two are never pooled (METHOD 22): the first estimate chose the tuning, so it is likely too
# large. What a fresh run says is worked out from both runs each time; the fresh run names the run
# whose advice it measures by the digest of what that run measured (`evidence`), so that another
# run of that name, or a changed one, isn't confirmed by it (docs/decisions/answer-record.md).


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
            text = f"Run {fresh.name} can't confirm it: it has only {counted(boots, 'boot')}."
        else:
            agrees, text = True, f"Fresh run {fresh.name} shows it again."
    return FreshRun(run=fresh.name, evidence=evidence(fresh), agrees=agrees, text=text)


def unusable(run: LoadedRun, fresh: LoadedRun, digest: str) -> str:
    """Return why a run says nothing of another's advice, whose evidence has that digest; "" where
    it does."""
    asked = fresh.run.verifies
    if asked is None or asked.evidence != digest:
        return f"it names a different state of run {run.name}, or none"
    if fresh.run.imported:
        return "it was not measured by labctl"
    if fresh.run.status != "done":
        return "it is not finished"
    if fresh.problems:
        return f"its folder is incomplete ({fresh.problems[0]})"
    if fresh.run.accelerator != run.run.accelerator:
        return f"its guests ran under {fresh.run.accelerator}"
    if fresh.plan.seed == run.plan.seed:
        return "it has the same seed, so it is not a new sample"
    keys = differing(fresh.plan, run.plan)
    return f"its plan differs in {', '.join(keys)}" if keys else ""
