"""A host that somebody else keeps out of idle states is told of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.analysis.caveats.run import LATENCY_KNOB, LATENCY_LIMIT
from labctl.analysis.judge import judge
from labctl.base.units import Better, Unit
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Sample
from tests.unit.analysis.alter import with_run
from tests.unit.synthetic import synthetic_run

LIMIT = Sample(
    metric=LATENCY_LIMIT,
    value=20e-6,
    unit=Unit.SECONDS,
    better=Better.NEITHER,
    source="host.json",
)


def held(run: LoadedRun, *tunings: str) -> LoadedRun:
    """The run with that limit in all trials of some tunings."""
    return replace(
        run,
        trials=tuple(
            replace(trial, readings=(*trial.readings, LIMIT))
            if trial.record.cell["tuning"] in tunings
            else trial
            for trial in run.trials
        ),
    )


def said(run: LoadedRun) -> list[str]:
    return [text for text in judge(run).warnings if "other than labctl" in text]


def test_a_limit_that_no_tuning_asked_for_is_told_with_how_often_it_was() -> None:
    run = synthetic_run()
    trials = {"baseline": 0, "all": 0}
    for trial in run.trials:
        if trial.record.reasons == ():
            trials["all"] += 1
            trials["baseline"] += trial.record.cell["tuning"] == "baseline"
    [text] = said(held(run, "baseline"))
    assert text.startswith(f"In {trials['baseline']} of {trials['all']} trials a program")
    assert "(to 20.0 µs at the least)" in text


@pytest.mark.parametrize("knob", [LATENCY_KNOB, "tuned"])
def test_a_limit_that_its_tuning_asks_for_is_no_caveat(knob: str) -> None:
    run = held(synthetic_run(), "pinned")
    asking = {"pinned": {"host": {knob: "20"}}}
    assert said(with_run(run, tunings=asking)) == []
    assert said(run) != []


def test_a_host_that_nobody_keeps_awake_has_no_such_caveat() -> None:
    assert said(synthetic_run()) == []
