"""Compare advice with a fresh measurement of it. The two are never pooled (METHOD 22): the first
estimate chose the tuning, so it is likely too large; only the fresh one shows what to expect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labctl.analysis.answer.grade import Pair, not_again, pairs_of
from labctl.analysis.answer.json import comparison_json
from labctl.analysis.answer.record import FEWEST_BOOTS
from labctl.analysis.answer.words import effect_text, shown
from labctl.analysis.effects.cells import scenario_of
from labctl.analysis.model import Comparison, Judgement
from labctl.analysis.verdicts.table import Verdict, verdict_text
from labctl.base.wording import counted, metric_title, printable
from labctl.rollout.advice import Advised
from labctl.rollout.card import NOT_RECORDED, CardFact, holds_while
from labctl.store.run_folder import LoadedRun


@dataclass(frozen=True, slots=True)
class Moved:
    """Name a fact that the advice depends on and that has changed."""

    name: str
    then: str
    now: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Hold the verification. `confirmed`: the fresh run improves wherever the first one did, and
    shows again that no other place loses more than the study allows."""

    run: str
    fresh_run: str
    tuning: str
    confirmed: bool
    sentence: str
    pairs: tuple[Pair, ...]
    moved: tuple[Moved, ...]
    warnings: tuple[str, ...]


def verified(
    first: LoadedRun, advised: Advised, fresh: LoadedRun, judgement: Judgement
) -> Verified:
    """Return the result of a fresh run on the advice from another."""
    pairs = pairs_of(advised.judged, advised.tuning, judgement.standings)
    boots = min((pair.fresh.boots for pair in pairs if pair.fresh), default=0)
    confirmed = bool(pairs) and all(pair.stands for pair in pairs) and boots >= FEWEST_BOOTS
    moved = tuple(
        Moved(then.name, then.value, now.value)
        for then, now in _both(first, fresh)
        if then.value != now.value and NOT_RECORDED not in (then.value, now.value)
    )
    return Verified(
        run=first.name,
        fresh_run=fresh.name,
        tuning=advised.tuning,
        confirmed=confirmed,
        sentence=_sentence(advised.tuning, confirmed, pairs, boots),
        pairs=pairs,
        moved=moved,
        warnings=tuple(judgement.warnings),
    )


def _both(first: LoadedRun, fresh: LoadedRun) -> Iterator[tuple[CardFact, CardFact]]:
    yield from zip(
        holds_while(first.run, first.plan), holds_while(fresh.run, fresh.plan), strict=True
    )


def _sentence(tuning: str, confirmed: bool, pairs: tuple[Pair, ...], boots: int) -> str:
    if confirmed:
        gains = [
            f"{metric_title(pair.fresh.metric)} {effect_text(pair.fresh)} in "
            f"{scenario_of(pair.fresh).title}"
            for pair in pairs
            if pair.fresh is not None and pair.fresh.verdict is Verdict.IMPROVES
        ]
        if not gains:
            return f"Confirmed: '{tuning}' again does no harm; a gain was not shown here."
        return f"Confirmed: '{tuning}' again improves the same metrics: {'; '.join(gains)}."
    if where := not_again(pairs):
        return f"Not confirmed: '{tuning}' does not repeat its result in {where}."
    return (
        f"Not confirmed: '{tuning}' was measured again with {counted(boots, 'boot')}; "
        f"{FEWEST_BOOTS} are needed."
    )


def verified_json(result: Verified) -> dict[str, object]:
    """Return plain JSON values; docs/advice.md has the keys."""
    return {
        "schema": 2,
        "run": result.run,
        "fresh_run": result.fresh_run,
        "tuning": result.tuning,
        "confirmed": result.confirmed,
        "sentence": result.sentence,
        "pairs": [
            {
                "advised": comparison_json(pair.advised),
                "fresh": None if pair.fresh is None else comparison_json(pair.fresh),
            }
            for pair in result.pairs
        ],
        "moved": [asdict(item) for item in result.moved],
        "warnings": list(result.warnings),
    }


def print_verified(console: Console, result: Verified) -> None:
    console.print(_text(result.sentence, style="bold"))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("in", "metric", "advised from", "measured again", "verdict"):
        table.add_column(title, overflow="fold")
    for pair in result.pairs:
        table.add_row(
            _text(scenario_of(pair.advised).title),
            _text(metric_title(pair.advised.metric)),
            _text(_both_lines(pair.advised)),
            _text(_both_lines(pair.fresh) if pair.fresh is not None else "not measured"),
            _text(verdict_text(pair.fresh.verdict) if pair.fresh is not None else ""),
        )
    console.print(table)
    console.print(
        _text(
            f"Expect the figures of run {result.fresh_run}. The figures of run {result.run} "
            "were used to choose the tuning, so they are probably too large; the two runs "
            "are not pooled."
        )
    )
    for item in result.moved:
        console.print(_text(f"Caution: {item.name} was {item.then} and is now {item.now}."))
    for warning in result.warnings:
        console.print(_text(f"Caution: {warning}"))
    console.print(_text(f"Full report: labctl report {result.fresh_run}"))


def _both_lines(item: Comparison) -> str:
    return "\n".join(filter(None, shown(item)))


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)
