"""`make calibrate`: its simulated runs are what they claim to be, and so are its tables."""

import json
from dataclasses import replace
from math import log

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Sample
from tools.calibrate import tables
from tools.calibrate.__main__ import main
from tools.calibrate.coverage import ONE_TEST
from tools.calibrate.noise import KINDS
from tools.calibrate.rates import Rate
from tools.calibrate.sweeps import METRIC, Sweep, paired, simulate

SWEEP = Sweep(effects={"tuning": 1.2}, blocks=10, blocks_per_boot=5)


def values(run: LoadedRun) -> dict[tuple[str, int], list[float]]:
    """Logarithms of the trials' values, by tuning and block."""
    found: dict[tuple[str, int], list[float]] = {}
    for trial in run.trials:
        (sample,) = trial.readings
        assert isinstance(sample, Sample)
        assert sample.metric == METRIC
        key = trial.record.cell["tuning"], trial.record.block
        found.setdefault(key, []).append(log(sample.value))
    return found


def test_a_simulated_run_has_every_trial_of_its_plan() -> None:
    (run,) = simulate(SWEEP, runs=1, seed=1, name="test")
    assert [trial.record.number for trial in run.trials] == list(range(1, 161))
    assert [trial["number"] for trial in run.plan.to_json()["trials"]] == list(range(1, 161))
    assert {trial.record.boot for trial in run.trials} == {1, 2}
    assert all(len(of) == 4 for of in values(run).values())


def test_without_noise_an_arm_differs_from_baseline_by_its_true_effect() -> None:
    (run,) = simulate(replace(SWEEP, sd=0.0), runs=1, seed=1, name="test")
    found = values(run)
    for block in range(1, 11):
        assert found["tuning", block] == pytest.approx(np.add(found["baseline", block], log(1.2)))
        assert found["handicap", block] == pytest.approx(np.add(found["control", block], log(0.95)))


def test_a_drift_of_the_host_strikes_arms_in_the_order_in_which_they_ran() -> None:
    sweep = replace(ONE_TEST, noise=KINDS["drifting"], blocks=30, sd=1.0)
    early, late = [], []
    for run in simulate(sweep, runs=200, seed=1, name="test"):
        for trial in run.trials:
            (sample,) = trial.readings
            assert isinstance(sample, Sample)
            of = early if trial.record.number <= 20 else late
            of.append(log(sample.value))
    assert np.mean(late) - np.mean(early) > 2


def test_a_boot_does_the_same_to_an_arm_in_all_of_its_blocks() -> None:
    sweep = replace(SWEEP, sd=1e-6, boot_sd=1e5)
    (run,) = simulate(sweep, runs=1, seed=1, name="test")
    found = values(run)
    effects = [
        np.subtract(found["tuning", block], found["baseline", block]) for block in range(1, 11)
    ]
    for block in range(2, 11):
        alike = np.allclose(effects[block - 1], effects[block - 2], atol=1e-4)
        assert alike is (block != 6)


@pytest.mark.parametrize("kind", ["normal", "skewed", "bimodal", "heavy-tailed", "autocorrelated"])
def test_noise_has_mean_0_and_variance_1(kind: str) -> None:
    drawn = KINDS[kind].draw(np.random.default_rng(1), (20_000, 5, 4))
    assert drawn.mean() == pytest.approx(0, abs=0.01)
    # The fourth moment of t with 3 degrees is infinite: its variance is seldom that of a sample.
    assert drawn.var() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("r", [0.1, 0.5])
def test_arms_recall_their_last_block_as_much_as_they_say(r: float) -> None:
    drawn = KINDS[f"arms recalling {r:g}"].draw(np.random.default_rng(1), (20_000, 5, 4))
    assert np.mean(drawn[:, 1:] * drawn[:, :-1]) == pytest.approx(r, abs=0.01)
    assert np.mean(drawn[..., 1:] * drawn[..., :-1]) == pytest.approx(0, abs=0.01)


def test_the_noise_of_a_block_is_that_of_its_paired_effect() -> None:
    sweep = replace(ONE_TEST, sd=paired(0.05))
    effects = []
    for run in simulate(sweep, runs=500, seed=1, name="test"):
        found = values(run)
        for block in range(1, 11):
            (t,), (b,), (c,) = (found[arm, block] for arm in ("tuning", "baseline", "control"))
            effects.append(t - (b + c) / 2)
    assert np.std(effects) == pytest.approx(0.05, rel=0.05)


def test_the_same_seed_draws_the_same_runs_and_another_or_another_name_does_not() -> None:
    def drawn(seed: int, name: str) -> list[list[float]]:
        (run,) = simulate(ONE_TEST, runs=1, seed=seed, name=name)
        return list(values(run).values())

    assert drawn(1, "a") == drawn(1, "a")
    assert drawn(1, "a") != drawn(2, "a")
    assert drawn(1, "a") != drawn(1, "b")


@pytest.mark.parametrize(("hits", "n"), [(0, 100), (7, 100), (50, 100), (100, 100)])
def test_limits_of_a_rate_are_clopper_and_pearsons(hits: int, n: int) -> None:
    exact = stats.binomtest(hits, n).proportion_ci(confidence_level=0.9, method="exact")
    assert Rate(hits, n).upper == pytest.approx(exact.high)
    assert Rate(hits, n).lower_limit(0.95) == pytest.approx(exact.low)


def test_the_tables_are_markdown_with_the_command_that_makes_them_again() -> None:
    result = CliRunner().invoke(
        main, ["--only", "handicap", "--jobs", "1", "--runs", "20", "--seed", "7"]
    )
    assert result.exit_code == 0
    assert "| noise | 10 blocks | 20 blocks | 30 blocks |" in result.stdout
    assert "Printed by `python -m tools.calibrate" in result.stdout


def test_json_holds_the_counts_of_every_cell() -> None:
    result = CliRunner().invoke(
        main, ["--only", "handicap", "--jobs", "1", "--runs", "20", "--json"]
    )
    (table,) = json.loads(result.stdout)["tables"]
    assert table["title"] == "The known loss"
    assert {value["found"]["n"] for value in table["values"]} == {10}


def test_a_promise_that_the_numbers_refute_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tables.Table(title="", text="", header=["a"], rows=[], broken=["it isn't so"])
    monkeypatch.setitem(tables.GROUPS, "coverage", lambda *_: broken)
    result = CliRunner().invoke(main, ["--only", "coverage", "--jobs", "1"])
    assert result.exit_code == 1
    assert "it isn't so" in result.stderr
