"""Main effects and interactions, held against what is known and against least squares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.factors import analyse_factors
from labctl.analysis.model import Contrast, FactorAnalysis, Finding
from labctl.base.units import Unit
from labctl.store.records.factor_record import Factorial, PlannedFactor
from tools.calibrate.rates import Rate

from .factorial import RATE, Value, design, factorial, measured

RUNS = 2000
LIMIT = 0.06
"""The upper 95 % limit of the rate of runs with a false finding (METHOD 23)."""

POLICIES = {"policy": ("other", "fifo", "rr"), "number": ("10", "50")}
LOGS = {"other": 0.0, "fifo": 0.2, "rr": -0.1, "10": 0.0, "50": -0.5}


def found(of: Factorial, value: Value, **options: object) -> FactorAnalysis:
    analysis = analyse_factors(of, design(of), measured(of, value, **options))  # type: ignore[arg-type]
    assert analysis is not None
    return analysis


def one(analysis: FactorAnalysis, *levels: str) -> Contrast:
    (contrast,) = (c for c in analysis.contrasts if c.levels == levels)
    return contrast


def logs_of(contrast: Contrast) -> list[float]:
    return [math.log(end) for end in (contrast.low, contrast.high) if end is not None]


def noisy(
    of: Factorial, seed: int, *, blocks: int = 11, sd: float = 0.02, joint: float = 0.0
) -> Value:
    """Cells whose logarithms add up, save that fifo with 50 is `joint` more; blocks and trials
    vary."""
    rng = np.random.default_rng(seed)
    of_cells = rng.normal(scale=sd, size=(len(of.cells), blocks))
    of_blocks = rng.normal(scale=0.1, size=blocks)
    number = {tuple(cell.levels.items()): n for n, cell in enumerate(of.cells)}

    def value(levels: Mapping[str, str], block: int) -> float:
        log = sum(LOGS[level] for level in levels.values())
        log += joint if set(levels.values()) >= {"fifo", "50"} else 0.0
        at = number[tuple(levels.items())]
        return math.exp(5 + log + of_cells[at, block - 1] + of_blocks[block - 1])

    return value


def least_squares(
    of: Factorial, value: Value, *, interaction: bool
) -> dict[tuple[str, ...], float]:
    """Treatment coding with a column per block: an independent computation."""
    names: list[tuple[str, ...]] = [("fifo",), ("rr",), ("50",)]
    names += [("fifo", "50"), ("rr", "50")] if interaction else []
    rows, values = [], []
    for cell in of.cells:
        for block in range(1, 11):
            at = set(cell.levels.values())
            rows.append(
                [float(set(name) <= at) for name in names]
                + [float(block == column) for column in range(1, 11)]
            )
            values.append(math.log(value(cell.levels, block)))
    solved, *_ = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)
    return dict(zip(names, solved.tolist(), strict=False))


def test_main_effects_of_a_balanced_design_are_those_of_least_squares() -> None:
    of = factorial(POLICIES, interactions=(("policy", "number"),))
    value = noisy(of, 3, joint=0.3)
    analysis = found(of, value)
    for name, expected in least_squares(of, value, interaction=False).items():
        assert math.log(one(analysis, *name).estimate) == pytest.approx(expected, abs=1e-12)


def test_interactions_are_differences_of_differences_as_in_least_squares() -> None:
    of = factorial(POLICIES, interactions=(("policy", "number"),))
    value = noisy(of, 4, joint=0.3)
    analysis = found(of, value)
    expected = least_squares(of, value, interaction=True)
    for name in (("fifo", "50"), ("rr", "50")):
        assert math.log(one(analysis, *name).estimate) == pytest.approx(expected[name], abs=1e-12)
    assert one(analysis, "fifo", "50").finding is Finding.REAL
    assert one(analysis, "rr", "50").finding is Finding.NOT_SHOWN


def test_the_interval_is_students_over_blocks_and_simultaneous_over_the_declared_family() -> None:
    of = factorial(POLICIES, interactions=(("policy", "number"),))
    value = noisy(of, 5)
    analysis = found(of, value)
    assert analysis.family == 2 + 1 + 2
    contrast = one(analysis, "50")
    by_block = [
        np.mean(
            [
                math.log(value({"policy": policy, "number": "50"}, block))
                - math.log(value({"policy": policy, "number": "10"}, block))
                for policy in POLICIES["policy"]
            ]
        )
        for block in range(1, 11)
    ]
    expected = stats.t.interval(1 - 0.05 / 5, 9, np.mean(by_block), stats.sem(by_block))
    assert logs_of(contrast) == pytest.approx(list(expected))
    assert [math.log(v) for v in contrast.values.values()] == pytest.approx(by_block)
    assert contrast.confidence == pytest.approx(0.99)


def test_what_a_block_does_to_all_of_its_cells_is_in_no_contrast() -> None:
    of = factorial(POLICIES)
    value = noisy(of, 6, sd=0.0)
    contrast = one(found(of, lambda levels, block: value(levels, block) * 10**block), "fifo")
    assert contrast.estimate == pytest.approx(math.exp(0.2))


def test_a_cell_that_lost_a_value_takes_its_block_out_of_its_own_contrasts_alone() -> None:
    of = factorial(POLICIES)
    lost = lambda levels, block: block == 4 and levels == {"policy": "rr", "number": "50"}  # noqa: E731
    analysis = found(of, noisy(of, 7), lost=lost, blocks=11)
    rest = [block for block in range(1, 12) if block != 4]
    assert list(one(analysis, "rr").values) == rest
    assert one(analysis, "rr").left_out == (4,)
    assert list(one(analysis, "50").values) == rest
    assert list(one(analysis, "fifo").values) == list(range(1, 12))


def test_with_excluded_combinations_a_level_meets_the_cells_that_both_levels_have() -> None:
    of = factorial(POLICIES, excluded=({"policy": "fifo", "number": "50"},))
    value = noisy(of, 8, sd=0.0, joint=9.0)
    analysis = found(of, value)
    assert one(analysis, "fifo").cells == 1
    assert one(analysis, "fifo").estimate == pytest.approx(math.exp(0.2))
    assert one(analysis, "rr").cells == 2
    assert one(analysis, "50").cells == 2


def test_a_cell_that_never_gave_a_value_is_named_and_its_partners_stay_out() -> None:
    of = factorial(POLICIES)
    lost = lambda levels, _: levels == {"policy": "rr", "number": "50"}  # noqa: E731
    contrast = one(found(of, noisy(of, 9), lost=lost), "rr")
    assert contrast.cells == 1
    assert len(contrast.without) == 1
    assert "(rr, 50)" in contrast.without[0]


def test_fewer_than_ten_blocks_get_no_finding() -> None:
    of = factorial(POLICIES)
    assert {c.finding for c in found(of, noisy(of, 1), blocks=9).contrasts} == {Finding.NONE}
    assert Finding.REAL in {c.finding for c in found(of, noisy(of, 1)).contrasts}


def test_a_factor_that_takes_a_boot_gives_one_value_per_boot() -> None:
    of = factorial(POLICIES, own_boot=("policy",), interactions=(("policy", "number"),))
    analysis = found(of, noisy(of, 2), blocks_per_boot=2)
    assert [(c.levels, c.per, len(c.values)) for c in analysis.contrasts] == [
        (("fifo",), "boot", 5),
        (("rr",), "boot", 5),
        (("50",), "block", 10),
        (("fifo", "50"), "boot", 5),
        (("rr", "50"), "boot", 5),
    ]


def test_boots_are_told_apart_whichever_level_numbers_them() -> None:
    """Each kernel has boots of its own, of the same blocks."""
    of = factorial({"kernel": ("a", "b")}, own_boot=("kernel",))
    of_kernel = {"a": 1.0, "b": 1.1}
    cells = measured(of, lambda at, block: of_kernel[at["kernel"]] + block, blocks_per_boot=2)
    series = {
        cell: {
            key: replace(one, boots={b: boot + 100 * at for b, boot in one.boots.items()})
            for key, one in by_key.items()
        }
        for at, (cell, by_key) in enumerate(cells.series.items())
    }
    analysis = analyse_factors(of, design(of), replace(cells, series=series))
    assert analysis is not None
    (contrast,) = analysis.contrasts
    expected = [
        (math.log((1.1 + b) / (1.0 + b)) + math.log((2.1 + b) / (2.0 + b))) / 2
        for b in range(1, 11, 2)
    ]
    assert [math.log(value) for value in contrast.values.values()] == pytest.approx(expected)


def test_metrics_of_which_0_is_a_usual_value_are_compared_by_difference() -> None:
    of = factorial(POLICIES)
    steal = replace(RATE, metric="steal", unit=Unit.FRACTION)
    shares = {"other": 0.0, "fifo": 0.1, "rr": 0.0, "10": 0.0, "50": 0.2}
    cells = measured(of, lambda levels, _: sum(shares[at] for at in levels.values()), sample=steal)
    analysis = analyse_factors(of, design(of, metric="steal"), cells)
    assert analysis is not None
    contrast = one(analysis, "fifo")
    assert not contrast.is_ratio
    assert contrast.estimate == pytest.approx(0.1)
    # All the same: no interval of no width.
    assert contrast.low is None


def test_trials_that_were_not_interleaved_are_compared_unpaired() -> None:
    of = factorial({"policy": ("other", "fifo")})
    value = noisy(of, 10)
    contrast = one(found(of, value, interleaved=False), "fifo")
    logs = [[math.log(value(cell.levels, block)) for block in range(1, 11)] for cell in of.cells]
    welch = stats.ttest_ind(logs[1], logs[0], equal_var=False).confidence_interval(0.95)
    assert logs_of(contrast) == pytest.approx([*welch])
    assert not contrast.paired
    assert contrast.values == {}


def test_control_and_known_loss_are_no_arms_of_it() -> None:
    of = factorial(POLICIES, arms=("baseline", "control", "handicap", "native"))
    analysis = found(of, lambda levels, block: 1.0 + block + len(levels["policy"]))
    assert {c.arm for c in analysis.contrasts} == {"baseline", "native"}
    assert analysis.family == 6


def false_findings(*, own_boot: tuple[str, ...], runs: int) -> Rate:
    """Runs with any finding where nothing differs but boots, of two blocks each: what a boot of one
    kernel does is in all of its cells."""
    of = factorial(
        {"kernel": ("a", "b"), "policy": ("other", "fifo", "rr")},
        own_boot=own_boot,
        interactions=(("kernel", "policy"),),
    )
    at = {tuple(cell.levels.items()): number for number, cell in enumerate(of.cells)}
    rng = np.random.default_rng(20)
    count = 0
    for _ in range(runs):
        of_cells = rng.normal(scale=0.02, size=(len(of.cells), 10))
        of_blocks = rng.normal(scale=0.1, size=10)
        of_boots = rng.normal(scale=0.05, size=(2, 5))

        def value(levels: Mapping[str, str], block: int) -> float:
            boot = of_boots["ab".index(levels["kernel"]), (block - 1) // 2]  # noqa: B023
            cell = of_cells[at[tuple(levels.items())], block - 1]  # noqa: B023
            return math.exp(cell + of_blocks[block - 1] + boot)  # noqa: B023

        analysis = found(of, value, blocks_per_boot=2)
        assert analysis.family == 5
        count += any(c.finding in (Finding.REAL, Finding.SMALL) for c in analysis.contrasts)
    return Rate(count, runs)


def test_few_runs_of_equal_levels_find_anything_where_boots_differ() -> None:
    rate = false_findings(own_boot=("kernel",), runs=RUNS)
    assert rate.n == RUNS
    assert rate.upper <= LIMIT


def test_blocks_of_one_boot_as_units_would_find_what_boots_did() -> None:
    """What the mean over a boot's blocks is for."""
    assert false_findings(own_boot=(), runs=400).lower_limit(0.95) > LIMIT


