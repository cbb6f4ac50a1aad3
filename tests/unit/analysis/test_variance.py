"""Components of variance, and what would buy more precision."""

import math
import random
from dataclasses import replace

import pytest

from labctl.analysis.effects.intervals import mean_squares
from labctl.analysis.effects.variance import (
    Components,
    Costs,
    Proposal,
    components,
    costs_of,
    propose,
)
from labctl.analysis.judge import judge
from labctl.analysis.model import Role
from labctl.base.units import Better, Unit
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.samples import Reading, Sample
from labctl.workloads.windows import RateWindow, batch_errors
from tests.unit.analysis.alter import with_readings, with_run
from tests.unit.synthetic import WORKLOADS, synthetic_run

ONE = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}


def test_components_are_those_of_the_published_example_with_two_levels() -> None:
    """Kalibera and Jones: T_1^2 = 12.7, T_2^2 = 0.4."""
    found = components(mean_squares([[9, 5, 8, 3], [10, 6, 7, 11], [1, 12, 2, 4]]))
    assert found.blocks == pytest.approx(12.7, abs=0.05)
    assert found.boots == pytest.approx(0.4, abs=0.05)


def test_components_are_those_of_the_upper_levels_of_the_example_with_three() -> None:
    """The means of its six executions: S_2^2 = 2.6 and T_3^2 = 2.3."""
    found = components(mean_squares([[7.0, 5.5], [8.0, 9.0], [6.5, 3.0]]))
    assert found.blocks == pytest.approx(2.6, abs=0.05)
    assert found.boots == pytest.approx(2.3, abs=0.05)


def test_boots_of_one_block_each_have_no_component_of_their_own() -> None:
    found = components(mean_squares([[1.0], [2.0], [4.0]]))
    assert found.boots is None
    assert found.blocks == pytest.approx(7 / 3)


def optimal_repetitions(
    lower: float, higher: float, lower_cost: float, higher_cost: float
) -> float:
    """Kalibera and Jones' closed form, which proposals are held against: how often to repeat the
    lower level within one of the higher."""
    return math.sqrt(higher_cost / lower_cost * lower / higher)


def test_the_closed_form_that_proposals_are_held_against_is_libkaliberas() -> None:
    """Its test: T^2 of 0.7267, 0.2628, 0.7747 at costs of 3, 20, 100 s."""
    assert optimal_repetitions(0.7266667, 0.2627778, 3, 20) == pytest.approx(4.2937, abs=1e-3)
    assert optimal_repetitions(0.2627778, 0.7747, 20, 100) == pytest.approx(1.3023, abs=1e-3)


@pytest.mark.parametrize("boot_cost", [20.0, 100.0, 400.0, 1000.0])
def test_a_proposal_of_many_boots_has_the_published_number_of_blocks(boot_cost: float) -> None:
    """With many boots t is nearly normal and the closed form holds, but for whole numbers."""
    of, costs = Components(boots=0.04, blocks=0.16), Costs(boot=boot_cost, block=20.0)
    found = propose(of, costs, half_width=0.04, alpha=0.05)
    assert found is not None
    assert found.boots > 60
    assert found.blocks_per_boot == pytest.approx(
        optimal_repetitions(0.16, 0.04, 20.0, boot_cost), abs=1.5
    )


def test_a_proposal_reaches_what_was_asked_and_costs_what_it_says() -> None:
    of, costs = Components(boots=0.0004, blocks=0.0016), Costs(boot=20.0, block=60.0)
    found = propose(of, costs, half_width=0.05, alpha=0.0125)
    assert found is not None
    error = math.sqrt(0.0004 / found.boots + 0.0016 / (found.boots * found.blocks_per_boot))
    assert 2.5 * error <= 0.05  # any t is larger than the normal's 2.498
    assert found.boots * found.blocks_per_boot >= 10
    assert found.seconds == found.boots * (20.0 + 60.0 * found.blocks_per_boot)


