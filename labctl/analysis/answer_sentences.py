"""Write the sentences of a run's answer: what to do, why, how sure, and at what price."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labctl.analysis.answer_record import Basis, Grade, TuningAnswer
from labctl.analysis.answer_words import clause, context, named, nothing_matters
from labctl.analysis.factor_words import findings, question
from labctl.analysis.model import AnswerCode, Comparison, EffectKind, Judgement, Role, Standing
from labctl.analysis.next_steps import verify_seconds
from labctl.analysis.side_costs import NEIGHBOUR, neighbour_columns
from labctl.analysis.verdict_table import Verdict
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.analysis.view import View
from labctl.analysis.words import capital, listed
from labctl.base.notation import size
from labctl.base.wording import counted, place_in_words, roughly
from labctl.store.run_folder import LoadedRun

_EMULATED = "The guests were emulated (TCG); only a run under KVM can confirm it"
_FEW_WORSE = 3
_MORE_CPU = 1.05
"""Ratio of host CPU time that is named as a price: below it, noise looks like one."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """Write the sentences of an answer."""

    view: View
    judgement: Judgement
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
        if not self.primaries:
            reason = self.why_not or "No block has a primary metric of both a tuning and baseline."
            return "Nothing can be recommended.", reason
        if all(c.verdict is Verdict.DEMONSTRATION for c in self.primaries):
            return "Demonstration, no verdict.", self._too_few(run)
        if all(c.verdict is Verdict.BEFORE_LOOK for c in self.primaries):
            return (
                "No verdict before the first look that the plan declares.",
                "Estimates and intervals are shown, and nothing is decided by them.",
            )
        judged, best = self.judged, self.best
        assert best is not None
        sure = context(self.primaries)
        if judged[0].code is AnswerCode.NONE:
            return self._nothing(judged), capital(f"{named(judged)} ({sure}).")
        found = clause(judged[0].judged)
        if judged[0].code is AnswerCode.PRICED:
            lead = (
                f"Not shown: '{best.tuning}' improves something, and harm elsewhere is not "
                "excluded."
            )
            return lead, capital(f"{named(judged[:1])} ({sure}).")
        leads = {
            Grade.CONFIRMED: f"Roll out '{best.tuning}'.",
            Grade.CANDIDATE: f"Promising, not confirmed: '{best.tuning}'.",
            Grade.NOT_SHOWN: f"Not shown that '{best.tuning}' should be rolled out.",
        }
        return leads[best.grade], f"It {found} ({sure})."

    def _too_few(self, run: LoadedRun) -> str:
        most = max(len(c.blocks) for c in self.primaries)
        text = f"{counted(most, 'block')} can be compared where a verdict takes {FEWEST_BLOCKS}."
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
        parts = [*self._neighbour(best.tuning), *self._host(best.tuning)]
        if parts:
            return capital(f"{'; '.join(parts)}.")
        if any(cost.who.startswith(NEIGHBOUR) for cost in best.side_costs):
            return "No loss of the neighbour is shown."
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
