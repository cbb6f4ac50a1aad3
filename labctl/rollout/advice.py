"""Advise which tunings to roll out and which not, in order of effect, with costs and steps.

A tuning is advised if the run's answer recommends it (`analysis/answer/standing.py`), with its
confidence grade (`analysis/answer/grade.py`). All others are left, with the reason. Tunings are
judged one by one, each against baseline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labctl.analysis.answer.record import AnswerRecord, Grade
from labctl.analysis.answer.view import View
from labctl.analysis.answer.words import listed, why_inconclusive
from labctl.analysis.effects.cells import scenario_of
from labctl.analysis.model import AnswerCode, Comparison, Judgement, Standing, Unshown
from labctl.analysis.verdicts.table import Verdict
from labctl.base.errors import UsageError
from labctl.base.wording import counted
from labctl.rollout.card import Card, card
from labctl.rollout.cost import Cost, cost
from labctl.rollout.fitted import VirtualMachine
from labctl.rollout.rollout_steps import RolloutSteps, rollout_steps
from labctl.store.run_folder import LoadedRun

RULE = (
    "A tuning is advised if it improves at least one primary metric and is shown to lose "
    "no more than the study allows in every other. Each tuning is compared alone with "
    "baseline."
)

_NOT_TOGETHER = (
    "The advised tunings were measured one by one, never together: apply one of them, or measure "
    "them together (tunings: [a+b]) before applying both."
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """Advise a tuning to roll out. `judged`: its primary comparisons; `unjudged`: places where it
    has none."""

    tuning: str
    grade: Grade
    description: str
    judged: tuple[Comparison, ...]
    unjudged: tuple[str, ...]
    cost: Cost
    rollout: RolloutSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Name a tuning that is not advised, and why in a few words. `unshown`: places where harm was
    not ruled out."""

    tuning: str
    code: AnswerCode
    why: str
    judged: tuple[Comparison, ...]
    unshown: tuple[Unshown, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Hold the advice. `decision`: the run's answer; `headline`: its first sentence. `cautions`:
    the limits of the advice; `warnings`: the run's own caveats. `card`: of the first advised tuning
    that may be applied; None if none is."""

    run: str
    decision: AnswerRecord
    headline: str
    cautions: tuple[str, ...]
    warnings: tuple[str, ...]
    advised: tuple[Advised, ...]
    left: tuple[Left, ...]
    card: Card | None


def advise(
    run: LoadedRun, judgement: Judgement, folder: Path, machine: VirtualMachine | None = None
) -> Advice:
    """Return the advice from a run's verdicts. `folder` is the run's, for the domain XML. If
    `machine` is given, the steps fit it.

    Raises UsageError for a tuning with an invalid name, and for one that the study defines.
    """
    view = View(run, judgement)
    ranked, decision = judgement.standings, judgement.decision
    advised = tuple(
        _advised(view, of, decision, folder, machine)
        for of in ranked
        if of.code is AnswerCode.RECOMMENDED
    )
    left = tuple(
        Left(tuning=of.tuning, code=of.code, why=_why_not(of), judged=of.judged, unshown=of.unshown)
        for of in ranked
        if of.code is not AnswerCode.RECOMMENDED
    )
    return Advice(
        run=run.name,
        decision=decision,
        headline=" ".join(filter(None, (decision.status, decision.lead))),
        cautions=tuple(_cautions(view, advised, machine)),
        warnings=(*judgement.warnings, *view.other_problems),
        advised=advised,
        left=left,
        card=_card(view, advised),
    )


def _card(view: View, advised: Sequence[Advised]) -> Card | None:
    """Return the card of the first tuning that may be applied."""
    for of in advised:
        if not of.rollout.refused:
            return card(view, of.tuning, of.judged, of.cost)
    return None


def of_tuning(
    run: LoadedRun,
    judgement: Judgement,
    folder: Path,
    machine: VirtualMachine | None,
    tuning: str,
) -> Advised:
    """Return a tuning as `advise` would, whether or not the run advises it. Raises UsageError for
    one without verdicts in the run."""
    for of in judgement.standings:
        if of.tuning == tuning:
            return _advised(View(run, judgement), of, judgement.decision, folder, machine)
    names = [of.tuning for of in judgement.standings]
    raise UsageError(
        f"run {run.name} did not measure tuning '{tuning}'",
        hint=f"It has {listed(names)}." if names else None,
    )


def _advised(
    view: View,
    of: Standing,
    decision: AnswerRecord,
    folder: Path,
    machine: VirtualMachine | None,
) -> Advised:
    tuning = of.tuning
    check_name(view.run.name, tuning)
    if tuning in view.run.plan.define:
        raise UsageError(
            f"'{tuning}' of run {view.run.name} has no file that could be rolled out: its study "
            "defines it",
            hint=f"See the answer with: labctl report {view.run.name}",
        )
    there = {scenario_of(item) for item in of.judged}
    found = decision.of(tuning)
    rollout = rollout_steps(view, tuning, folder, machine)
    memory_mib = view.run.run.memory_mib if machine is None else machine.memory_mib
    return Advised(
        tuning=tuning,
        grade=Grade.NOT_SHOWN if found is None else found.grade,
        description=view.description(tuning),
        judged=of.judged,
        unjudged=tuple(place.title for place in view.places if place not in there),
        cost=_cost(view, tuning, rollout, memory_mib),
        rollout=rollout,
    )


def _cost(view: View, tuning: str, rollout: RolloutSteps, memory_mib: int | None) -> Cost:
    found = cost(view, tuning, rollout.xml, memory_mib)
    if not rollout.refused:
        return found
    return replace(found, takes=("CPUs and memory: none, because it must not be applied there.",))


def check_name(run: str, tuning: str) -> None:
    """Raise UsageError if a run has an invalid tuning name: the name becomes a part of file names
    and scripts, and a run folder may come from anywhere."""
    if not _NAME.fullmatch(tuning):
        raise UsageError(f"{tuning!r} in run {run} is not a valid name for a tuning")


def _cautions(
    view: View, advised: Sequence[Advised], machine: VirtualMachine | None
) -> Iterator[str]:
    for of in advised:
        if of.rollout.refused:
            yield f"{of.tuning} must not be applied {_where(machine)}: {of.rollout.why_refused}."
    if advised and view.run.run.vcpus is not None:
        yield _sizes(view, machine, fits=any(not of.rollout.refused for of in advised))
    if len(advised) > 1:
        yield _NOT_TOGETHER


def _where(machine: VirtualMachine | None) -> str:
    if machine is None:
        return "as it was measured"
    return f"to a virtual machine with {counted(machine.vcpus, 'vCPU')} here"


def _sizes(view: View, machine: VirtualMachine | None, *, fits: bool) -> str:
    """Return the sizes of virtual machines that the measurement applies to."""
    run = view.run.run
    measured = _size(run.vcpus or 1, run.memory_mib)
    said = f"The effect was measured with a guest of {measured}"
    if machine is None:
        return (
            f"{said}. For a virtual machine of another size, pass --vcpus or --domain to "
            "fit the pins to it."
        )
    where = f" on another host ({machine.here})" if machine.here else ""
    if machine.vcpus == run.vcpus and machine.memory_mib in (None, run.memory_mib):
        return f"{said}{where}, the size of yours."
    return (
        f"{said}{where}. Yours has {_size(machine.vcpus, machine.memory_mib)}: "
        + ("the pins fit it, " if fits else "")
        + "but the effect at that size was not measured. 'labctl sweep --domain NAME' "
        "measures a copy of it."
    )


def _size(vcpus: int, memory_mib: int | None) -> str:
    memory = "" if memory_mib is None else f" and {memory_mib:,} MiB"
    return f"{counted(vcpus, 'vCPU')}{memory}"


def _why_not(of: Standing) -> str:
    if of.code is AnswerCode.PRICED:
        return f"only {of.price}"
    verdicts = {item.verdict for item in of.judged}
    if Verdict.REGRESSES in verdicts:
        gains = Verdict.IMPROVES in verdicts
        return (
            "a trade-off: it also regresses a primary metric" if gains else "it makes things worse"
        )
    found = [verdict.row.advice for verdict in Verdict if verdict in verdicts]
    reasons = dict.fromkeys(why.reason for c in of.judged if (why := why_inconclusive(c)))
    if reasons:
        found[found.index(Verdict.INCONCLUSIVE.row.advice)] += f" ({listed(list(reasons))})"
    return "; ".join(filter(None, found)) or "nothing was measured that could be judged"
