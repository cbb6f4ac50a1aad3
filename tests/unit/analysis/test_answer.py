from labctl.analysis.judge import judge
from tests.unit.analysis.alter import with_run, with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run

CALM = {"noise": 0.005, "accelerator": "kvm", "boots": 5}


def test_the_better_tuning_is_named_with_size_interval_and_certainty() -> None:
    answer = judge(synthetic_run(**CALM)).answer
    assert answer.startswith("Promising, not confirmed: 'pinned+fifo'. It improves")
    assert "sysbench-cpu with a noisy neighbour (events/s ×2.7" in answer
    assert "simultaneous intervals for 4 comparisons" in answer
    assert "'pinned' regresses" in answer


def test_the_neighbours_bill_is_part_of_the_answer() -> None:
    answer = judge(synthetic_run(**CALM)).answer
    assert "Neighbours lose up to 40 %" in answer


def test_what_was_found_under_emulation_says_so() -> None:
    answer = judge(synthetic_run(noise=0.005, boots=5, accelerator="tcg")).answer
    assert answer.startswith("Promising, not confirmed")
    assert "emulated (TCG); only a run under KVM can confirm it" in answer


def test_a_tuning_that_improves_one_primary_and_regresses_another_is_a_trade_off() -> None:
    effects = {"handicap": 0.95, "pinned": {"sysbench-cpu": 1.5, "fio-randread": 0.7}}
    answer = judge(synthetic_run(**CALM, effects=effects)).answer
    assert answer.startswith("Roll out nothing: 'pinned' is a trade-off.")
    assert "improves sysbench-cpu with a noisy neighbour (events/s +" in answer
    assert "regresses fio-randread with a noisy neighbour (IOPS −" in answer
    assert "Roll out 'pinned" not in answer


def test_a_trade_off_loses_to_a_smaller_gain_without_a_loss() -> None:
    effects = {
        "handicap": 0.95,
        "pinned": {"sysbench-cpu": 5.0, "fio-randread": 0.7},
        "pinned+fifo": {"sysbench-cpu": 1.1},
    }
    answer = judge(synthetic_run(**CALM, effects=effects)).answer
    assert answer.startswith("Promising, not confirmed: 'pinned+fifo'")
    assert "'pinned' is a trade-off" in answer


def test_of_two_better_tunings_the_one_with_more_gains_comes_first() -> None:
    effects = {"handicap": 0.95, "pinned": 1.2, "pinned+fifo": {"sysbench-cpu": 3.0}}
    answer = judge(synthetic_run(**CALM, effects=effects)).answer
    assert answer.startswith("Promising, not confirmed: 'pinned'.")
    assert "The tunings were not compared with each other" in answer
    assert "'pinned+fifo' improves" in answer


def test_where_nothing_differs_baseline_stays() -> None:
    answer = judge(synthetic_run(**CALM, effects={"handicap": 0.95})).answer
    assert answer.startswith("Keep baseline: nothing improves. 'pinned' equals baseline within 5 %")


def test_what_is_too_noisy_says_what_it_would_take() -> None:
    answer = judge(synthetic_run(noise=0.2, effects={}, seed=1, accelerator="kvm")).answer
    assert answer.startswith("Not shown: this run can't tell the tunings from baseline.")
    assert "minimum detectable effect: " in answer
    assert "5 % needs" in answer


def test_a_failed_control_is_the_reason_given() -> None:
    run = synthetic_run(**CALM, workloads={"sysbench-cpu": WORKLOADS["sysbench-cpu"]})
    run = with_values(run, "control", "events_per_s", lambda block, old: 0.9 * old)
    answer = judge(run).answer
    assert answer.startswith("Not shown: this run can't tell the tunings from baseline.")
    assert ": the A/A control failed" in answer


def test_few_blocks_are_a_demonstration() -> None:
    answer = judge(synthetic_run(**CALM, blocks=9)).answer
    assert answer.startswith("Demonstration, no verdict. A verdict needs 10 blocks")
    assert "Roll out" not in answer


def test_a_study_without_candidates_recommends_nothing() -> None:
    answer = judge(synthetic_run(**CALM, tunings=["native", "baseline", "control"])).answer
    assert answer.startswith("Nothing can be recommended.")


def test_an_answer_from_one_boot_says_that_it_holds_for_that_one() -> None:
    words = "for that boot only"
    assert words in judge(synthetic_run(boots=1)).answer
    assert words not in judge(synthetic_run(boots=5)).answer
    assert words not in judge(synthetic_run(boots=10)).answer


def test_of_imported_trials_nobody_is_told_to_run_a_study() -> None:
    run = synthetic_run(blocks=5)
    told = judge(with_run(run, imported={"file": "trials.csv"})).answer
    assert "Import a file with at least 10 blocks." in told
    assert "Run the study" not in told
    assert "Run the study with at least 10 blocks." in judge(run).answer
