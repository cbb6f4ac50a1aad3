"""Write what a fleet advises for programs. docs/fleet.md documents its keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from labctl.analysis.fleet.fleet_model import FleetJudgement
from labctl.analysis.fleet.fleet_price import WorsePlace
from labctl.fleet.fleet_advice import FleetAdvice
from labctl.report.export.fleet_json import group_answer_json, pooled_json
from labctl.rollout.advice_files import Names
from labctl.rollout.advice_json import rollout_json

SCHEMA = 1
"""Raised when a key goes or changes its meaning; new keys leave it as it is."""


def fleet_advice_json(
    judged: FleetJudgement,
    tuning: str | None,
    advised: tuple[str, ...],
    headline: str,
    advice: FleetAdvice | None,
    next_command: str | None,
) -> dict[str, Any]:
    """Return plain JSON values. `tuning`: what was asked for or is advised first; `advice`: None
    where no host may take it."""
    answers = [of for of in judged.answers if tuning in (None, of.tuning)]
    return {
        "schema": SCHEMA,
        "headline": headline,
        "tuning": tuning,
        "advised": list(advised),
        "answers": [group_answer_json(answer) for answer in answers],
        "warnings": list(judged.warnings),
        "planned": judged.hosts,
        **_advice(advice),
        "next": next_command,
    }


def _advice(advice: FleetAdvice | None) -> dict[str, Any]:
    if advice is None:
        empty = ("hosts", "others", "worse", "risks", "look_first", "rollouts", "unread")
        return {"accelerator": "", **{key: [] for key in empty}}
    taken = advice.taken
    return {
        "accelerator": taken.accelerator,
        "hosts": list(taken.hosts),
        "others": _named(taken.others),
        "worse": [_worse(one) for one in advice.worse],
        "risks": list(advice.risks),
        "look_first": _named(advice.look_first),
        "rollouts": [
            {
                "hosts": list(hosts),
                "takes": list(steps.takes),
                "risks": None if steps.risks is None else list(steps.risks),
                **rollout_json(steps.rollout, Names()),
            }
            for steps, hosts in advice.rollouts
        ],
        "unread": _named(advice.unread),
    }


def _worse(one: WorsePlace) -> dict[str, Any]:
    return {
        **asdict(one.place),
        "group": one.group,
        "judged": one.judged,
        **pooled_json(one.place, one.pooled),
    }


def _named(rows: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"host": host, "why": why} for host, why in rows]
