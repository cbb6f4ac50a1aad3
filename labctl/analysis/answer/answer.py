"""Make the answer of a run: one record with its sentences, which all reports read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labctl.analysis.ab import ab_because, ab_lead
from labctl.analysis.answer.grade import evidence, fresh_answers, graded
from labctl.analysis.answer.record import (
    FEWEST_BOOTS,
    AnswerRecord,
    Basis,
    Change,
    Grade,
    Next,
    TuningAnswer,
)
from labctl.analysis.answer.view import View
from labctl.analysis.answer.words import capital, effect, few, listed, size_text, why_inconclusive
from labctl.analysis.answer.worse import (
    NEIGHBOUR,
    neighbour_columns,
    side_costs_of,
    stall,
    worse_of,
)
from labctl.analysis.caveats.run import count_trials
from labctl.analysis.effects.cells import scenario_of
from labctl.analysis.factors import findings, question
from labctl.analysis.model import AnswerCode, Comparison, EffectKind, Judged, Role, Standing
from labctl.analysis.times import wall_time
from labctl.analysis.verdicts.decide import Decided
from labctl.analysis.verdicts.looks import last_block
from labctl.analysis.verdicts.table import Says, Verdict, says
from labctl.base.notation import quantity, size
from labctl.base.stopping import FEWEST_BLOCKS, Looks
from labctl.base.wording import counted, metric_title, place_in_words, roughly
from labctl.store.jsonfile import canonical
from labctl.store.run_folder import LoadedRun

# Say what is known of each tuning, in clauses of the answer's sentences.


def context(primaries: Sequence[Comparison]) -> str:
    """Return what a change is against, and how sure its interval is."""
    return f"against baseline{_together(primaries)}{_one_boot(primaries)}"


def _together(primaries: Sequence[Comparison]) -> str:
    return (
        "" if len(primaries) == 1 else f"; simultaneous intervals for {len(primaries)} comparisons"
    )


def _one_boot(primaries: Sequence[Comparison]) -> str:
    """Say that a verdict rests on one boot and holds only for it
    (docs/decisions/boots-and-blocks.md).
    """
    shared = any(c.boots == 1 and len(c.blocks) > 1 for c in primaries)
    return "; one boot, so it holds for that boot only" if shared else ""


def nothing_matters(judged: Sequence[Standing]) -> bool:
    """Return whether the run shows of every tuning that it makes no change for the better that
    matters, wherever one was to be shown."""
    settled = all(
        says(c.verdict, Says.NO_EFFECT) or c.verdict is Verdict.REGRESSES
        for of in judged
        for c in of.judged
    )
    return settled and all(map(_is_whole, judged))


def _is_whole(of: Standing) -> bool:
    """Return whether it was compared in every place where something is left to be shown."""
    return {scenario_of(one) for one in of.unshown} <= {scenario_of(c) for c in of.judged}


def named(tunings: Sequence[Standing]) -> str:
    """Return what is known of each tuning, as clauses."""
    return "; ".join(few([_of_tuning(of) for of in tunings]))


def _of_tuning(of: Standing) -> str:
    if of.code is not AnswerCode.PRICED:
        return f"'{of.tuning}' {clause(of.judged)}"
    open_ = {scenario_of(one) for one in of.unshown}
    shown = [c for c in of.judged if scenario_of(c) not in open_]
    return f"'{of.tuning}', {of.price}; it {clause(shown)}"


def clause(of: Sequence[Comparison]) -> str:
    """Return what is known of one tuning, as predicates joined."""

    def having(verdict: Verdict) -> list[Comparison]:
        return [c for c in of if c.verdict is verdict]

    better, worse = having(Verdict.IMPROVES), having(Verdict.REGRESSES)
    parts = []
    if better and worse:
        parts.append(
            f"is a trade-off: it improves {_effects(better)} but regresses {_effects(worse)}"
        )
    elif better:
        parts.append(f"improves {_effects(better)}")
    elif worse:
        parts.append(f"regresses {_effects(worse)}")
    if small := having(Verdict.SMALL):
        parts.append(f"changes {_effects(small)}, less than matters")
    if equal := having(Verdict.EQUIVALENT):
        within = listed(list(dict.fromkeys(_margin(c) for c in equal)))
        parts.append(f"equals baseline within {within} in {_places(equal)}")
    # What does no harm matters of a tuning that does some good.
    harmless = [c for c in of if better and c.no_worse and says(c.verdict, Says.OPEN)]
    if harmless:
        parts.append(f"is {listed([_no_worse(c) for c in harmless])}")
    if unclear := [c for c in having(Verdict.INCONCLUSIVE) if c not in harmless]:
        parts.append(f"is inconclusive in {listed([_unclear(c) for c in unclear])}")
    for verdict in Verdict:
        clause = verdict.row.clause
        if clause and (found := [c for c in having(verdict) if c not in harmless]):
            parts.append(clause.format(places=_places(found)))
    return ", and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _places(of: Sequence[Comparison]) -> str:
    return listed([str(scenario_of(c)) for c in of])


def _effects(of: Sequence[Comparison]) -> str:
    return listed([f"{scenario_of(c)} ({metric_title(c.metric)} {effect(c)})" for c in of])


def _margin(c: Comparison) -> str:
    return "" if c.margin is None else size_text(c.margin, c.kind, c.unit)


def _no_worse(c: Comparison) -> str:
    """Return what was shown of a comparison whose effect is not clear: "no more than 50 % worse in
    …"."""
    allowed = "" if c.no_worse_than is None else size_text(c.no_worse_than, c.kind, c.unit)
    return f"no more than {allowed} worse in {_effects([c])}"


