"""Show the advice in a terminal: first the action, then its reason, cost, and steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labctl.analysis.answer.answer import step_text
from labctl.analysis.answer.record import Grade
from labctl.analysis.answer.words import capital, shown
from labctl.analysis.effects.cells import scenario_of
from labctl.analysis.model import Comparison
from labctl.analysis.verdicts.table import verdict_text
from labctl.base.wording import counted, metric_title, printable
from labctl.rollout.advice import RULE, Advice, Advised
from labctl.rollout.card import NOT_RECORDED
from labctl.rollout.cost import Cost, side_cost_lines, worse_text
from labctl.rollout.files import UNNAMED, Names
from labctl.rollout.platforms import Written
from labctl.rollout.rollout_steps import RolloutSteps
from labctl.rollout.steps import Command, Machine, Step, backup_path

_MOST_WORSE = 4

_TITLES = {
    Grade.CONFIRMED: "Roll out",
    Grade.CANDIDATE: "Candidate",
    Grade.NOT_SHOWN: "Not shown yet",
}


def print_advice(console: Console, advice: Advice, names: Names) -> None:
    """Print the advice; `names`: of the domain and the disk that commands are for."""
    console.print(_text(advice.headline, style="bold"))
    for label, words in advice.decision.lines:
        console.print(_indented(f"{capital(label)}: {words}"))
    for step in advice.decision.next:
        if step.command == f"labctl advise {shlex.quote(advice.run)}":
            continue  # this is its output
        console.print(_indented(f"Next: {step_text(step)}"))
    for caution in advice.cautions:
        console.print(_indented(f"Caution: {caution}", style="yellow"))
    if advice.warnings:
        count = counted(len(advice.warnings), "warning")
        console.print(
            _indented(f"Caution: the run has {count} (listed at the end).", style="yellow")
        )
    for advised in advice.advised:
        console.print(_rule(f"{_TITLES[advised.grade]}: {advised.tuning}"))
        _print_found(console, advised)
    if advice.advised:
        fitting = [one for one in advice.advised if not one.rollout.refused]
        _print_steps(console, advice, (fitting or advice.advised)[0], names)
    if advice.left:
        console.print(_rule("Not advised"))
        for left in advice.left:
            console.print(_text(f"{left.tuning}: {left.why}."))
            console.print(_findings(left.judged))
    if advice.warnings:
        console.print(_rule("Warnings of the run, most serious first"))
        for warning in advice.warnings:
            console.print(_indented(warning))
    console.print(_text(f"\n{RULE}", style="dim"))


def _print_found(console: Console, advised: Advised) -> None:
    if advised.description:
        console.print(_text(f"{advised.description}\n"))
    console.print(_findings(advised.judged))
    for place in advised.unjudged:
        console.print(_indented(f"Not measured in {place}."))
    console.print(_text("\nCost"))
    for line in _cost_lines(advised.cost):
        console.print(_indented(line))


def _cost_lines(cost: Cost) -> Iterator[str]:
    yield from cost.takes
    yield from side_cost_lines(cost)
    for item in cost.worse[:_MOST_WORSE]:
        yield f"Also worse, without a verdict: {worse_text(item)}."
    if len(cost.worse) > _MOST_WORSE:
        yield f"{len(cost.worse) - _MOST_WORSE} more metrics are worse: see the report."
    yield from (f"Also worse: {one.text}." for one in cost.largest)
    if cost.risks is None:
        yield f"Risks: {NOT_RECORDED}."
    else:
        yield from (f"Risk: {risk}." for risk in cost.risks)


def _print_steps(console: Console, advice: Advice, advised: Advised, names: Names) -> None:
    console.print(_rule(f"How to apply {advised.tuning}"))
    if advised.rollout.refused:
        for problem in advised.rollout.refused:
            console.print(_indented(f"Refused: {problem.text}. {problem.hint}"))
        return
    if names.domain is None and advised.rollout.fragment:
        console.print(_text(f"Replace {UNNAMED} with your domain, or pass --domain.\n"))
    print_rollout(console, advised.tuning, advised.rollout, names)
    if advice.card is not None:
        console.print(
            _text(
                "\nThis holds as long as kernel, microcode, QEMU, libvirt, topology and "
                "neighbours do not change (--card FILE lists them). Check with"
            )
        )
        _print_code(console, advice.card.check)
    console.print(
        _text("\nFor scripts and Ansible tasks: --out FOLDER. To measure it again: --verify.")
    )


def print_written(console: Console, found: Written, *, with_files: bool) -> None:
    """Print a tuning in a platform's words, and what the platform cannot express."""
    if with_files:
        for name, text in found.files.items():
            console.print(_rule(name))
            _print_code(console, text.rstrip(), indent=0)
        console.print()
    for line in found.already:
        console.print(_text(f"Already so: {line}."))
    for why in dict.fromkeys(left.why for left in found.left):
        keys = [
            f"{left.key}: {left.value}" if left.value else left.key
            for left in found.left
            if left.why == why
        ]
        console.print(_text(f"Cannot be set there: {', '.join(keys)} ({why})."))
    if not found.files:
        console.print(_text(f"{found.tuning} changes nothing that can be set there."))


