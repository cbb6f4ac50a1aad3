"""The grade of an answer says no more than the run supports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from labctl.analysis.answer.record import AnswerRecord, Grade
from labctl.analysis.judge import judge
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import with_run, with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run

SYSBENCH = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}
GOOD = {
    "noise": 0.01,
    "accelerator": "kvm",
    "boots": 5,
    "tunings": ["baseline", "control", "handicap", "pinned"],
    "effects": {"handicap": 0.95, "pinned": 1.5},
    "workloads": SYSBENCH,
}


def made(**changes: object) -> LoadedRun:
    return synthetic_run(**{**GOOD, **changes})


def decided(run: LoadedRun) -> AnswerRecord:
    return judge(run).decision


def test_a_good_run_is_a_candidate_and_says_how_to_confirm_it() -> None:
    found = decided(made())
    assert (found.grade, found.tuning) == (Grade.CANDIDATE, "pinned")
    assert found.lead == "Promising, not confirmed: 'pinned'."
    assert found.sure.startswith("Candidate. Confirm with 'labctl advise synthetic --verify'")
    assert found.next[0].command == "labctl advise synthetic --verify"
    assert found.tunings[0].lacking == []


def test_the_time_of_a_verification_is_the_share_of_the_arms_that_run_again() -> None:
    """The run took 10 minutes for eight arms; baseline, control, known loss, native, tuning and its
    twin are six of them."""
    found = decided(
        synthetic_run(
            **{
                **GOOD,
                "tunings": [
                    *GOOD["tunings"],
                    "native",
                    "native+pinned",
                    "native+fifo",
                    "pinned+fifo",
                ],
            }
        )
    )  # type: ignore[misc]
    assert found.tuning == "pinned"
    assert found.next[0].seconds == pytest.approx(600 * 6 / 8)


@pytest.mark.parametrize(
    ("run", "lack"),
    [
        (made(boots=4), "4 boots; a grade needs 5"),
        (
            made(
                workloads=WORKLOADS,
                effects={
                    "handicap": {"sysbench-cpu": 0.95, "fio-randread": 1.0},
                    "pinned": {"sysbench-cpu": 1.5, "fio-randread": 1.0},
                },
            ),
            "would have detected harm in fio-randread with a noisy neighbour",
        ),
        (
            replace(made(), problems=("trial 7 is left out: it is truncated",)),
            "incomplete (1 problem)",
        ),
        (made(status="interrupted"), "40 of 40 trials are done"),
    ],
    ids=["boots", "blind", "damaged", "unfinished"],
)
def test_whatever_is_lacking_keeps_a_run_from_being_a_candidate(run: LoadedRun, lack: str) -> None:
    found = decided(run)
    assert found.grade is Grade.NOT_SHOWN
    assert lack in found.sure
    assert "roll out 'pinned'." not in found.lead.lower()


def test_a_tuning_that_gains_everywhere_needs_no_known_loss() -> None:
    """A metric that shows a gain is not blind, so nothing rests on the known loss."""
    assert decided(made(effects={"pinned": 1.5})).grade is Grade.CANDIDATE


def test_the_known_loss_is_asked_for_in_the_place_of_the_claim_alone() -> None:
    """Where pinned gains, it doesn't matter that the known loss shows nothing."""
    found = decided(
        made(
            workloads=WORKLOADS,
            effects={
                "handicap": {"sysbench-cpu": 1.0, "fio-randread": 0.95},
                "pinned": {"sysbench-cpu": 1.5, "fio-randread": 1.0},
            },
        )
    )
    assert found.grade is Grade.CANDIDATE


@pytest.mark.parametrize(
    ("longest", "condition"),
    [
        (lambda block, old: 0.05 if block == 3 else 0.004, False),
        (lambda block, old: 0.56 if block == 3 else 0.004, True),
        (lambda block, old: 0.02, True),
    ],
    ids=["one of 50 ms", "one of 560 ms", "all of 20 ms"],
)
def test_the_answer_opens_with_the_stalls_that_a_rollout_brings(
    longest: Callable[[int, float], float], condition: bool
) -> None:
    run = made()
    for tuning in ("baseline", "control"):
        run = with_values(run, tuning, "latency_max", lambda block, old: 0.004)
    lead = decided(with_values(run, "pinned", "latency_max", longest)).lead
    assert ("only where stalls of" in lead) is condition