def _unclear(c: Comparison) -> str:
    """Return where a comparison is inconclusive, and why."""
    why, place = why_inconclusive(c), str(scenario_of(c))
    return f"{place} ({why.reason}: {why.found})" if why else place


# Say what to do next: the command that follows a run's answer.


_SAFE = re.compile(r"[A-Za-z0-9@%+=:,./_-]+")
"""Words of a recorded command that no shell takes for anything else."""

_REPLACED = ("--seed", "--blocks", "--blocks-per-boot", "--out", "--html")
"""Options with a value that a command to be run again does not keep."""

_MOST_BLOCKS = 100
"""Blocks beyond which another design is better advice than more of the same."""


def next_steps(
    run: LoadedRun, ranked: Sequence[Standing], best: TuningAnswer | None
) -> Iterator[Next]:
    """Yield what to do next, the first thing first. `best`: the tuning that the answer is about."""
    name = shlex.quote(run.name)
    if run.run.status != "done":
        yield from _go_on(run, name)
        return
    if run.plan.ab is not None:
        # A program or a build is not a tuning to roll out.
        yield from list(_more_of_the_undecided(run, ranked)) or _more_blocks(run, ranked)
        return
    if run.run.imported:
        # Whoever measured decides; labctl can't measure it again.
        return
    if best is not None and best.grade is Grade.CONFIRMED:
        yield Next(command=f"labctl advise {name}", text="cost and steps of the rollout")
    elif best is not None and best.grade is Grade.CANDIDATE:
        yield from _confirm(run, name, best)
        yield from _more_of_the_undecided(run, ranked)
    elif more := list(_more_of_the_undecided(run, ranked)):
        yield from more
    elif best is not None and (wants := _wants(run, best)):
        yield wants
    else:
        yield from _more_blocks(run, ranked)


def _go_on(run: LoadedRun, name: str) -> Iterator[Next]:
    if run.run.status == "running":
        yield Next(command=None, text="wait for the run to end")
    elif run.run.status is not None:
        yield Next(command=f"labctl sweep --resume {name}", text="continues the run")


def _confirm(run: LoadedRun, name: str, best: TuningAnswer) -> Iterator[Next]:
    if not any(one.agrees for one in best.fresh):
        seconds = verify_seconds(run, best.tuning)
        yield Next(
            command=f"labctl advise {name} --verify",
            text="measures it again in fresh guests",
            seconds=seconds,
        )
    if run.run.is_emulated:
        yield Next(
            command=_again(run, "--accel kvm"),
            text="on a host with KVM; emulation cannot confirm it",
        )
    yield Next(command=f"labctl advise {name}", text="cost and steps of the rollout")


def verify_seconds(run: LoadedRun, tuning: str) -> float | None:
    """Return about how long `labctl advise --verify` takes: this run's time, by the share of its
    trials that are of the arms that are measured again. None where its time isn't known."""
    spent = wall_time(run)
    arms = run.plan.tunings
    if spent is None or not run.plan.trials:
        return None
    roles = {run.plan.baseline, run.plan.control, run.plan.handicap, run.plan.native, tuning}
    twins = {arms[arm].twin for arm in roles if arm in arms}
    kept = sum(trial.cell.get("tuning") in roles | twins for trial in run.plan.trials)
    return spent.total * kept / len(run.plan.trials)


