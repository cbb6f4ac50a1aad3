"""Grade how sure a run is of a tuning, by rule (docs/decisions/answer-record.md).

*Candidate* takes every ground below; *confirmed* also a fresh run that shows it again, on guests
under real virtualization. Everything else is *not shown*.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from labctl.analysis.answer_record import FEWEST_BOOTS, FreshRun, Grade, Ground
from labctl.analysis.attempts import count_trials
from labctl.analysis.cells import Scenario, scenario_of
from labctl.analysis.checks import Checked
from labctl.analysis.decide import Decided
from labctl.analysis.model import AnswerCode, Standing
from labctl.analysis.setting import closed_loop
from labctl.analysis.words import listed
from labctl.base.wording import counted
from labctl.store.run_folder import LoadedRun


@dataclass(frozen=True, slots=True)
class Graded:
    grade: Grade
    grounds: tuple[Ground, ...]


def graded(
    run: LoadedRun, decided: Decided, standing: Standing, fresh: Sequence[FreshRun]
) -> Graded:
    """Return a tuning's grade in a run, and the grounds of it. `fresh`: what fresh runs say."""
    grounds = tuple(_grounds(run, decided, standing, fresh))
    if not all(ground.met for ground in grounds):
        return Graded(Grade.NOT_SHOWN, grounds)
    shown_again = any(one.agrees for one in fresh)
    if shown_again and not run.run.is_emulated:
        return Graded(Grade.CONFIRMED, grounds)
    return Graded(Grade.CANDIDATE, grounds)


def _grounds(
    run: LoadedRun, decided: Decided, standing: Standing, fresh: Sequence[FreshRun]
) -> Iterator[Ground]:
    code, checked = standing.code, decided.checked
    yield _finished(run)
    yield _whole(run)
    yield Ground(
        name="a host's own times",
        met=not run.run.host_is_emulated,
        text="the host itself was emulated, so that its times say nothing about any other",
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
        name="no fresh run against it", met=not against, text=listed([_lower(t) for t in against])
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
        name="whole folder", met=not run.problems, text=f"the run's folder is not whole ({count})"
    )


def _boots(standing: Standing) -> Ground:
    boots = min((c.boots for c in standing.judged), default=0)
    return Ground(
        name="boots",
        met=boots >= FEWEST_BOOTS,
        text=f"{counted(boots, 'boot')} where a result that holds takes {FEWEST_BOOTS}",
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
    """One place is enough: percentiles of a disk's latency never show 5 % less CPU time, and where
    no harm is claimed, an interval says which loss it excludes."""
    places = [scenario_of(c) for c in standing.judged]
    found = any(p in checked and math.isfinite(checked[p].eligibility.sees_from) for p in places)
    return Ground(
        name="sensitivity",
        met=found,
        text="the known loss was not detected anywhere, so this run may be blind to a loss",
    )


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
