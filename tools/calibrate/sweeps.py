"""Simulated sweeps: runs as `RunFolder.load` gives them, of one primary value per trial.

log(value) = log(true effect) + what the block does to all arms + what the boot does to the arm
+ noise of the trial. All runs of a sweep are drawn at once, and share their plans' records, so
that thousands of them cost little more than judging them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from labctl.analysis.verdicts.decide import Decided, decide, look_at
from labctl.analysis.verdicts.looks import Stop, until, without
from labctl.base.stopping import Stopping
from labctl.base.units import Better, Unit
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import LookTaken, RunRecord
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.samples import Kind, Readings
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus
from labctl.study.order import block_order
from tools.calibrate.noise import NORMAL, Noise, Values

METRIC = "bandwidth"
LATENCY = "latency_mean"
INSTRUMENTS = {"baseline": 1.0, "control": 1.0, "handicap": 0.95}

_BLOCK_SD = 0.1
_PLANS = 20
"""Orders of blocks that the runs of a sweep take in turn."""
_AT_ONCE = 200
"""Runs that are drawn together, to bound memory."""


def paired(sd: float) -> float:
    """Return the standard deviation of one trial where that of a block's effect, T - (B + C) / 2,
    is `sd` and all arms are alike."""
    return sd / math.sqrt(1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Hold what is simulated of a workload that is judged by a latency.

    `effects`: arms with their true factor on it; `sd`: of one trial, on the log scale;
    `no_worse_than`: the loss that a recommendation must exclude (0.5: a latency of 1.5 times).
    """

    effects: Mapping[str, float]
    sd: float
    no_worse_than: float
    margin: float = 0.1

    @property
    def truth(self) -> dict[str, float]:
        """Return the effect that is true: what a rate loses, a latency gains."""
        return {**{arm: 1 / factor for arm, factor in INSTRUMENTS.items()}, **self.effects}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Hold what is simulated.

    `effects`: candidates with their true factor on the metric. `sd`: of one trial, on the log
    scale; `sds`: arms whose noise is that many times as large. `boot_sd`: of what a boot does to
    one arm and workload, as a multiple of `sd`. `latencies`: workloads beside the `workloads` that
    are alike. `stopping`: by what a run may end before its last block.
    """

    effects: Mapping[str, float]
    workloads: int = 2
    conditions: int = 2
    blocks: int = 10
    blocks_per_boot: int = 1
    noise: Noise = NORMAL
    sd: float = 0.03
    sds: Mapping[str, float] = field(default_factory=dict)
    boot_sd: float = 0.0
    margin: float = 0.05
    latencies: Sequence[Latency] = ()
    stopping: Stopping | None = None

    @property
    def truth(self) -> dict[str, float]:
        """The true effect of every arm against baseline, as a ratio."""
        return {**INSTRUMENTS, **self.effects}

    def latency(self, workload: int) -> Latency | None:
        """Return the latency of a workload by its number, from 1; None of those that are alike."""
        return self.latencies[workload - self.workloads - 1] if workload > self.workloads else None

    @property
    def places(self) -> list[tuple[int, int]]:
        """The numbers of condition and workload, in the order in which trials run."""
        workloads = range(1, self.workloads + len(self.latencies) + 1)
        return [(c, w) for c in range(1, self.conditions + 1) for w in workloads]

    def boot(self, block: int) -> int:
        return 1 + (block - 1) // self.blocks_per_boot


def simulate(sweep: Sweep, *, runs: int, seed: int, name: str) -> Iterator[LoadedRun]:
    """`runs` runs of the sweep. The numbers follow from sweep, seed and `name` alone, so that one
    experiment draws the same beside others as by itself."""
    rng = np.random.default_rng([seed, crc32(name.encode())])
    plans = [_Plan.made(sweep, number) for number in range(min(_PLANS, runs))]
    for first in range(0, runs, _AT_ONCE):
        several = range(first, min(first + _AT_ONCE, runs))
        drawn = _draw(sweep, [plans[run % len(plans)] for run in several], rng)
        for run, values in zip(several, drawn, strict=True):
            yield plans[run % len(plans)].run(values)


def verdicts(sweep: Sweep, *, runs: int, seed: int, name: str) -> Iterator[Decided]:
    """Yield what is decided of each run of the sweep, at the block at which its rule ends it."""
    for run in simulate(sweep, runs=runs, seed=seed, name=name):
        yield _at_its_end(run, sweep.stopping)


def _at_its_end(run: LoadedRun, rule: Stopping | None) -> Decided:
    if rule is not None:
        for blocks in filter(rule.may_end_after, range(1, rule.most_blocks)):
            match look_at(run, blocks):
                case Stop():
                    return decide(until(run, blocks))
                case LookTaken() as taken:
                    run = without(run, [*run.run.looks, taken])
    return decide(run)


@dataclass(frozen=True, slots=True)
class _Plan:
    """`arms`: by block, the index of the arm at each position."""

    arms: Values
    plan: PlanRecord
    records: Sequence[tuple[TrialRecord, TrialFolder, tuple[Kind]]]

    @classmethod
    def made(cls, sweep: Sweep, seed: int) -> _Plan:
        names = list(sweep.truth)
        orders = [
            block_order(names, seed=seed, block=block, what="tunings")
            for block in range(1, sweep.blocks + 1)
        ]
        records = [
            TrialRecord(
                number=number,
                attempt=1,
                block=block,
                boot=sweep.boot(block),
                position=position,
                cell={"tuning": tuning, "workload": workload, "condition": condition},
                status=TrialStatus.DONE,
                measured_s=2.0,
                restored=True,
            )
            for number, (block, position, tuning, workload, condition) in enumerate(
                (
                    (block, position, tuning, f"workload {w}", f"condition {c}")
                    for block, order in enumerate(orders, start=1)
                    for position, tuning in enumerate(order, start=1)
                    for c, w in sweep.places
                ),
                start=1,
            )
        ]
        return cls(
            np.array([[names.index(tuning) for tuning in order] for order in orders]),
            _plan(sweep, records),
            [
                (record, TrialFolder(Path(f"trials/{record.number:04d}")), kinds)
                for record, kinds in zip(records, cycle(_kinds(sweep)), strict=False)
            ],
        )

    def run(self, values: Values) -> LoadedRun:
        """Return the run of these values [blocks, positions, places]."""
        trials = tuple(
            LoadedTrial(record, Readings(kinds, array("d", (value,))), folder)
            for (record, folder, kinds), value in zip(
                self.records, values.ravel().tolist(), strict=True
            )
        )
        return LoadedRun("simulated", _RUN, self.plan, trials, ())


_RATES = (Kind(METRIC, Unit.BYTES_PER_SECOND, Better.HIGHER, {}, "stdout.txt"),)
_LATENCIES = (Kind(LATENCY, Unit.SECONDS, Better.LOWER, {}, "stdout.txt"),)
_RUN = RunRecord(status="done", accelerator="kvm")


def _kinds(sweep: Sweep) -> list[tuple[Kind]]:
    """Return, for each place, what its trials read."""
    return [_RATES if sweep.latency(w) is None else _LATENCIES for _, w in sweep.places]


def _plan(sweep: Sweep, records: Sequence[TrialRecord]) -> PlanRecord:
    rate = {"program": "sysbench-cpu", "primary": METRIC, "margin": sweep.margin}
    workloads: dict[str, Any] = {f"workload {w}": rate for w in range(1, sweep.workloads + 1)}
    for number, of in enumerate(sweep.latencies, start=sweep.workloads + 1):
        workloads[f"workload {number}"] = {
            "program": "cyclictest",
            "primary": LATENCY,
            "margin": of.margin,
            "no_worse_than": of.no_worse_than,
        }
    content = {
        "factors": ["tuning", "workload", "condition"],
        "blocks": sweep.blocks,
        "boots": sweep.boot(sweep.blocks),
        "baseline": "baseline",
        "control": "control",
        "handicap": "handicap",
        "tunings": {name: {"kind": "guest", "twin": None} for name in sweep.truth},
        "workloads": workloads,
        "conditions": [f"condition {c}" for c in range(1, sweep.conditions + 1)],
        "trials": [{"number": r.number, "block": r.block, "cell": r.cell} for r in records],
        "stopping": None if sweep.stopping is None else sweep.stopping.to_json(),
    }
    return PlanRecord.model_validate(content)


def _draw(sweep: Sweep, plans: Sequence[_Plan], rng: np.random.Generator) -> Values:
    """Values [runs, blocks, positions, places]."""
    arms, places, blocks = len(sweep.truth), len(sweep.places), sweep.blocks
    shape = (len(plans), places, blocks, arms)
    orders = np.stack([plan.arms for plan in plans])[:, np.newaxis]  # [runs, 1, blocks, positions]

    def by_position(values: Values) -> Values:
        return np.take_along_axis(values, np.broadcast_to(orders, shape), axis=-1)

    noise = sweep.noise.draw(rng, shape)
    if not sweep.noise.in_time:
        noise = by_position(noise)
    scale, effect = _of_arms(sweep)
    logs = noise * by_position(np.broadcast_to(scale, shape))
    logs += by_position(np.broadcast_to(effect, shape))
    logs += rng.normal(0.0, _BLOCK_SD, (*shape[:-1], 1))
    if sweep.boot_sd:
        boots = [sweep.boot(block) - 1 for block in range(1, blocks + 1)]
        of_boots = rng.normal(0.0, sweep.boot_sd, (len(plans), places, boots[-1] + 1, arms))
        logs += by_position((of_boots * scale)[:, :, boots])
    return np.asarray(100.0 * np.exp(np.moveaxis(logs, 1, -1)))


def _of_arms(sweep: Sweep) -> tuple[Values, Values]:
    """Return the standard deviation of each arm's trials, and the logarithm of its true effect,
    both as [places, 1, arms]."""
    scales, effects = [], []
    for _, workload in sweep.places:
        of = sweep.latency(workload)
        sd, truth = (sweep.sd, sweep.truth) if of is None else (of.sd, of.truth)
        scales.append([[sd * sweep.sds.get(name, 1.0) for name in sweep.truth]])
        effects.append([[math.log(truth.get(name, 1.0)) for name in sweep.truth]])
    return np.array(scales), np.array(effects)