def print_rollout(console: Console, tuning: str, rollout: RolloutSteps, names: Names) -> None:
    """Print each step of a tuning with its commands, and the cautions."""
    domain, disk = names.domain or UNNAMED, names.disk or rollout.disk
    if rollout.fragment:
        backup = backup_path(domain, tuning)
        console.print(_text("Save the current domain ('virsh define' with that file restores it):"))
        _print_code(console, f"virsh dumpxml --inactive --security-info {domain} > {backup}")
    for machine in Machine:
        for step in rollout.at(machine):
            _print_step(console, step, domain, disk)
    if rollout.live:
        console.print(_text("\nOn the running domain, without a restart (pins only)"))
        _print_commands(console, rollout.live, domain, disk)
    if rollout.fragment:
        console.print(_text("\nThe same as XML, for 'virsh edit'"))
        _print_code(console, rollout.fragment.rstrip())
    console.print()
    for note in rollout.notes:
        console.print(_indented(note))


def _print_step(console: Console, step: Step, domain: str, disk: str) -> None:
    inside = " inside the guest" if step.machine is Machine.GUEST else ""
    console.print(_text(f"\n{step.title}{inside}; in force {step.in_force}"))
    if step.file is not None:
        console.print(_indented(f"{step.file.path}:"))
        _print_code(console, step.file.text.rstrip(), indent=4)
    _print_commands(console, step.commands, domain, disk)


def _print_commands(console: Console, commands: Sequence[Command], domain: str, disk: str) -> None:
    for command in commands:
        _print_code(console, command.shell(domain, disk))


def _print_code(console: Console, code: str, indent: int = 2) -> None:
    """Print code unfolded, so that it can be copied."""
    for line in printable(code).splitlines():
        console.print(Text(" " * indent + line), soft_wrap=True)


def _findings(judged: Sequence[Comparison]) -> Padding:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("in", overflow="fold", min_width=28)
    for title in ("metric", "change", "95 % CI", "verdict"):
        table.add_column(title, overflow="fold")
    for item in judged:
        table.add_row(
            _text(scenario_of(item).title),
            _text(metric_title(item.metric)),
            *map(_text, shown(item)),
            _text(verdict_text(item.verdict)),
        )
    return Padding(table, (0, 0, 0, 2), expand=False)


def _rule(title: str) -> Text:
    line = printable(f"== {title} ")
    return Text(f"\n{line}{'=' * max(0, 78 - len(line))}", style="bold", no_wrap=True)


def _indented(line: str, style: str = "") -> Padding:
    return Padding(_text(line, style=style), (0, 0, 0, 2), expand=False)


def _text(text: str, style: str = "") -> Text:
    """Return text without markup: a run folder's contents might look like it."""
    return Text(printable(text), style=style)
