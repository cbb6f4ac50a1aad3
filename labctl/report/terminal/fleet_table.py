"""Show a fleet on a terminal: the answer, effects over hosts, hosts and groups that differ."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from labctl.analysis.answer.words import few
from labctl.analysis.hosts.changes import FleetChange, changed
from labctl.analysis.hosts.fleet import FleetJudgement, GroupAnswer, Take
from labctl.analysis.verdicts.table import Verdict
from labctl.base.notation import NOT_AVAILABLE, share
from labctl.base.wording import counted
from labctl.report.fleet_words import (
    NOT_THE_CAUSE,
    SYMBOLS,
    answer_lead,
    answer_why,
    apart_lines,
    apart_title,
    controls_sentence,
    differing,
    heterogeneity_sentence,
    mean_shown,
    no_levels,
    not_measured,
    place_title,
    prediction_text,
    split_sentence,
    what_apart_says,
)
from labctl.report.parts import bare_table, marked, small, text

_STYLES = {
    Take.TAKE: Verdict.IMPROVES.row.style,
    Take.HARM: Verdict.REGRESSES.row.style,
    Take.OPEN: "bold",
    Take.FEW: "bold",
}
_MOST = 40
"""Hosts that a table names; JSON and the page have all."""


def fleet_table(name: str, judged: FleetJudgement) -> RenderableType:
    """Return lines of 80 columns."""
    many = len(judged.accelerators) > 1
    measured = f"{judged.measured} of {counted(judged.hosts, 'host')} measured"
    return Group(
        text(f"{name}: {measured}", style="bold"),
        *((text(f"{controls_sentence(judged)}."),) if judged.measured else ()),
        *(line for answer in judged.answers for line in answer_lines(answer, many)),
        *marked("Note", judged.warnings),
        *_effects(judged),
        *_apart(judged),
        *_levels(judged),
        *_groups(judged),
        *_not_measured(judged),
    )


def changes_table(change: FleetChange) -> RenderableType:
    """Return what changed between two fleets, in lines of 80 columns."""
    judged = change.judged
    both = counted(judged.measured, "host")
    found = list(changed(change))
    many = len(judged.accelerators) > 1
    lead = (
        "No mean is shown to have changed"
        if not found
        else f"{counted(len(found), 'mean')} changed"
    )
    others = [
        small(f"Only in {name}: {', '.join(few(hosts, _FEW))}.")
        for name, hosts in ((change.a, change.only_a), (change.b, change.only_b))
        if hosts
    ]
    facts = [
        small(f"{one.fact}: {one.before} before, {one.after} now, on {counted(one.hosts, 'host')}.")
        for one in change.facts
    ]
    table = bare_table("Changes over hosts")
    for column, width in (("arm", 16), ("where", 26), ("mean change", 16), ("hosts", 5)):
        table.add_column(column, min_width=min(width, 12), max_width=width, overflow="fold")
    for one in judged.effects:
        place, pooled = one.place, one.whole.pooled
        table.add_row(
            text(place.tuning if not place.against else f"{place.tuning}: {place.against}"),
            text(place_title(place, many_accelerators=many)),
            text(str(mean_shown(place, pooled)) if pooled else one.whole.why),
            text(str(len(one.points))),
        )
    return Group(
        text(f"{change.a} to {change.b}: {both} measured in both", style="bold"),
        text(f"{lead}."),
        *facts,
        *others,
        *marked("Note", judged.warnings),
        Text(),
        table,
        small(
            f"mean change: with a {share(judged.confidence)} CI, simultaneous at "
            f"{share(1 - judged.alpha)}. 'pinned: baseline' is the change of an effect, an arm "
            "alone the change of its level."
        ),
        *_apart(judged),
    )


_FEW = 5
"""Hosts that a line names."""


def answer_lines(answer: GroupAnswer, many_accelerators: bool) -> Iterator[RenderableType]:
    """Yield whether a group may take a tuning, and the reason."""
    said = answer_lead(answer, many_accelerators=many_accelerators)
    lead = f"{SYMBOLS[answer.code]} {said}"
    yield text(lead, style=_STYLES[answer.code])
    yield small(answer_why(answer))


def _effects(judged: FleetJudgement) -> Iterator[RenderableType]:
    if not judged.effects:
        return
    many = len(judged.accelerators) > 1
    table = bare_table("Effects over hosts")
    for column, width in (
        ("tuning", 16),
        ("where", 26),
        ("mean", 16),
        ("a host not measured", 13),
        ("hosts", 5),
    ):
        table.add_column(column, min_width=min(width, 12), max_width=width, overflow="fold")
    for one in judged.effects:
        pooled = one.whole.pooled
        table.add_row(
            text(one.place.tuning),
            text(place_title(one.place, many_accelerators=many)),
            text(str(mean_shown(one.place, pooled)) if pooled else one.whole.why),
            text(prediction_text(one.place, pooled) if pooled else NOT_AVAILABLE),
            text(str(len(one.points))),
        )
    yield Text()
    yield table
    for one in judged.effects:
        yield small(heterogeneity_sentence(one, many_accelerators=many))
    together = share(1 - judged.alpha)
    yield small(
        f"mean: with a {share(judged.confidence)} CI, simultaneous at {together}; a host "
        f"not measured: {together} prediction interval of its true effect."
    )


def _apart(judged: FleetJudgement) -> Iterator[RenderableType]:
    if not judged.measured:
        return
    lines = apart_lines(judged)
    yield Text()
    if lines:
        table = bare_table(apart_title(judged, lines))
        for column, width in (("host", 20), ("effect or level", 36), ("here", 12), ("others", 12)):
            table.add_column(column, max_width=width, overflow="fold")
        for line in lines[:_MOST]:
            table.add_row(*map(text, (line.host, line.what, line.here, line.others)))
        yield table
        if len(lines) > _MOST:
            yield small(f"{len(lines) - _MOST} more: --json and --html have all.")
    else:
        yield text(apart_title(judged, lines), style="bold")
    yield small(f"{what_apart_says(judged)}.")


def _levels(judged: FleetJudgement) -> Iterator[RenderableType]:
    if judged.measured and (why := no_levels(judged)):
        yield small(f"Levels were not compared: {why}.")


def _groups(judged: FleetJudgement) -> Iterator[RenderableType]:
    found = list(differing(judged))
    if not found:
        return
    yield Text()
    yield text("Groups that differ", style="bold")
    many = len(judged.accelerators) > 1
    for one, split in found:
        yield small(f"{split_sentence(one, split, many_accelerators=many)}.")
    yield small(f"{NOT_THE_CAUSE}.")


def _not_measured(judged: FleetJudgement) -> Iterator[RenderableType]:
    lacking = not_measured(judged)
    if not lacking:
        return
    table = bare_table("Hosts not measured", "host", "status", "why")
    for row in lacking[:_MOST]:
        table.add_row(*map(text, row))
    yield Text()
    yield table
    if len(lacking) > _MOST:
        yield small(f"{len(lacking) - _MOST} more: --json has all.")
