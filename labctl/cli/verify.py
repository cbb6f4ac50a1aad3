"""Measure advice once more: the study that gave it, with only the advised tuning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import ExitCode, UsageError
from labctl.cli.common import console, print_json

if TYPE_CHECKING:
    from labctl.rollout.advice import Advised
    from labctl.store.run_folder import LoadedRun, RunFolder


@dataclass(frozen=True, slots=True)
class Verifying:
    """Say which tuning of which run is measured once more. `results`: where the fresh run goes."""

    context: click.Context
    folder: RunFolder
    run: LoadedRun
    advised: Advised
    results: Path


def verify_advice(
    asked: Verifying,
    *,
    seed: int | None,
    fresh: str | None,
    detach: bool,
    quiet: bool,
    as_json: bool,
) -> int | None:
    """Measure the tuning, print it beside the advice, and return the exit status: 1 where it is
    not confirmed. `fresh`: the run that another --verify has made, to measure nothing.

    Raises UsageError when the run's study isn't what it was, or `fresh` says nothing of it;
    whatever a sweep raises.
    """
    if fresh is not None:
        return _answer(asked, _usable(asked, fresh), as_json=as_json)

    from labctl.cli.sweep import swept
    from labctl.cli.verify_request import check_lab, check_same, verifying_request
    from labctl.run.planning.planner import plan_sweep

    request = verifying_request(asked.context, asked.run, asked.advised.tuning, asked.results, seed)
    check_lab(asked.run)
    check_same(asked.run, plan_sweep(request).plan.record())
    if detach:
        from labctl.cli.sweep_run import detached_run

        return detached_run(request, lambda folder: _note_answer(asked), as_json=as_json)
    return _answer(asked, swept(request, quiet=quiet).load(), as_json=as_json)


def _usable(asked: Verifying, name: str) -> LoadedRun:
    """Return the run of that name. Raises UsageError where it says nothing of the advice."""
    from labctl.analysis.confirmation import evidence, unusable
    from labctl.store.run_places import find_run

    fresh = find_run(asked.results, name).load()
    why = unusable(asked.run, fresh, evidence(asked.run))
    verifies = fresh.run.verifies
    if not why and verifies is not None and verifies.tuning != asked.advised.tuning:
        why = f"it measured '{verifies.tuning}'"
    if why:
        raise UsageError(
            f"run '{fresh.name}' can't confirm what run '{asked.run.name}' advises: {why}",
            hint="'labctl advise RUN --verify' makes one that can.",
        )
    return fresh


def _answer(asked: Verifying, fresh: LoadedRun, *, as_json: bool) -> int | None:
    from labctl.analysis.judge import judge
    from labctl.rollout.verified import print_verified, verified, verified_json

    result = verified(asked.run, asked.advised, fresh, judge(fresh))
    _note_answer(asked)
    if as_json:
        print_json(verified_json(result))
    else:
        print_verified(console(), result)
    return None if result.confirmed else ExitCode.FOUND


def _note_answer(asked: Verifying) -> None:
    """Write down what the first run's answer is, now that there is a fresh one."""
    from labctl.analysis.answer_file import write_answer
    from labctl.analysis.judge import judge
    from labctl.store.fresh_runs import fresh_runs

    fresh = fresh_runs(asked.folder, asked.results)
    write_answer(asked.folder, judge(asked.run, fresh).decision)