def _wants(run: LoadedRun, best: TuningAnswer) -> Next | None:
    """Return what would mend the first thing that keeps a tuning which improves from its grade;
    None where it is no matter of the run's size."""
    lacking = {ground.name for ground in best.grounds if not ground.met}
    if "improvement" in lacking:
        return None
    if run.run.host_is_emulated:
        return Next(
            command=None,
            text="run the study on a host with real CPUs; the times of an emulated host say "
            "nothing about it",
        )
    if "boots" in lacking and not lacking & {"control", "whole folder"}:
        blocks = run.plan.blocks or FEWEST_BLOCKS
        return Next(
            command=_again(run, "--blocks-per-boot 1"),
            text=f"gives each of {counted(blocks, 'block')} its own boot; a grade needs "
            f"{FEWEST_BOOTS} boots",
            seconds=None,
        )
    if "open-loop latency" in lacking:
        return Next(
            command=f"labctl run reparse {shlex.quote(run.name)}",
            text="adds latencies that include stalls; a new run is judged by them",
        )
    return None


def _more_blocks(run: LoadedRun, ranked: Sequence[Standing]) -> Iterator[Next]:
    """Yield how many blocks would show what this run left open."""
    judged = [c for of in ranked for c in of.judged]
    if not judged:
        return
    if all(c.verdict is Verdict.DEMONSTRATION for c in judged):
        yield Next(
            command=_again(run, f"--blocks {FEWEST_BLOCKS}"),
            text=f"a verdict needs {FEWEST_BLOCKS} blocks",
        )
        return
    open_ = [c for c in judged if says(c.verdict, Says.OPEN)]
    if not open_:
        return
    done = max(1, last_block(run))
    needed = [c.blocks_needed for c in open_ if c.blocks_needed is not None]
    most, least = max(needed, default=2 * done), min(needed, default=2 * done)
    if least > _MOST_BLOCKS:
        yield Next(
            command=None,
            text=f"{most} blocks would be needed; a quieter host or longer trials narrow the "
            "intervals sooner",
        )
        return
    blocks = most if most <= _MOST_BLOCKS else least
    if not needed:
        text = "twice the blocks make intervals about 30 % narrower"
    elif blocks == most:
        text = "enough blocks to detect an effect as large as the threshold"
    else:
        text = f"enough blocks in one place; another needs {most}"
    spent = wall_time(run)
    yield Next(
        command=_again(run, f"--blocks {blocks}"),
        text=text,
        seconds=None if spent is None else spent.total * blocks / done,
    )


def _more_of_the_undecided(run: LoadedRun, ranked: Sequence[Standing]) -> Iterator[Next]:
    """Yield the extension that would decide what looks that drop left open, where it is in reach.

    Only the undecided cells are in it, with what they are compared with.
    """
    rule = run.plan.rule
    if not (isinstance(rule, Looks) and rule.drops) or run.plan.extensions or not run.run.looks:
        return
    open_ = [c for of in ranked for c in of.judged if says(c.verdict, Says.OPEN)]
    # A comparison that the control suspends has no number: twice the blocks narrow it by 30 %.
    needed = ((c.blocks_needed or 2 * len(c.blocks)) - len(c.blocks) for c in open_)
    more = max(needed, default=0)
    if not 0 < more <= _MOST_BLOCKS:
        return
    left_out = [one for one in run.run.looks[-1].left_out if not one.every]
    last = last_block(run)
    cells = {canonical(t.cell) for t in run.plan.trials if t.block == last} - {
        canonical({"tuning": o.tuning, "workload": o.workload, "condition": o.condition})
        for o in left_out
    }
    spent = wall_time(run)
    each = spent.total / len(run.plan.trials) if spent and run.plan.trials else None
    names = listed(list(dict.fromkeys(f"'{c.tuning}'" for c in open_)))
    yield Next(
        command=f"labctl sweep --extend {shlex.quote(run.name)} --blocks {more}",
        text=f"enough to decide {names} at this noise; exploratory, because the plan's looks are "
        "over",
        seconds=None if each is None else each * len(cells) * more,
    )


