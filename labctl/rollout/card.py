"""Write the rollout card: the finding, the facts it depends on, and how to check the rollout."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from labctl.analysis.answer.view import View
from labctl.analysis.answer.words import shown, size_text
from labctl.analysis.compare.two_runs import fact_words
from labctl.analysis.effects.cells import scenario_of
from labctl.analysis.model import Comparison
from labctl.analysis.verdicts.table import Verdict
from labctl.base.hostfacts import FACT_NAMES
from labctl.base.notation import share
from labctl.base.wording import metric_title
from labctl.rollout.cost import Cost, side_cost_lines, worse_text
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord

NOT_RECORDED = "not recorded"

_CONDITIONS = {
    "quiet": "quiet: nothing else to do on the host",
    "neighbour": "neighbour: a CPU hog per CPU beside the guest",
}


@dataclass(frozen=True, slots=True)
class CardFact:
    """Name a fact that must stay unchanged; `value` "not recorded" cannot be checked."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Hold the rollout card. `found` and `costs`: sentences. `check`: the command that shows later
    changes.
    """

    tuning: str
    run: str
    measured: str
    found: tuple[str, ...]
    costs: tuple[str, ...]
    holds_while: tuple[CardFact, ...]
    check: str


def card(view: View, tuning: str, judged: tuple[Comparison, ...], cost: Cost) -> Card:
    """Return the card of an advised tuning, from its run's record."""
    risks = (NOT_RECORDED,) if cost.risks is None else cost.risks
    return Card(
        tuning=tuning,
        run=view.run.name,
        measured=_measured(view),
        found=tuple(found_text(item) for item in judged),
        costs=(
            *cost.takes,
            *side_cost_lines(cost),
            *(f"Also worse, without a verdict: {worse_text(item)}." for item in cost.worse),
            *(f"Also worse: {one.text}." for one in cost.largest),
            *(f"Risk: {risk}" for risk in risks),
        ),
        holds_while=holds_while(view.run.run, view.run.plan),
        check=f"labctl doctor --since {shlex.quote(view.run.name)}",
    )


def found_text(item: Comparison) -> str:
    """Return a finding in a sentence: metric, place, size, confidence."""
    verdict = str(item.verdict or "no verdict")
    estimate, interval = shown(item)
    sure = f", {share(item.confidence)} CI {interval}" if interval else ""
    if item.no_worse and item.verdict is not Verdict.IMPROVES and item.no_worse_than is not None:
        verdict += (
            f", a loss of {size_text(item.no_worse_than, item.kind, item.unit)} or more is excluded"
        )
    return (
        f"{metric_title(item.metric)} of {scenario_of(item).title}: {estimate} against "
        f"{item.against}{sure}, {len(item.blocks)} blocks: {verdict}."
    )


def _measured(view: View) -> str:
    run = view.run.run
    boots = view.judgement.boots
    return (
        f"run {view.run.name} of study {run.study or 'unknown'}, begun "
        f"{run.started_at or 'at an unknown time'}, {view.judgement.blocks} blocks over "
        f"{boots} boot{'' if boots == 1 else 's'}, guests under "
        f"{'emulation (TCG)' if run.accelerator == 'tcg' else run.where_guests_ran}"
    )


def holds_while(run: RunRecord, plan: PlanRecord) -> tuple[CardFact, ...]:
    """Return the facts of a run that its findings depend on, in words."""
    facts = [CardFact(FACT_NAMES[key], _words(run.host.get(key))) for key in HOST_FACTS]
    facts += [CardFact(name, text(run, plan)) for name, text in _OTHER_FACTS]
    return tuple(facts)


HOST_FACTS = (
    *("kernel_release", "kernel_options", "cpu_model", "microcode", "qemu", "libvirt"),
    *("topology", "cpus_online", "cpus_isolated", "numa_nodes", "smt", "governor", "turbo"),
    *("thp", "sched_rt_runtime_us", "sched_autogroup"),
)
"""Keys of run.json's host facts on the card: those that a person recognizes. `labctl doctor
--since`, which the card names, compares these and more."""


def _words(value: Any) -> str:
    return fact_words(value) or NOT_RECORDED


def _accelerator(run: RunRecord, _: PlanRecord) -> str:
    return _words(run.accelerator)


def _neighbours(_: RunRecord, plan: PlanRecord) -> str:
    return "; ".join(_condition(name, plan) for name in plan.conditions) or NOT_RECORDED


def _condition(name: str, plan: PlanRecord) -> str:
    declared = plan.neighbours.get(name)
    if declared is None or not declared.description:
        return _CONDITIONS.get(name, name)
    return f"{name}: {declared.description}"


def _guest(run: RunRecord, _: PlanRecord) -> str:
    parts = list(_guest_parts(run))
    return ", ".join(parts) or NOT_RECORDED


def _guest_parts(run: RunRecord) -> Iterator[str]:
    for number, unit in ((run.vcpus, "vCPU(s)"), (run.memory_mib, "MiB")):
        if number is not None:
            yield f"{number} {unit}"
    if run.image:
        yield f"image {run.image.name} ({run.image.digest[:12]})"
    kernel = run.guest.get("kernel_release")
    if kernel:
        yield f"kernel {kernel}"


_Text = Callable[[RunRecord, PlanRecord], str]
_OTHER_FACTS: tuple[tuple[str, _Text], ...] = (
    (FACT_NAMES["accelerator"], _accelerator),
    ("neighbours", _neighbours),
    ("guest", _guest),
)
