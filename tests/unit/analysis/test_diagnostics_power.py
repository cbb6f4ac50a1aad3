"""The simulation behind docs/diagnostics.md has the judgement's rules, and finds what it plants."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from labctl.analysis.judge import judge
from labctl.analysis.model import Diagnostic, DiagnosticKind
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Sample
from tests.unit.analysis.alter import with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run
from tools.diagnostics import ARMS, PLANTS, SHAPES, Values, places, seen


def values_of(run: LoadedRun) -> Values:
    values = np.zeros((max(trial.record.block for trial in run.trials), len(ARMS)))
    for trial in run.trials:
        (reading,) = trial.readings
        assert isinstance(reading, Sample)
        arm = ARMS.index(trial.record.cell["tuning"])
        values[trial.record.block - 1, arm] = math.log(reading.value)
    return values


def wild(rng: random.Random) -> Callable[[int, float], float]:
    slope, jump = rng.choice([0, 0, 0.01, 0.05]), rng.choice([0, 0, 0.3])
    block, outlier = rng.randrange(1, 15), rng.choice([0, 0.2, 1.0])
    return lambda b, v: v * math.exp(slope * b + jump * (b % 3 == 0) + outlier * (b == block))


def kind(one: Diagnostic) -> str:
    is_level = one.kind is DiagnosticKind.DRIFT and one.tuning is None
    return "drift of all" if is_level else str(one.kind)


@pytest.mark.parametrize("seed", range(25))
def test_the_simulation_sees_what_the_judgement_sees(seed: int) -> None:
    rng = random.Random(seed)
    run = synthetic_run(
        seed=seed,
        blocks=14,
        tunings=ARMS,
        workloads={"sysbench-cpu": WORKLOADS["sysbench-cpu"]},
        effects={},
        block_noise=0.0,
        primary_only=True,
    )
    for arm in ARMS:  # a wild place: drifts, jumps and outliers of every size
        run = with_values(run, arm, "events_per_s", wild(rng))
    assert {kind(one) for one in judge(run).diagnostics} == seen(values_of(run))


@pytest.mark.parametrize(
    ("planted", "size", "blocks", "least"),
    [
        ("outlier", 10, 10, 0.75),
        ("outlier", 8, 20, 0.85),
        ("drift", 6, 20, 0.95),
    ],
)
def test_what_is_planted_is_found_as_often_as_the_docs_say(
    planted: str, size: float, blocks: int, least: float
) -> None:
    """`least` is what 80 runs fall below in one case of a thousand."""
    rng = np.random.default_rng(3)
    found = 0
    for values in places(SHAPES["normal"], blocks, rng, 80):
        PLANTS[planted][1](values, size, rng)
        found += planted in seen(values)
    assert found >= 80 * least