def test_what_boots_do_not_add_is_bought_by_blocks() -> None:
    cheap_blocks = propose(Components(-0.01, 0.04), Costs(100.0, 10.0), 0.1, 0.05)
    assert cheap_blocks is not None
    assert cheap_blocks.blocks_per_boot > 5


def test_nothing_is_proposed_that_nobody_would_run() -> None:
    assert propose(Components(None, 1e6), Costs(1.0, 1.0), 0.001, 0.05) is None


def test_costs_are_medians_of_what_the_run_took() -> None:
    """16 trials of 3.4 s to a block; all began at the same second, so their sum is more."""
    run = with_run(synthetic_run(), boot_seconds={"1": 14.0, "2": 16.0, "3": 90.0})
    found = costs_of(run)
    assert (found.boot, found.block) == (16.0, pytest.approx(16 * 3.4))


def test_a_run_without_readable_times_still_has_a_proposal() -> None:
    assert costs_of(synthetic_run()).boot == 0.0
    (found,) = judge(synthetic_run(workloads=ONE, primary_only=True)).precision
    assert "not counting boots" in found.sentence


def test_times_that_cannot_be_are_no_cost() -> None:
    run = synthetic_run(primary_only=True)
    odd = [math.nan, math.inf, -3.0, 5.0]
    trials = tuple(
        replace(t, record=replace(t.record, wall_s=odd[i % 4], started_at="yesterday"))
        for i, t in enumerate(run.trials)
    )
    run = with_run(replace(run, trials=trials), boot_seconds={"1": math.nan, "2": None})
    assert costs_of(run) == Costs(boot=0.0, block=4 * 5.0)
    assert len(judge(run).precision) == 2


def test_precision_says_where_the_spread_comes_from() -> None:
    noise = dict.fromkeys(("pinned", "pinned+fifo"), 0.1)
    run = synthetic_run(
        workloads=ONE, primary_only=True, blocks=40, boots=20, boot_noise=noise, noise=0.01
    )
    (found,) = judge(with_run(run, boot_seconds={"1": 20.0})).precision
    assert found.between_boots == pytest.approx(0.1, rel=0.35)
    assert found.between_blocks == pytest.approx(0.01 * math.sqrt(1.5), rel=0.35)
    assert found.within_trials is None
    assert "comes mostly from boots" in found.sentence
    assert "a trial gives one value" in found.sentence
    assert found.blocks_per_boot == 1
    assert found.seconds == 2.0


@pytest.mark.parametrize(
    ("boots", "said"),
    [
        (1, "the share of boots cannot be estimated from one boot"),
        (10, "each block had its own boot"),
    ],
)
def test_where_boots_cannot_be_told_apart_the_sentence_says_why(boots: int, said: str) -> None:
    (found,) = judge(synthetic_run(workloads=ONE, primary_only=True, boots=boots)).precision
    assert found.between_boots is None
    assert said in found.sentence
    assert found.blocks_per_boot == 1


@pytest.mark.parametrize(("boots", "unsure"), [(1, True), (5, False), (10, False)])
def test_what_more_boots_buy_is_said_with_a_proviso_where_one_was_all(
    boots: int, unsure: bool
) -> None:
    (found,) = judge(synthetic_run(workloads=ONE, primary_only=True, boots=boots)).precision
    assert "would halve the interval" in found.sentence
    assert found.sentence.endswith("if boots do not differ.") is unsure


def test_a_run_that_judges_nothing_says_nothing_of_precision() -> None:
    assert judge(synthetic_run(tunings=["baseline", "control"])).precision == ()
    assert judge(synthetic_run(blocks=1, primary_only=True)).precision == ()


