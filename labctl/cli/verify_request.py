"""Ask for a run's measurement once more: the same study with one tuning, under another seed."""

from __future__ import annotations

import secrets
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import UsageError
from labctl.cli.common import recorded_sweep

if TYPE_CHECKING:
    from labctl.run.planning.planned import SweepRequest
    from labctl.store.records.plan_record import PlanRecord
    from labctl.store.run_folder import LoadedRun


def verifying_request(
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


def check_lab(run: LoadedRun) -> None:
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


def check_same(run: LoadedRun, plan: PlanRecord) -> None:
    """Raise UsageError where a plan asks for something else than the run's, or has its seed."""
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
