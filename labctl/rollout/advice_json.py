"""Write the advice for programs. docs/advice.md documents its shape."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from labctl.analysis.answer_file import answer_json
from labctl.analysis.comparison_json import comparison_json
from labctl.rollout.advice import Advice, Advised
from labctl.rollout.advice_files import UNNAMED, Names, ansible
from labctl.rollout.card import Card
from labctl.rollout.rollout_steps import RolloutSteps
from labctl.rollout.steps import Command, Machine, Step, filled

SCHEMA = 3
"""Raised when a key goes or changes its meaning; new keys leave it as it is."""


def advice_json(advice: Advice, names: Names) -> dict[str, Any]:
    """Return the advice as plain JSON values."""
    return {
        "schema": SCHEMA,
        "run": advice.run,
        "headline": advice.headline,
        "decision": answer_json(advice.decision),
        "cautions": list(advice.cautions),
        "warnings": list(advice.warnings),
        "domain": names.domain,
        "advised": [_advised(advice, item, names) for item in advice.advised],
        "left": [
            {
                "tuning": left.tuning,
                "code": str(left.code),
                "why": left.why,
                "unshown": [asdict(item) for item in left.unshown],
                "judged": [comparison_json(item) for item in left.judged],
            }
            for left in advice.left
        ],
        "card": None if advice.card is None else _card(advice.card),
    }


def _advised(advice: Advice, item: Advised, names: Names) -> dict[str, Any]:
    return {
        "tuning": item.tuning,
        "grade": str(item.grade),
        "description": item.description,
        "judged": [comparison_json(comparison) for comparison in item.judged],
        "unjudged": list(item.unjudged),
        "cost": {
            "takes": list(item.cost.takes),
            "side_costs": [asdict(entry) for entry in item.cost.side_costs],
            "neighbour_loss": item.cost.neighbour_loss,
            "worse": [comparison_json(comparison) for comparison in item.cost.worse],
            "largest": [asdict(one) for one in item.cost.largest],
            "risks": None if item.cost.risks is None else list(item.cost.risks),
        },
        "rollout": {
            **rollout_json(item.rollout, names),
            "ansible": {str(machine): ansible(advice, item, names, machine) for machine in Machine},
        },
    }


def rollout_json(rollout: RolloutSteps, names: Names) -> dict[str, Any]:
    """Return the steps of a tuning as plain JSON values."""
    domain, disk = names.domain or UNNAMED, names.disk or rollout.disk
    return {
        "steps": [_step(step, domain, disk) for step in rollout.steps],
        "live": [_command(command, domain, disk) for command in rollout.live],
        "fragment": rollout.fragment,
        "changes": [asdict(change) for change in rollout.changes],
        "vcpus": rollout.vcpus,
        "notes": list(rollout.notes),
        "refused": [{"text": one.text, "hint": one.hint} for one in rollout.refused],
    }


def _step(step: Step, domain: str, disk: str) -> dict[str, Any]:
    return {
        "title": step.title,
        "machine": str(step.machine),
        "in_force": str(step.in_force),
        "file": None if step.file is None else asdict(step.file),
        "commands": [_command(command, domain, disk) for command in step.commands],
    }


def _command(command: Command, domain: str, disk: str) -> list[str]:
    return filled(command.argv, domain, disk)


def _card(card: Card) -> dict[str, Any]:
    return {
        "tuning": card.tuning,
        "run": card.run,
        "measured": card.measured,
        "found": list(card.found),
        "costs": list(card.costs),
        "holds_while": {fact.name: fact.value for fact in card.holds_while},
        "check": card.check,
    }