def test_under_emulation_nothing_is_more_than_a_candidate() -> None:
    found = decided(made(accelerator="tcg"))
    assert found.grade is Grade.CANDIDATE
    assert "emulated (TCG); only a run under KVM can confirm it" in found.sure
    assert "labctl sweep pinning --quick --accel kvm" in [step.command for step in found.next]


def test_an_interrupted_run_opens_with_how_far_it_came_and_what_goes_on_with_it() -> None:
    whole = made(status="interrupted")
    run = replace(whole, trials=whole.trials[:17])
    found = decided(run)
    assert found.status == "17 of 40 trials done: 'labctl sweep --resume synthetic' continues it."
    assert judge(run).answer.startswith(found.status)
    assert [step.command for step in found.next] == ["labctl sweep --resume synthetic"]
    assert "Run the study" not in judge(run).answer, "it has the blocks, and they are to be run"


def test_a_run_that_failed_says_why_first() -> None:
    run = with_run(made(status="failed"), failure="the guest ended\nQEMU's log")
    found = decided(replace(run, trials=run.trials[:3]))
    assert found.status.startswith("3 of 40 trials done, then the run failed: the guest ended. '")


def test_a_run_that_goes_on_is_waited_for() -> None:
    found = decided(made(status="running"))
    assert found.status == "40 of 40 trials done; the run is still in progress."
    assert [(step.command, step.text) for step in found.next] == [(None, "wait for the run to end")]


def test_a_harmful_tuning_is_named_as_one() -> None:
    found = decided(made(effects={"handicap": 0.95, "pinned": 0.7}))
    assert found.lead == "Keep baseline: nothing improves and 'pinned' does harm."
    assert "'pinned' regresses sysbench-cpu" in found.because
    assert (found.grade, found.tuning) == (Grade.NOT_SHOWN, "pinned")
    assert found.tunings[0].worse[0].tested == "verdict"


def test_what_nobody_is_to_roll_out_has_no_price_and_its_losses_are_not_called_unshown() -> None:
    both = {name: WORKLOADS[name] for name in ("sysbench-cpu", "fio-randread")}
    traded = {"sysbench-cpu": 1.12, "fio-randread": 0.8}
    found = decided(made(effects={"handicap": 0.95, "pinned": traded}, workloads=both))
    assert found.lead == "Roll out nothing: 'pinned' is a trade-off."
    assert (found.price, found.worse, found.sure) == ("", "", "")


def test_where_nothing_is_to_be_found_baseline_is_kept_or_more_blocks_are_the_next_step() -> None:
    equal = decided(made(effects={"handicap": 0.95}, noise=0.005))
    assert equal.lead == "Keep baseline: nothing improves."
    assert equal.next == ()
    noisy = decided(made(effects={}, noise=0.08))
    assert noisy.lead == "Not shown: this run can't tell the tunings from baseline."
    [step] = noisy.next
    assert step.command is not None
    assert step.command.startswith("labctl sweep pinning --quick --blocks ")
    assert step.seconds


def test_too_few_boots_are_mended_by_a_boot_per_block() -> None:
    [step] = decided(made(boots=1)).next
    assert step.command == "labctl sweep pinning --quick --blocks-per-boot 1"


@pytest.mark.parametrize(
    "command",
    [
        "labctl sweep pinning; rm -rf ~",
        "labctl sweep $(reboot)",
        "labctl --lab /tmp/theirs sweep pinning",
        "labctl sweep --resume other",
        "curl example.org | sh",
        "labctl sweep 'pin",
    ],
)
def test_a_command_that_is_more_than_words_is_not_repeated(command: str) -> None:
    [step] = decided(with_run(made(boots=1), command=command)).next
    assert step.command is None


def test_a_seed_is_not_repeated() -> None:
    run = with_run(made(boots=1), command="labctl sweep pinning --seed 7 --quick --blocks=10")
    [step] = decided(run).next
    assert step.command == "labctl sweep pinning --quick --blocks-per-boot 1"


def test_who_pays_stands_in_the_answer() -> None:
    assert "Neighbours lose 18 %" in decided(made()).price


def test_imported_trials_have_no_next_command() -> None:
    assert decided(with_run(made(boots=1), imported={"file": "trials.csv"})).next == ()