def test_one_block_tells_nothing_of_how_blocks_spread() -> None:
    """Not even where its histogram's bins bound the error from below."""
    run = synthetic_run(blocks=1, workloads=ONE)
    width = Sample(
        metric="bin_width",
        value=0.03,
        unit=Unit.FRACTION,
        better=Better.NEITHER,
        labels={"of": "events_per_s"},
        source="stdout.txt",
    )
    trials = tuple(replace(trial, readings=[*trial.readings, width]) for trial in run.trials)
    found = judge(replace(run, trials=trials))
    assert any(item.role is Role.PRIMARY for item in found.comparisons)
    assert not found.precision


def with_windows(
    run: LoadedRun, spread: float, *, forgets: float = 1.0, windows: int = 16
) -> LoadedRun:
    """The run with trials of `windows` windows whose own mean scatters by `spread`, relative, where
    windows are independent; `forgets`: the share of its deviation that a window loses to the next.
    """
    rng = random.Random(11)
    phi = 1 - forgets

    def changed(trial: LoadedTrial) -> LoadedTrial:
        readings: list[Reading] = []
        for reading in trial.readings:
            if not isinstance(reading, Sample) or reading.metric != "events_per_s":
                readings.append(reading)
                continue
            sd = spread * math.sqrt(windows)
            at, rates = rng.gauss(0, sd), []
            for _ in range(windows):
                rates.append(reading.value * (1 + at))
                at = phi * at + math.sqrt(1 - phi**2) * rng.gauss(0, sd)
            readings.append(replace(reading, value=sum(rates) / windows))
            told = [RateWindow(1.0, rate) for rate in rates]
            readings += batch_errors(told, "events_per_s", reading.source)
        return replace(trial, readings=tuple(readings))

    return replace(run, trials=tuple(map(changed, run.trials)))


def test_what_happens_within_trials_is_told_from_what_happens_between_blocks() -> None:
    run = synthetic_run(workloads=ONE, primary_only=True, blocks=200, boots=200, noise=0.03)
    (found,) = judge(with_windows(run, 0.03)).precision
    assert found.within_trials == pytest.approx(0.03 * math.sqrt(1.5), rel=0.1)
    assert found.between_blocks == pytest.approx(0.03 * math.sqrt(1.5), rel=0.2)
    assert "longer trials would lower it" in found.sentence


def test_levels_add_up_where_boots_differ_too() -> None:
    noise = dict.fromkeys(("pinned", "pinned+fifo"), 0.05)
    run = synthetic_run(
        workloads=ONE, primary_only=True, blocks=240, boots=80, boot_noise=noise, noise=0.001
    )
    (found,) = judge(with_windows(run, 0.1)).precision
    assert found.within_trials == pytest.approx(0.1 * math.sqrt(1.5), rel=0.1)
    assert found.between_blocks is not None
    assert found.between_blocks < 0.05
    assert found.between_boots == pytest.approx(0.05, rel=0.5)
    assert "comes mostly from variation within trials" in found.sentence


def test_windows_that_forget_within_a_batch_tell_the_error_of_the_trial() -> None:
    """The long-run variance of such a series is (1 + phi) / (1 - phi) of its windows' own."""
    run = synthetic_run(workloads=ONE, primary_only=True, blocks=60, boots=60, noise=0.001)
    (found,) = judge(with_windows(run, 0.01, forgets=0.5, windows=128)).precision
    assert found.within_trials == pytest.approx(0.01 * math.sqrt(3 * 1.5), rel=0.1)


@pytest.mark.parametrize("forgets", [0.02, 0.1])
def test_a_trial_whose_quarters_resemble_each_other_tells_no_error(forgets: float) -> None:
    run = synthetic_run(workloads=ONE, primary_only=True, blocks=20, boots=20)
    (found,) = judge(with_windows(run, 0.05, forgets=forgets)).precision
    assert found.within_trials is None
    assert "the quarters of a trial still correlate" in found.sentence
    assert found.seconds == 2.0


