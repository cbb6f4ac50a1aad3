"""Advice that was measured once more holds only if all of it is shown again."""

from __future__ import annotations

from pathlib import Path

from labctl.analysis.judge import judge
from labctl.rollout.advice import advise
from labctl.rollout.verified import Verified, verified
from labctl.store.run_folder import LoadedRun
from tools.calibrate.sweeps import Latency, Sweep, simulate


def run_of(sd: float) -> LoadedRun:
    """'pinned' gains in the first workload; under the second latencies scatter by `sd`."""
    latency = Latency(effects={}, sd=sd, no_worse_than=0.5)
    sweep = Sweep(effects={"pinned": 1.6}, workloads=1, conditions=1, latencies=[latency])
    [run] = simulate(sweep, runs=1, seed=3, name="verified")
    return run


def again(sd: float, folder: Path) -> Verified:
    first, fresh = run_of(0.05), run_of(sd)
    [advised] = advise(first, judge(first), folder).advised
    return verified(first, advised, fresh, judge(fresh))


def test_what_is_shown_again_is_confirmed(tmp_path: Path) -> None:
    assert again(0.06, tmp_path).confirmed


def test_a_loss_that_is_not_excluded_again_is_not_confirmed(tmp_path: Path) -> None:
    found = again(0.8, tmp_path)
    assert not found.confirmed
    assert "in workload 2 under condition 1 (inconclusive, not excluded: mean latency ×" in (
        found.sentence
    )
