"""Changes to synthetic runs, for what a run shouldn't hold but may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from labctl.analysis.model import Comparison, Judgement, Role
from labctl.analysis.verdicts.looks import Judged
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.samples import Reading, Sample
from tests.unit.records import plan_of, run_of


def with_readings(
    run: LoadedRun, change: Callable[[LoadedTrial, Reading], Reading | None]
) -> LoadedRun:
    """The run with each reading replaced; None takes it out."""

    def changed(trial: LoadedTrial) -> LoadedTrial:
        readings = [change(trial, reading) for reading in trial.readings]
        return replace(trial, readings=tuple(r for r in readings if r is not None))

    return replace(run, trials=tuple(changed(trial) for trial in run.trials))


def with_values(
    run: LoadedRun, tuning: str, metric: str, value: Callable[[int, float], float]
) -> LoadedRun:
    """The run with value(block, old) for one metric of one tuning, under every workload."""

    def change(trial: LoadedTrial, reading: Reading) -> Reading:
        if not isinstance(reading, Sample) or reading.key != metric:
            return reading
        if trial.record.cell["tuning"] != tuning:
            return reading
        return replace(reading, value=value(trial.record.block, reading.value))

    return with_readings(run, change)


def scaled(run: LoadedRun, factor: Callable[[LoadedTrial], float]) -> LoadedRun:
    """The run with each trial's values times a factor of its own."""

    def change(trial: LoadedTrial, reading: Reading) -> Reading:
        if not isinstance(reading, Sample):
            return reading
        return replace(reading, value=reading.value * factor(trial))

    return with_readings(run, change)


def with_plan(run: LoadedRun, **changes: Any) -> LoadedRun:
    return replace(run, plan=plan_of({**run.plan.to_json(), **changes}))


def with_run(run: LoadedRun, **changes: Any) -> LoadedRun:
    return replace(run, run=run_of({**run.run.to_json(), **changes}))


def only(judgement: Judgement, tuning: str, against: str, metric: str) -> Comparison:
    """The one comparison of that name; fails when there is none or more than one."""
    (found,) = [
        c
        for c in judgement.comparisons
        if (c.tuning, c.against, c.metric) == (tuning, against, metric)
    ]
    return found


def primaries(judgement: Judged) -> list[Comparison]:
    return [c for c in judgement.comparisons if c.role is Role.PRIMARY]
