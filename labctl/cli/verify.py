"""Measure advice once more: the study that gave it, with only the advised tuning."""

from __future__ import annotations

import secrets
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import UsageError
from labctl.cli.common import console, print_json, recorded_sweep

if TYPE_CHECKING:
    from labctl.rollout.advice import Advice
    from labctl.run.planning.planned import SweepRequest
    from labctl.store.records.plan_record import PlanRecord
    from labctl.store.run_folder import LoadedRun, RunFolder


def verify_advice(
    context: click.Context,
    folder: RunFolder,
    run: LoadedRun,
    advice: Advice,
    *,
    results: Path,
    seed: int | None,
    quiet: bool,
    as_json: bool,
) -> bool:
    """Measure what is advised first, print it beside the advice, and return whether it holds.

    Raises UsageError when nothing is advised, or the run's study isn't what it was; whatever a
    sweep raises.
    """
    from labctl.analysis.answer_file import write_answer
    from labctl.analysis.judge import judge
    from labctl.cli.sweep import swept
    from labctl.rollout.verified import print_verified, verified, verified_json
    from labctl.run.planning.planner import plan_sweep
    from labctl.store.fresh_runs import fresh_runs

    if not advice.advised:
        raise UsageError(
            f"there is nothing to verify: {advice.headline}",
            hint="Only what is advised can be measured again.",
        )
    first = advice.advised[0]
    request = _request(context, run, first.tuning, results, seed)
    _check_lab(run)
    _check_same(run, plan_sweep(request).plan.record())
    fresh = swept(request, quiet=quiet).load()
    result = verified(run, first, fresh, judge(fresh))
    write_answer(folder, judge(run, fresh_runs(folder, results)).decision)
    if as_json:
        print_json(verified_json(result))
    else:
        print_verified(console(), result)
    return result.confirmed


def _request(
    context: click.Context, run: LoadedRun, tuning: str, results: Path, seed: int | None
) -> SweepRequest:
    """Return what the run was asked for, read back from its own command, with this tuning and the
    roles and with another seed: the same order again would not be a new sample of the host's
    moods."""
    from labctl.analysis.confirmation import evidence
    from labctl.cli.sweep import command as sweep_command
    from labctl.cli.sweep import request_of
    from labctl.store.records.run_record import AdviceVerified

    recorded = recorded_sweep(run)
    if recorded is None:
        raise UsageError(
            f"run '{run.name}' does not say which study made it",
            hint="Measure it with 'labctl sweep STUDY --tuning " + shlex.quote(tuning) + "'.",
        )
    again = sweep_command.make_context("sweep", recorded[0], parent=context)
    again.params.update(
        tunings=(tuning,),
        seed=secrets.randbelow(2**31) if seed is None else seed,
        results=results,
    )
    verifies = AdviceVerified(run=run.name, tuning=tuning, evidence=evidence(run))
    return replace(request_of(again), verifies=verifies)


def _check_lab(run: LoadedRun) -> None:
    """Raise UsageError where the run's studies and tunings came from a lab folder that isn't the
    caller's now: a run may come from anywhere, so its folder is never taken by itself."""
    from labctl.base.paths import lab

    recorded = recorded_sweep(run)
    named = recorded[1] if recorded else None
    if named is not None and lab().folder != Path(named):
        raise UsageError(
            f"run '{run.name}' was made with the lab folder {named}",
            hint=f"If that is yours: labctl --lab {shlex.quote(named)} advise "
            f"{shlex.quote(run.name)} --verify",
        )


def _check_same(run: LoadedRun, plan: PlanRecord) -> None:
    from labctl.analysis.confirmation import differing as keys_of

    if plan.seed == run.plan.seed:
        raise UsageError(
            f"seed {plan.seed} is that of run '{run.name}'",
            hint="Give another --seed, or leave it out.",
        )
    differing = keys_of(plan, run.plan)
    # They decide which trials count. An older run knows fewer of them.
    limits = run.plan.limits
    if {key: plan.limits.get(key) for key in limits} != limits:
        differing.append("limits")
    if differing:
        raise UsageError(
            f"the study of run '{run.name}' is not what it was: {', '.join(differing)} "
            f"{'differs' if len(differing) == 1 else 'differ'} now",
            hint="Put the study's file back as it was, on the host that the run was made on; or "
            "make a new run and take its advice.",
        )