def _again(run: LoadedRun, more: str) -> str | None:
    """Return the command that made a run, with other options; None where it isn't known.

    A run folder may come from anywhere, so only a plain command of words is repeated.
    """
    try:
        words = shlex.split(run.run.command or "")
    except ValueError:
        return None
    if words[:2] not in (["labctl", "sweep"], ["labctl", "ab"]) or not all(
        _SAFE.fullmatch(word) for word in words
    ):
        return None
    if any(word in ("--resume", "--extend", "--detach") for word in words):
        return None
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in _REPLACED:
            skip = True
        elif not word.startswith(tuple(f"{option}=" for option in _REPLACED)):
            kept.append(word)
    return f"{' '.join(kept)} {more}"


def step_text(step: Next) -> str:
    """Return a step in words: the command, what it does, and about how long it takes."""
    return f"{step.command}  ({step.told})" if step.command else step.told


# Write the sentences of a run's answer: what to do, why, how sure, and at what price.


_EMULATED = "The guests were emulated (TCG); only a run under KVM can confirm it"
_FEW_WORSE = 3
_MORE_CPU = 1.05
"""Ratio of host CPU time that is named as a price: below it, noise looks like one."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """Write the sentences of an answer."""

    view: View
    judgement: Judged
    tunings: Sequence[TuningAnswer]
    why_not: str | None

    @property
    def primaries(self) -> list[Comparison]:
        return [c for c in self.judgement.comparisons if c.role is Role.PRIMARY]

    @property
    def judged(self) -> list[Standing]:
        return [of for of in self.judgement.standings if of.judged]

    @property
    def best(self) -> TuningAnswer | None:
        """Return the tuning that the answer is about: one that improves something, or else the
        first that does harm."""
        if not self.judged:
            return None
        first = self.judged[0]
        if first.code is AnswerCode.NONE:
            harmful = (of for of in self.judged if _has(of, Verdict.REGRESSES))
            first = next(harmful, first)
        return next(one for one in self.tunings if one.tuning == first.tuning)

    @property
    def _offered(self) -> TuningAnswer | None:
        """Return `best` unless the answer is that nothing is to be rolled out: what a tuning costs
        matters to nobody then."""
        judged = self.judged
        return None if not judged or judged[0].code is AnswerCode.NONE else self.best

    def lead_and_because(self) -> tuple[str, str]:
        """Return the answer's first sentence, and what it rests on."""
        run = self.view.run
        factors = self.judgement.factors
        if not self.primaries and factors is not None and factors.contrasts:
            return question(factors, run.plan.title), findings(factors)
        if (ab := self.judgement.ab) is not None and ab.places:
            return ab_lead(ab), ab_because(ab)
        if not self.primaries:
            reason = (
                self.why_not or "No block has a primary metric for both a tuning and the baseline."
            )
            return "Nothing can be recommended.", reason
        if all(c.verdict is Verdict.DEMONSTRATION for c in self.primaries):
            return "Demonstration, no verdict.", self._too_few(run)
        if all(c.verdict is Verdict.BEFORE_LOOK for c in self.primaries):
            return (
                "No verdict before the first look that the plan declares.",
                "Estimates and intervals are shown, but they decide nothing yet.",
            )
        judged, best = self.judged, self.best
        assert best is not None
        sure = context(self.primaries)
        if judged[0].code is AnswerCode.NONE:
            return self._nothing(judged), capital(f"{named(judged)} ({sure}).")
        found = clause(judged[0].judged)
        if judged[0].code is AnswerCode.PRICED:
            lead = (
                f"Not shown: '{best.tuning}' improves something, but harm elsewhere is not "
                "excluded."
            )
            return lead, capital(f"{named(judged[:1])} ({sure}).")
        leads = {
            Grade.CONFIRMED: f"Roll out '{best.tuning}'{self._only_where(best)}.",
            Grade.CANDIDATE: f"Promising, not confirmed: '{best.tuning}'{self._only_where(best)}.",
            Grade.NOT_SHOWN: f"Not shown that '{best.tuning}' should be rolled out.",
        }
        return leads[best.grade], f"It {found} ({sure})."

    def _only_where(self, best: TuningAnswer) -> str:
        """Return the condition that a skimmer must not miss."""
        found = stall(self.view, best.tuning)
        if found is None:
            return ""
        longest = quantity(max(found.values.values()), found.unit)
        return f", only where stalls of {longest} don't matter"

    def _too_few(self, run: LoadedRun) -> str:
        most = max(len(c.blocks) for c in self.primaries)
        text = (
            f"A verdict needs {FEWEST_BLOCKS} blocks; this run has {counted(most, 'block')} to "
            "compare."
        )
        if run.run.status != "done":
            return text
        remedy = "Import a file" if run.run.imported else "Run the study"
        return f"{text} {remedy} with at least {FEWEST_BLOCKS} blocks."

    def _nothing(self, judged: Sequence[Standing]) -> str:
        trades = [of.tuning for of in judged if _has(of, Verdict.IMPROVES)]
        harm = [of.tuning for of in judged if _has(of, Verdict.REGRESSES)]
        harm = [name for name in harm if name not in trades]
        parts = []
        if harm:
            parts.append(f"{_names(harm)} {'does' if len(harm) == 1 else 'do'} harm")
        if trades:
            are = "is a trade-off" if len(trades) == 1 else "are trade-offs"
            parts.append(f"{_names(trades)} {are}")
        if nothing_matters(judged):
            return f"Keep baseline: {listed(['nothing improves', *parts])}."
        if parts:
            return f"Roll out nothing: {listed(parts)}."
        return "Not shown: this run can't tell the tunings from baseline."

    def price(self) -> str:
        """Return what others pay for the best tuning, and what would say so where nobody was
        asked."""
        best = self._offered
        if best is None or not best.better:
            return ""
        if self.view.run.plan.ab is not None and not self.view.run.plan.neighbours:
            return ""
        parts = [*self._neighbour(best.tuning), *self._host(best.tuning)]
        if parts:
            return capital(f"{'; '.join(parts)}.")
        if any(cost.who.startswith(NEIGHBOUR) for cost in best.side_costs):
            return "No cost to neighbours is shown."
        return "The cost to neighbours was not measured." if not best.side_costs else ""

    def _neighbour(self, tuning: str) -> Iterator[str]:
        """Yield what the neighbour surely pays (METHOD 4), at most."""
        losses = []
        for place in self.view.places:
            for column in neighbour_columns(self.view, place):
                found = self.view.comparison(tuning, self.view.baseline, place, column)
                if found is not None and found.kind is EffectKind.RATIO and (found.high or 1.0) < 1:
                    losses.append(1 - found.estimate)
        if losses:
            most = "up to " if len(losses) > 1 else ""
            yield f"neighbours lose {most}{size(max(losses))}"

    def _host(self, tuning: str) -> Iterator[str]:
        best = next(one for one in self.tunings if one.tuning == tuning)
        taken = [
            f"{cost.change} ({place_in_words(cost.workload, cost.condition)})"
            for cost in best.side_costs
            if cost.who == "host CPU" and (cost.ratio or 1.0) >= _MORE_CPU
        ]
        if taken:
            yield f"host CPU time {', '.join(taken)}"

    def worse(self) -> str:
        """Return what got worse besides what a verdict says. Of a tuning that nobody is to roll
        out, the verdicts say enough."""
        best = self._offered
        if best is None:
            return ""
        texts = [one.text for one in best.worse if one.tested is not Basis.VERDICT]
        more = len(texts) - _FEW_WORSE
        if more > 0:
            texts = [*texts[:_FEW_WORSE], f"and {more} more (--json lists them)"]
        return f"{capital('; '.join(texts))}." if texts else ""

    def sure(self) -> str:
        """Return the grade in words. "Roll out nothing" has none: it rests on its verdicts."""
        best, run = self._offered, self.view.run
        if best is None or not best.better:
            return ""
        again = next((one.text for one in best.fresh if one.agrees), "")
        if best.grade is Grade.CONFIRMED:
            return f"Confirmed. {again}"
        if best.grade is Grade.NOT_SHOWN:
            # Of an emulated host a ground of the grade says so already.
            by_host = run.run.host_is_emulated or not run.run.is_emulated
            besides = "" if by_host else f" {_EMULATED}."
            return f"Not shown: {'; '.join(best.lacking)}.{besides}"
        if run.run.is_emulated:
            text = f"Candidate. {_EMULATED}."
            if again:
                return f"{text} {again}"
            return f"{text} {self._confirm(best.tuning, 'Repeat with')}"
        unused = " ".join(one.text for one in best.fresh)
        return " ".join(
            filter(None, (self._confirm(best.tuning, "Candidate. Confirm with"), unused))
        )

    def _confirm(self, tuning: str, how: str) -> str:
        seconds = verify_seconds(self.view.run, tuning)
        about = f" (about {roughly(seconds)})" if seconds else ""
        return f"{how} 'labctl advise {self.view.run.name} --verify'{about}."

    def others(self) -> str:
        """Return what is known of the other tunings."""
        judged = self.judged
        if not judged or judged[0].code is AnswerCode.NONE or len(judged) == 1:
            return ""
        first, rest = judged[0], judged[1:]
        several = sum(of.code is first.code for of in judged) > 1
        unranked = "the tunings were not compared with each other; " if several else ""
        return f"{capital(unranked + named(rest))}."


