"""What a self-test says of its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from labctl.base.errors import UsageError
from labctl.base.units import Better, Unit
from labctl.host.accelerator import Accelerator
from labctl.run.commands.selftest import FAILED, NOT_HERE, RAN, SelftestResult, outcome, unavailable
from labctl.run.planning.host import restorable
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialStatus
from tests.unit.synthetic import synthetic_run

KVM = Accelerator(name="kvm", reason="Guests run under KVM: a kernel boots with it here.")
TCG = Accelerator(name="tcg", reason="Guests are emulated (TCG), as requested.")
NAMES = ("baseline", "control", "handicap", "pinned", "pinned+fifo")


def sample(metric: str, unit: Unit, **labels: str) -> Sample:
    return Sample(
        metric=metric, value=1.0, unit=unit, better=Better.LOWER, labels=labels, source="host.json"
    )


COUNTED = (
    sample("ipc", Unit.INSTRUCTIONS_PER_CYCLE, source="pmu"),
    sample("halt_poll", Unit.PER_SECOND, result="success"),
)


def run(accelerator: str, more: Sequence[Reading] = (), **shape: object) -> LoadedRun:
    """One block under that accelerator, each trial with these readings besides."""
    made = synthetic_run(accelerator=accelerator, blocks=1, conditions=("quiet",), **shape)

    def with_more(trial: LoadedTrial) -> LoadedTrial:
        if trial.record.status is not TrialStatus.DONE:
            return trial
        return LoadedTrial(trial.record, (*trial.readings, *more), trial.folder)

    return replace(made, trials=tuple(map(with_more, made.trials)))


def told(
    accelerator: Accelerator, of: LoadedRun, failure: str = "", **lacking: str
) -> SelftestResult:
    return outcome(accelerator, NAMES, lacking, of, failure)


def test_a_host_with_kvm_and_a_pmu_verifies_both() -> None:
    found = told(KVM, run("kvm", COUNTED))
    assert (found.verifies_kvm, found.verifies_pmu, found.verifies_all) == (True, True, True)
    assert not found.failed
    assert [claim.name for claim in found.claims if claim.shown] == [
        *("kvm", "native-pmu", "guest-pmu", "exits", "halt-poll", "steal")
    ]
    assert found.label == "KVM and a PMU work here, and everything in labctl that needs them ran."


def test_emulation_shows_nothing_of_kvm_and_says_so_first() -> None:
    found = told(TCG, run("tcg"))
    assert (found.verifies_kvm, found.verifies_pmu) == (False, False)
    assert not found.failed
    assert found.label.startswith(
        "Guests were emulated (accelerator tcg), so this does not test guests"
    )
    whys = {claim.name: claim.why for claim in found.claims if not claim.shown}
    assert whys["exits"] == "emulated: no VM exits"
    assert whys["steal"] == "the guest's steal stays 0 under emulation"


def test_kvm_without_a_pmu_verifies_kvm_alone_and_names_what_is_not_shown() -> None:
    reason = "no PMU: perf calls cycles:uG not supported."
    polled = sample("halt_poll", Unit.PER_SECOND, result="success")
    found = told(KVM, run("kvm", (polled, Unavailable(metric="ipc{source=pmu}", reason=reason))))
    assert (found.verifies_kvm, found.verifies_pmu, found.verifies_all) == (True, False, False)
    assert "but this does not test hardware counters of native runs" in found.label
    [claim] = [claim for claim in found.claims if claim.name == "guest-pmu"]
    assert claim.why == reason


def test_a_metric_that_one_of_the_trials_lacks_is_not_shown() -> None:
    whole = run("kvm", COUNTED)
    last = next(t for t in reversed(whole.trials) if t.record.parsed_with["kind"] == "guest")
    cut = LoadedTrial(
        last.record,
        tuple(r for r in last.readings if not (isinstance(r, Sample) and r.metric == "exits")),
        last.folder,
    )
    trials = tuple(cut if trial is last else trial for trial in whole.trials)
    found = told(KVM, replace(whole, trials=trials))
    assert [claim.name for claim in found.claims if not claim.shown] == ["exits"]
    assert (found.verifies_kvm, found.verifies_pmu) == (False, True)


def test_a_tuning_whose_trial_was_never_valid_failed_and_one_that_was_repeated_ran() -> None:
    of = run(
        "kvm",
        COUNTED,
        invalid=[("pinned", "sysbench-cpu", 1)],
        repeated=[("control", "fio-randread", 1)],
    )
    found = told(KVM, of)
    states = {tuning.name: tuning.state for tuning in found.tunings}
    assert states == {name: FAILED if name == "pinned" else RAN for name in NAMES}
    [why] = [tuning.why for tuning in found.tunings if tuning.state == FAILED]
    assert why == "vCPU 0 ran on CPUs 0-1, asked for CPU 1"
    assert found.failed
    assert not found.verifies_kvm


def test_what_the_host_cannot_have_is_no_failure() -> None:
    of = run("kvm", COUNTED, tunings=["native", "baseline", "control", "handicap", "pinned+fifo"])
    found = told(KVM, of, pinned="it needs 2 CPUs")
    [pinned] = [tuning for tuning in found.tunings if tuning.name == "pinned"]
    assert (pinned.state, pinned.why) == (NOT_HERE, "it needs 2 CPUs")
    assert not found.failed


def test_a_run_that_ended_early_failed_whatever_else_it_shows() -> None:
    found = told(KVM, run("kvm", COUNTED), failure="the guest failed to boot 2 times in a row")
    assert found.failed
    assert not found.verifies_kvm
    assert found.to_json()["failure"].startswith("the guest failed")


def test_what_was_not_to_be_had_is_listed_with_its_reason_by_kind_of_machine() -> None:
    assert unavailable(run("tcg"))["guest"]["exits"] == "emulated: no VM exits"
    assert "exits" not in unavailable(run("tcg"))["native"]


def test_every_restorable_guest_tuning_is_tried_and_no_other() -> None:
    names = restorable()
    assert {"baseline", "control", "handicap", "pinned+fifo", "cache-none"} <= set(names)
    assert not {"native", "booted", "hugepages-2M", "cpu-host-passthrough"} & set(names)


def test_a_tuning_that_boots_for_itself_is_refused_by_name() -> None:
    with pytest.raises(
        UsageError, match="'cache-directsync' is not a tuning that can be restored from a snapshot"
    ):
        restorable(["cache-directsync"])