def test_windows_that_differ_alike_in_all_trials_tell_no_error() -> None:
    """A pattern that each trial repeats is in its batches, and not in what effects spread by: that
    alone says how many blocks it takes."""
    plain = synthetic_run(workloads=ONE, primary_only=True, blocks=20, boots=20, noise=0.01)
    rng = random.Random(7)
    told = [RateWindow(1.0, 1 + rng.gauss(0, 0.4)) for _ in range(16)]
    alike = tuple(batch_errors(told, "events_per_s", "stdout.txt"))
    trials = tuple(replace(t, readings=(*t.readings, *alike)) for t in plain.trials)
    (found,) = judge(replace(plain, trials=trials)).precision
    (without,) = judge(plain).precision
    assert found.within_trials is None
    assert "the quarters of a trial differ more than blocks do" in found.sentence
    assert (found.boots, found.seconds) == (without.boots, without.seconds)


def test_one_side_without_windows_leaves_the_level_unknown() -> None:
    run = with_windows(synthetic_run(workloads=ONE, primary_only=True), 0.05)
    run = with_readings(
        run,
        lambda trial, reading: (
            None
            if trial.record.cell["tuning"] == "control"
            and isinstance(reading, Sample)
            and reading.metric == "batch_error"
            else reading
        ),
    )
    (found,) = judge(run).precision
    assert found.within_trials is None
    assert "a trial gives one value" in found.sentence


@pytest.mark.parametrize("overhead", [60.0, 600.0, 6000.0])
def test_a_proposal_of_many_boots_has_the_published_number_of_seconds(overhead: float) -> None:
    """Kalibera and Jones' r_1, a second of every trial being the lowest level's repetition."""
    of = Components(boots=0.04, blocks=0.04, second=0.4)
    costs = Costs(boot=400.0, block=overhead + 8 * 10.0, trial=10.0, trials=8)
    found = propose(of, costs, half_width=0.04, alpha=0.05)
    assert found is not None
    best = optimal_repetitions(0.4, 0.04, 8.0, overhead)
    assert 0.6 < found.trial_s / best < 1.6  # the seconds to choose from are that far apart
    assert found.seconds == pytest.approx(
        found.boots * (400.0 + found.blocks_per_boot * (overhead + 8 * found.trial_s))
    )


def test_a_longer_trial_is_proposed_only_where_it_is_cheaper_than_blocks() -> None:
    costs = Costs(boot=0.0, block=300.0, trial=10.0, trials=8)
    within = propose(Components(None, 0.0, 0.4), costs, 0.05, 0.05)
    between = propose(Components(None, 0.04, 1e-9), costs, 0.05, 0.05)
    assert within is not None
    assert between is not None
    assert within.trial_s > 10.0
    assert between.trial_s < 10.0
    assert propose(Components(None, 0.04, None), costs, 0.05, 0.05) == Proposal(
        *(between.boots, between.blocks_per_boot), between.boots * 300.0, 10.0
    )


def test_seconds_stay_where_nothing_tells_what_they_cost() -> None:
    """Trials that were imported say nothing of the time that a block took."""
    run = with_windows(synthetic_run(workloads=ONE, primary_only=True, noise=0.001), 0.05)
    trials = tuple(replace(t, record=replace(t.record, wall_s=0.0)) for t in run.trials)
    (found,) = judge(replace(run, trials=trials)).precision
    assert found.within_trials is not None
    assert found.seconds == 2.0


def test_a_run_s_own_costs_make_its_proposal() -> None:
    """16 trials of 3.4 s to a block, of which 8 are sysbench's and measure 2 s."""
    run = with_windows(synthetic_run(primary_only=True, noise=0.001, blocks=20), 0.05)
    found = {item.workload: item for item in judge(run).precision}
    assert found["sysbench-cpu"].within_trials is not None
    assert found["sysbench-cpu"].seconds is not None
    assert found["sysbench-cpu"].seconds > 2.0
    assert found["fio-randread"].within_trials is None
    assert found["fio-randread"].seconds == 2.0