def _has(of: Standing, verdict: Verdict) -> bool:
    return any(c.verdict is verdict for c in of.judged)


def _names(tunings: Sequence[str]) -> str:
    return listed([f"'{name}'" for name in tunings], 5)


# Make the answer of a run: one record, from which every report and command reads.
#
# standings ─ grade ──▶ how sure       comparisons, levels ─ worse ──▶ what got worse
# fresh runs ─ confirmation ┘          side costs ──▶ at what price


def answer_record(
    run: LoadedRun,
    decided: Decided,
    judgement: Judged,
    *,
    fresh: Sequence[LoadedRun] = (),
    why_not: str | None = None,
    restored: str | None = None,
) -> AnswerRecord:
    """Return the answer of a run. `judgement`: all else that analysis says. `fresh`: runs that
    measured its advice once more. `why_not`: the reason, for a run of which nothing can be judged.
    `restored`: the answer of a study of restores, which comes first there."""
    view = View(run, judgement)
    digest = evidence(run)
    tunings = tuple(_tuning(view, decided, of, fresh, digest) for of in judgement.standings)
    found = Sentences(view, judgement, tunings, why_not)
    lead, because = found.lead_and_because()
    if restored:
        lead, because = restored, f"{lead} {because}".strip()
    best = found.best
    return AnswerRecord(
        run=run.name,
        evidence=digest,
        grade=Grade.NOT_SHOWN if best is None else best.grade,
        tuning=None if best is None else best.tuning,
        emulated=run.run.is_emulated,
        status=_status(run),
        lead=lead,
        because=because,
        price=found.price(),
        worse=found.worse(),
        sure=found.sure(),
        others=found.others(),
        next=tuple(next_steps(run, judgement.standings, best)),
        tunings=tunings,
    )


