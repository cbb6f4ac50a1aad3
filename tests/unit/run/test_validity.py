"""What of its readings makes a trial invalid."""

from __future__ import annotations

import pytest

from labctl.base.units import Better, Unit
from labctl.run.trials.request import OTHER_CPU, TrialRequest, Validity, validity
from labctl.store.samples import Sample, Unavailable
from labctl.study.load_study import Overrides, load_study
from labctl.study.make_plan import make_plan
from labctl.study.plan import Plan
from labctl.study.study import Limits
from labctl.study.tunings import load_tunings
from labctl.workloads.registry import checkers

LIMITS = Limits(attempts=3, other_cpu=0.1, warmup_cap_s=30)


def cpu(value: float, thread: str = "other") -> Sample:
    return Sample(
        metric="host_cpu",
        value=value,
        unit=Unit.FRACTION,
        better=Better.LOWER,
        labels={"thread": thread},
        source="host.json",
    )


def test_a_trial_that_others_left_alone_is_valid() -> None:
    assert validity([cpu(0.02), cpu(0.9, "vcpu")], LIMITS) == Validity()


def test_cpu_time_that_others_took_is_compared_with_the_studys_limit() -> None:
    assert validity([cpu(0.1)], LIMITS) == Validity()
    assert validity([cpu(0.11)], LIMITS) == Validity(
        "others took 0.11 CPU seconds per second on the trial's CPUs (the study allows 0.1)",
        is_disturbed=True,
    )


@pytest.mark.parametrize(("given", "others"), [(None, 0.5), (0.3, 0.3)])
def test_a_workload_may_have_a_limit_of_its_own_unless_one_is_asked_for_all(
    given: float | None, others: float
) -> None:
    study = load_study(
        "storage",
        programs=checkers(),
        overrides=Overrides(tunings=["baseline"], other_cpu=given),
    )
    tunings = load_tunings(study.tunings)
    plan = Plan.of(make_plan(study, tunings, seed=1, host_digest="").record())
    found = {
        trial.cell["workload"]: TrialRequest.of(
            plan, trial, attempt=1, window_rates={}
        ).limits.other_cpu
        for trial in plan.trials
    }
    assert found["fsync"] == others
    assert found["randread"] == (given or 0.1)


def test_a_count_that_is_as_far_below_0_can_tell_nobody_what_others_took() -> None:
    assert validity([cpu(-0.1)], LIMITS) == Validity()
    assert validity([cpu(-0.11)], LIMITS) == Validity(
        "it is unknown how much others used the trial's CPUs: 0.11 CPU seconds per second more "
        "were counted of known threads than were busy there (the study allows 0.1 on either side)"
    )


def test_the_guests_own_cpu_time_is_no_disturbance() -> None:
    assert validity([cpu(2.0, "vcpu"), cpu(1.0, "neighbour")], LIMITS) == Validity()


def test_not_knowing_what_others_took_is_no_zero() -> None:
    unknown = Unavailable(metric=OTHER_CPU, reason="a thread came and went")
    assert validity([unknown], LIMITS) == Validity(
        "it is unknown how much others used the trial's CPUs: a thread came and went"
    )


def test_another_metric_that_is_unavailable_leaves_the_trial_valid() -> None:
    assert validity([Unavailable(metric="exits", reason="emulated")], LIMITS) == Validity()
