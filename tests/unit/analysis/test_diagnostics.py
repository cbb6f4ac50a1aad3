"""Each diagnostic is found where it was planted, says what to do, and changes nothing."""

from __future__ import annotations

import math
import random

import pytest

from labctl.analysis.judge import judge
from labctl.analysis.model import Diagnostic, DiagnosticKind, Judgement
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import scaled, with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run

PRIMARY = "events_per_s"
ARMS = ("baseline", "control", "handicap", "pinned", "other")
NOISE = 0.02


def small(**options: object) -> LoadedRun:
    """Ten blocks of five arms under one workload; pinned is 10 % slower."""
    return synthetic_run(
        **{
            "tunings": ARMS,
            "effects": {"handicap": 0.95, "pinned": 0.9},
            "workloads": {"sysbench-cpu": WORKLOADS["sysbench-cpu"]},
            "noise": NOISE,
            "primary_only": True,
            **options,
        }
    )


def of_kind(judgement: Judgement, kind: DiagnosticKind) -> list[Diagnostic]:
    return [found for found in judgement.diagnostics if found.kind is kind]


def only(judgement: Judgement, kind: DiagnosticKind) -> Diagnostic:
    (found,) = of_kind(judgement, kind)
    return found


def test_a_run_of_clean_noise_has_no_diagnostic() -> None:
    assert judge(small(seed=3)).diagnostics == ()


def test_one_wild_trial_is_named_with_its_block_and_folder() -> None:
    run = with_values(small(), "pinned", PRIMARY, lambda b, v: v * (0.5 if b == 7 else 1))
    found = only(judge(run), DiagnosticKind.OUTLIER)
    assert (found.tuning, found.blocks, found.metric) == ("pinned", (7,), PRIMARY)
    assert (found.workload, found.condition) == ("sysbench-cpu", "neighbour")
    (trial,) = [
        t.folder.path.name
        for t in run.trials
        if t.record.block == 7 and t.record.cell["tuning"] == "pinned"
    ]
    assert f"trials/{trial} ('pinned')" in found.sentence
    assert "invalid attempts" in found.sentence


def test_an_outlier_says_what_the_verdict_would_be_without_it_and_leaves_it_in() -> None:
    run = with_values(small(seed=3), "pinned", PRIMARY, lambda b, v: v * (1.4 if b == 7 else 1))
    judged = judge(run)
    found = only(judged, DiagnosticKind.OUTLIER)
    assert "'pinned' is 'inconclusive' with it and would be 'regresses' without" in found.sentence
    assert found.grave
    verdicts = {c.tuning: str(c.verdict) for c in judged.comparisons if c.verdict}
    assert verdicts["pinned"] == "inconclusive"
    (pinned,) = [c for c in judged.comparisons if c.tuning == "pinned"]
    assert set(pinned.blocks) == set(range(1, 11))


def test_an_outlier_on_which_nothing_hangs_is_told_but_warns_of_nothing() -> None:
    run = with_values(
        small(effects={"handicap": 0.95, "pinned": 0.3}),
        "pinned",
        PRIMARY,
        lambda b, v: v * (1.3 if b == 7 else 1),
    )
    judged = judge(run)
    found = only(judged, DiagnosticKind.OUTLIER)
    assert not found.grave
    assert "No verdict and no check depends on it" in found.sentence
    assert not any("may be too narrow" in text for text in judged.warnings)


def test_a_wild_baseline_is_one_diagnostic_for_all_that_it_was_compared_with() -> None:
    run = with_values(small(seed=3), "baseline", PRIMARY, lambda b, v: v * (0.2 if b == 4 else 1))
    found = only(judge(run), DiagnosticKind.OUTLIER)
    assert found.tuning is None
    assert found.blocks == (4,)
    assert "the A/A control's difference from baseline" in found.sentence
    assert "('baseline')" in found.sentence
    assert "('pinned')" not in found.sentence
    # Without the block the control is narrower too: what would be said is said by its eligibility.
    assert "'pinned' is 'inconclusive' with it and would be 'regresses' without" in found.sentence
    assert (
        "The known loss is 'not detected' with it and would be 'detected' without" in found.sentence
    )