def _tuning(
    view: View, decided: Decided, of: Standing, fresh: Sequence[LoadedRun], digest: str
) -> TuningAnswer:
    again = fresh_answers(view.run, of, fresh, digest)
    grade, grounds = graded(view.run, decided, of, again)
    return TuningAnswer(
        tuning=of.tuning,
        grade=grade,
        code=str(of.code),
        better=tuple(_change(c) for c in of.judged if c.verdict is Verdict.IMPROVES),
        worse=tuple(worse_of(view, of.tuning)),
        side_costs=tuple(
            cost
            for place in view.places
            for cost in side_costs_of(view, of.tuning, place)
            if cost.who != "guest"
        ),
        price=of.price,
        grounds=grounds,
        fresh=again,
    )


def _change(c: Comparison) -> Change:
    return Change(
        workload=c.workload,
        condition=c.condition,
        metric=c.metric,
        unit=str(c.unit),
        better=str(c.better),
        kind=str(c.kind),
        estimate=c.estimate,
        low=c.low,
        high=c.high,
        confidence=c.confidence,
        verdict=None if c.verdict is None else str(c.verdict),
        text=f"{metric_title(c.metric)} {effect(c)}",
    )


def _status(run: LoadedRun) -> str:
    """Return how far a run is that isn't finished, and what goes on with it."""
    status = run.run.status
    if status == "done":
        return ""
    counts = count_trials(run)
    done = f"{counts.done} of {counts.planned} trials done"
    if status is None:
        return f"{done}; it is unknown whether the run finished."
    if status == "running":
        return f"{done}; the run is still in progress."
    go_on = f"'labctl sweep --resume {run.name}' continues it."
    if status == "failed" and run.run.failure:
        return (
            f"{done}, then the run failed: {run.run.failure.splitlines()[0].rstrip('.')}. {go_on}"
        )
    return f"{done}: {go_on}"