def test_a_plan_that_was_edited_raises_nothing() -> None:
    of = factorial(POLICIES, interactions=(("policy", "nothing"), ("policy", "policy")))
    gone = {"policy": PlannedFactor(levels=()), "number": PlannedFactor(levels=("10", "50"))}
    for odd in (of, replace(of, factors=gone), replace(of, factors={}), replace(of, cells=())):
        analysis = analyse_factors(odd, design(of), measured(of, noisy(of, 1)))
        assert analysis is not None
        assert not any(one.is_interaction for one in analysis.contrasts)


def test_boots_are_the_unit_of_unpaired_trials_as_well() -> None:
    of = factorial({"kernel": ("a", "b")}, own_boot=("kernel",))
    value = noisy_boots(of)
    contrast = one(found(of, value, interleaved=False, blocks_per_boot=2), "b")
    boots = [
        [sum(math.log(value(cell.levels, b)) for b in (k, k + 1)) / 2 for k in range(1, 11, 2)]
        for cell in of.cells
    ]
    welch = stats.ttest_ind(boots[1], boots[0], equal_var=False).confidence_interval(0.95)
    assert logs_of(contrast) == pytest.approx([*welch])


def noisy_boots(of: Factorial) -> Value:
    noise = np.random.default_rng(12).normal(scale=0.05, size=(len(of.cells), 10))
    return lambda at, block: math.exp(noise["ab".index(at["kernel"]), block - 1])
