"""Show on a terminal what a fleet advises: the answer, its price, other hosts, the steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from labctl.analysis.fleet.fleet_model import ALL_HOSTS, FleetJudgement, Take
from labctl.analysis.words import few
from labctl.base.notation import share
from labctl.base.wording import counted
from labctl.fleet.fleet_advice import FleetAdvice, HostSteps
from labctl.report.fleet_words import mean_shown, place_title, prediction_text
from labctl.report.parts import bare_table, marked, small, text
from labctl.report.terminal.fleet_table import answer_lines
from labctl.rollout.advice_files import UNNAMED, Names
from labctl.rollout.text import print_rollout

_MOST_REASONS = 40
"""Rows of a table: hosts with the same reason share one. JSON has all."""
_MOST_NAMES = 5
"""Hosts that are named of those with the same reason, or with the same steps."""
_MOST_STEPS = 3
"""Lists of steps that are shown; JSON has all."""


def print_fleet_advice(
    console: Console, judged: FleetJudgement, advice: FleetAdvice, next_command: str
) -> None:
    """Print what to roll out on which hosts; `next_command`: what does it."""
    taken = advice.taken
    console.print(text(headline(judged, advice), style="bold"))
    for part in (
        *_answers(judged, [taken.tuning]),
        *marked("Note", judged.warnings),
        *_price(judged, advice),
        *_table("Look at these first", advice.look_first),
        *_table("Hosts left out", taken.others),
        *_table("Hosts whose steps are not known", advice.unread),
    ):
        console.print(part)
    if any(steps.rollout.fragment for steps, _ in advice.rollouts):
        console.print(text(f"\n{UNNAMED} stands for a virtual machine of the host."))
    for steps, hosts in advice.rollouts[:_MOST_STEPS]:
        _print_steps(console, taken.tuning, steps, hosts)
    if more := advice.rollouts[_MOST_STEPS:]:
        number = sum(len(hosts) for _, hosts in more)
        console.print(
            text(f"\n{len(more)} more lists of steps, for {counted(number, 'host')}: --json.")
        )
    console.print(text("\nRoll it out, batch by batch, each measured again:"))
    console.print(Text("  ").append_text(text(next_command)), soft_wrap=True)


def print_nothing(console: Console, judged: FleetJudgement, tuning: str | None) -> None:
    """Print why a tuning is not advised; without one, why none is."""
    console.print(text(why_nothing(tuning), style="bold"))
    tunings = dict.fromkeys(answer.tuning for answer in judged.answers)
    for part in _answers(judged, tunings if tuning is None else [tuning]):
        console.print(part)
    for part in marked("Note", judged.warnings):
        console.print(part)


def why_nothing(tuning: str | None) -> str:
    """Return the first sentence where no host may take a tuning, or any."""
    if tuning is None:
        return "Roll out nothing: no host may take any of the tunings."
    return f"Do not roll out '{tuning}': no host may take it."


def headline(judged: FleetJudgement, advice: FleetAdvice) -> str:
    """Return what to roll out on how many hosts, and what a host does that was not measured."""
    taken = advice.taken
    hosts = f"{len(taken.hosts)} of {counted(judged.hosts, 'host')}"
    lead = f"Roll out '{taken.tuning}' on {hosts}"
    for answer in judged.answers:
        if (answer.tuning, answer.code) != (taken.tuning, Take.TAKE):
            continue
        if answer.place is not None and answer.pooled is not None:
            others = "" if answer.group == ALL_HOSTS else f" with {answer.by} {answer.group}"
            where = place_title(answer.place, many_accelerators=len(judged.accelerators) > 1)
            return (
                f"{lead}: a host{others} that was not measured is predicted to show "
                f"{prediction_text(answer.place, answer.pooled)} in {where}."
            )
    return f"{lead}."


def _answers(judged: FleetJudgement, tunings: Iterable[str]) -> Iterator[RenderableType]:
    many = len(judged.accelerators) > 1
    for tuning in tunings:
        for answer in judged.answers:
            if answer.tuning == tuning:
                yield from answer_lines(answer, many)


def _price(judged: FleetJudgement, advice: FleetAdvice) -> Iterator[RenderableType]:
    many = len(judged.accelerators) > 1
    yield Text()
    yield text("What it costs", style="bold")
    if advice.worse:
        table = bare_table()
        for column, width in (("where", 34), ("mean", 16), ("a host not measured", 14)):
            table.add_column(column, min_width=min(width, 12), max_width=width, overflow="fold")
        table.add_column("hosts")
        for one in advice.worse:
            title = place_title(one.place, many_accelerators=many)
            group = f", {one.group}" if one.group not in ("", ALL_HOSTS) else ""
            table.add_row(
                text(f"{title}{group}" + ("" if one.judged else " (no verdict)")),
                text(str(mean_shown(one.place, one.pooled))),
                text(prediction_text(one.place, one.pooled)),
                text(str(one.pooled.hosts)),
            )
        yield table
        yield small(
            "Means that are worse. 'no verdict': a metric that the study does not judge, whose "
            f"{share(1 - judged.alpha)} interval excludes no change."
        )
    else:
        yield small("No metric is shown to be worse over these hosts.")
    yield from (small(f"Risk: {risk}.") for risk in advice.risks)


def _table(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[RenderableType]:
    if not rows:
        return
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for host, why in rows:
        by_reason[why].append(host)
    table = bare_table(title)
    table.add_column("hosts", max_width=24, overflow="fold")
    table.add_column("why", overflow="fold")
    for why, hosts in list(by_reason.items())[:_MOST_REASONS]:
        table.add_row(text(", ".join(few(hosts, _MOST_NAMES))), text(why))
    yield Text()
    yield table
    if (more := len(by_reason) - _MOST_REASONS) > 0:
        yield small(f"{counted(more, 'more reason')}: --json has all.")


def _print_steps(console: Console, tuning: str, steps: HostSteps, hosts: Sequence[str]) -> None:
    console.print()
    names = ", ".join(few(hosts, _MOST_NAMES))
    console.print(text(f"Steps on {counted(len(hosts), 'host')}: {names}", style="bold"))
    for line in steps.takes:
        console.print(small(line))
    if steps.risks is None:
        console.print(small("Risks: not recorded."))
    print_rollout(console, tuning, steps.rollout, Names())
