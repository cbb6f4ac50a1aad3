"""The simulation behind docs/signs.md has the judgement's own rules, and finds what it plants."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from labctl.analysis.judge import judge
from labctl.analysis.model import Sign, SignKind
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Sample
from tests.unit.analysis.alter import scaled, with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run
from tools.signs import ARMS, PLANTS, SHAPES, Place, places, seen


def place_of(run: LoadedRun) -> Place:
    blocks = max(trial.record.block for trial in run.trials)
    values = np.zeros((blocks, len(ARMS)))
    order: list[list[int]] = [[] for _ in range(blocks)]
    for trial in run.trials:
        (reading,) = trial.readings
        assert isinstance(reading, Sample)
        arm = ARMS.index(trial.record.cell["tuning"])
        values[trial.record.block - 1, arm] = math.log(reading.value)
        order[trial.record.block - 1].append(arm)  # trials come in the order in which they ran
    return Place(values, order)


def wild(rng: random.Random) -> Callable[[int, float], float]:
    slope, jump = rng.choice([0, 0, 0.01, 0.05]), rng.choice([0, 0, 0.3])
    block, outlier = rng.randrange(1, 15), rng.choice([0, 0.2, 1.0])
    return lambda b, v: v * math.exp(slope * b + jump * (b % 3 == 0) + outlier * (b == block))


def kind(sign: Sign) -> str:
    if sign.kind is SignKind.DRIFT and sign.tuning is None:
        return "drift of all"
    return {SignKind.POSITION: "position"}.get(sign.kind, str(sign.kind))


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
    steep = rng.choice([0, 0, 0.05])
    run = scaled(run, lambda trial: math.exp(steep * trial.record.position))
    told = {kind(sign) for sign in judge(run).signs if sign.kind is not SignKind.BOOTSTRAP}
    found = set(seen(place_of(run)))
    if "drift" in found:  # told alone, of the same arm
        told.discard("autocorrelation")
        found.discard("autocorrelation")
    assert told == found


@pytest.mark.parametrize(
    ("planted", "size", "blocks", "least"),
    [
        ("outlier", 10, 10, 0.75),
        ("outlier", 8, 20, 0.85),
        ("two modes", 10, 10, 0.85),
        ("two modes", 6, 20, 0.80),
        ("drift", 6, 20, 0.95),
        ("autocorrelation", 0.9, 30, 0.82),
        ("position", 2, 10, 0.78),
        ("carry-over", 3, 10, 0.85),
    ],
)
def test_what_is_planted_is_found_as_often_as_the_docs_say(
    planted: str, size: float, blocks: int, least: float
) -> None:
    """`least` is what 80 runs fall below in one case of a thousand."""
    rng = np.random.default_rng(3)
    found = 0
    for place in places(SHAPES["normal"], blocks, rng, 80):
        PLANTS[planted][1](place, size, rng)
        found += planted in seen(place)
    assert found >= 80 * least