def test_an_effect_that_changes_over_the_run_drifts() -> None:
    run = with_values(small(), "pinned", PRIMARY, lambda b, v: v * math.exp(0.02 * (b - 5.5)))
    judged = judge(run)
    found = only(judged, DiagnosticKind.DRIFT)
    assert found.tuning == "pinned"
    assert "in block 1" in found.sentence
    assert "in block 10" in found.sentence


def test_a_host_that_drifts_under_all_arms_is_told_but_harms_no_verdict() -> None:
    run = scaled(small(block_noise=0.0), lambda trial: math.exp(0.05 * trial.record.block))
    judged = judge(run)
    found = only(judged, DiagnosticKind.DRIFT)
    assert found.tuning is None
    assert not found.grave
    assert "verdicts and intervals are not affected. Typical" in found.sentence
    assert not any("may be too narrow" in text for text in judged.warnings)


def test_what_boots_differ_by_is_neither_outlier_nor_drift() -> None:
    """What the boots differ by is in the interval, and is no drift."""
    by_boot = {1: 0.9, 2: 1.1, 3: 0.95, 4: 1.05}
    run = small(blocks=20, boots=4)
    boots = {t.record.block: t.record.boot for t in run.trials}
    run = with_values(run, "pinned", PRIMARY, lambda b, v: v * by_boot[boots[b]])
    assert judge(run).diagnostics == ()


def test_a_demonstration_has_no_diagnostic() -> None:
    run = with_values(small(blocks=9), "pinned", PRIMARY, lambda b, v: v * (0.5 if b == 7 else 1))
    assert judge(run).diagnostics == ()


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_what_gets_no_verdict_for_its_zeros_has_no_diagnostic(value: float) -> None:
    run = with_values(small(), "pinned", PRIMARY, lambda b, v: value if b == 7 else v)
    assert not [s for s in judge(run).diagnostics if s.tuning == "pinned"]


def test_values_all_alike_have_no_diagnostic() -> None:
    run = small()
    for arm in ARMS:
        run = with_values(run, arm, PRIMARY, lambda b, v: 100.0)
    assert judge(run).diagnostics == ()


def test_blocks_that_are_missing_are_no_diagnostic() -> None:
    run = small(seed=3, blocks=13, invalid=[("pinned", "sysbench-cpu", b) for b in (2, 5)])
    assert judge(run).diagnostics == ()


def test_grave_diagnostics_stand_among_the_warnings_once_per_place() -> None:
    run = with_values(small(seed=3), "pinned", PRIMARY, lambda b, v: v * (1.4 if b == 7 else 1))
    run = with_values(run, "other", PRIMARY, lambda b, v: v * math.exp(0.02 * (b - 5.5)))
    (warning,) = [text for text in judge(run).warnings if "may be too narrow" in text]
    assert "outlier ('pinned')" in warning
    assert "drift ('other')" in warning


def test_what_ten_blocks_hardly_show_is_left_to_the_dots() -> None:
    """Modes, order and likeness of neighbours: their tests missed most moderate breaches."""
    slow = (2, 3, 6, 9)
    run = with_values(small(), "pinned", PRIMARY, lambda b, v: v * (0.6 if b in slow else 1))
    run = scaled(run, lambda trial: math.exp(-0.03 * trial.record.position))
    assert {str(found.kind) for found in judge(run).diagnostics} <= {"outlier", "drift"}


RUNS = 300


def test_independent_normal_noise_rarely_shows_a_diagnostic() -> None:
    """Asked for is 1 % for outliers and 2 % for drift (of effects and of levels), in runs of twenty
    blocks. Of 300 runs at 3 % more than 18 have any in one case of a thousand."""
    alarms = 0
    for seed in range(RUNS):
        rng = random.Random(seed)
        run = small(seed=seed, noise=0.0, blocks=20)
        noisy = scaled(run, lambda _, rng=rng: math.exp(NOISE * rng.gauss(0.0, 1.0)))
        alarms += bool(judge(noisy).diagnostics)
    assert alarms <= 18
