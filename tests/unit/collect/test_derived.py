from dataclasses import replace
from pathlib import Path

import pytest

from labctl.collect.derived import net_readings, per_operation_readings
from labctl.collect.exits import bpf_exits
from labctl.store.samples import Reading, Sample, Unavailable
from tests.unit.collect.targets import raw_trial
from tests.unit.collect.trials import reasons, sample, values

NOWHERE = Path("/nowhere")
"""What is made of readings reads no file."""

# A program that did its 2000 operations within 2 s, and took 4 s with starting and ending.
GUEST: list[Reading] = [
    sample("operations", 2000.0),
    sample("iops", 1000.0),
    sample("duration", 3.9),
    sample("host_window", 4.0),
    sample("exits", 5000.0),
    sample("user_cycles", 4e6),
    sample("host_cpu{thread=vcpu}", 0.25),
    sample("host_cpu{thread=emulator}", 0.15),
    sample("host_cpu{thread=iothread}", 0.1),
    sample("host_cpu{thread=neighbour}", 1.0),
    sample("host_cpu{thread=other}", 0.5),
]


def _derive(
    readings: list[Reading], rate: str | None = "iops", kind: str = "guest"
) -> list[Reading]:
    return list(
        per_operation_readings(raw_trial(NOWHERE, readings=readings, rate_metric=rate, kind=kind))
    )


def counted(key: str, value: float) -> Sample:
    """Exits that were counted by reason, not by KVM."""
    return replace(sample(key, value), source=bpf_exits.RAW)


def _without(key: str) -> list[Reading]:
    return [r for r in GUEST if getattr(r, "key", "") != key]


def test_a_guest_is_billed_for_all_of_its_threads_over_the_whole_trial() -> None:
    assert values(_derive(GUEST)) == {
        "ops_per_cpu_s": pytest.approx(1000),
        "exits_per_op": 10,
        "cycles_per_op": 2000,
    }


def test_native_is_billed_for_its_workload() -> None:
    native: list[Reading] = [
        sample("operations", 2000.0),
        sample("duration", 4.0),
        sample("host_cpu{thread=workload}", 0.25),
    ]
    assert values(_derive(native, kind="native"))["ops_per_cpu_s"] == 2000


def test_misses_per_operation_keep_the_event_that_they_were_counted_by() -> None:
    found = values(_derive([*GUEST, sample("llc_misses{event=cache-misses}", 500.0)]))
    assert found["llc_misses_per_op{event=cache-misses}"] == 0.25


def test_misses_without_operations_say_why_there_is_no_share() -> None:
    found = reasons(_derive([*_without("operations"), sample("branch_misses{event=x}", 5.0)]))
    assert "operations" in found["branch_misses_per_op{event=x}"]


def test_a_guest_without_iothreads_has_none_to_pay() -> None:
    found = values(_derive(_without("host_cpu{thread=iothread}")))
    assert found["ops_per_cpu_s"] == pytest.approx(1250)


def test_a_thread_whose_time_is_not_known_makes_the_bill_unavailable() -> None:
    gone = Unavailable(metric="host_cpu{thread=iothread}", reason="it ended.")
    readings = _derive([*_without("host_cpu{thread=iothread}"), gone])
    assert reasons(readings) == {"ops_per_cpu_s": "it ended."}


@pytest.mark.parametrize(
    ("key", "metric"),
    [
        ("host_cpu{thread=vcpu}", "ops_per_cpu_s"),
        ("host_window", "exits_per_op"),
        ("exits", "exits_per_op"),
        ("user_cycles", "cycles_per_op"),
        ("operations", "cycles_per_op"),
    ],
)
def test_a_missing_part_is_named(key: str, metric: str) -> None:
    assert key in reasons(_derive(_without(key)))[metric]


def test_the_reason_of_a_missing_part_is_passed_on() -> None:
    emulated = Unavailable(metric="exits", reason="emulated: no VM exits.")
    readings = _derive([*_without("exits"), emulated])
    assert reasons(readings)["exits_per_op"] == "emulated: no VM exits."


def test_a_workload_of_fixed_pace_has_nothing_per_operation() -> None:
    found = reasons(_derive(GUEST, rate=None))
    assert found.keys() == {"ops_per_cpu_s", "exits_per_op", "cycles_per_op"}
    assert "fixed pace" in found["ops_per_cpu_s"]


def test_no_operations_are_no_divisor() -> None:
    assert values(_derive([sample("operations", 0.0), *_without("operations")])) == {}


def test_no_cpu_time_is_no_divisor() -> None:
    key = "host_cpu{thread=vcpu}"
    assert "ops_per_cpu_s" in reasons(_derive([sample(key, 0.0), *_without(key)]))


def test_the_bill_of_exits_is_split_by_reason_and_adds_up() -> None:
    by_reason: list[Reading] = [
        sample("exits_window", 8.0),
        counted("exits", 1500.0),
        counted("exits{vcpu=0}", 1500.0),
        counted("exits{reason=HLT}", 1000.0),
        counted("exits{reason=IO}", 500.0),
        counted("exits{reason=HLT,vcpu=0}", 500.0),
        sample("exit_time", 0.5),
        sample("exit_time{reason=IO}", 0.25),
        sample("exit_time{vcpu=0}", 0.25),
        sample("userspace_exits{reason=IO}", 500.0),
    ]
    found = values(_derive([*_without("exits"), *by_reason]))
    # The window of all of them is twice as long as the host's.
    assert found["exits_per_op"] == found["exits_per_op{vcpu=0}"] == 6
    assert found["exits_per_op{reason=HLT}"] == 4
    assert found["exits_per_op{reason=IO}"] == 2
    assert found["exits_per_op{reason=HLT,vcpu=0}"] == 2
    assert found["exit_time_per_op"] == pytest.approx(2e-3)
    assert found["exit_time_per_op{reason=IO}"] == pytest.approx(1e-3)
    assert found["exit_time_per_op{vcpu=0}"] == pytest.approx(1e-3)
    assert found["userspace_exits_per_op{reason=IO}"] == 2


def test_without_reasons_the_bill_is_kvms_own_count_over_the_hosts_window() -> None:
    more: list[Reading] = [
        sample("exits_window", 8.0),
        sample("userspace_exits", 500.0),
        sample("exits{vcpu=0}", 4000.0),
    ]
    found = values(_derive([*GUEST, *more]))
    assert found["exits_per_op"] == 10
    assert found["exits_per_op{vcpu=0}"] == 8
    assert found["userspace_exits_per_op"] == 2


def test_halt_polling_is_taken_from_the_time_of_the_vcpus() -> None:
    polls: list[Reading] = [
        sample("halt_poll_time{result=success}", 0.05),
        sample("halt_poll_time{result=fail}", 0.1),
    ]
    found = values(list(net_readings(raw_trial(NOWHERE, readings=[*GUEST, *polls]))))
    assert found == {"vcpu_cpu_net": pytest.approx(0.1)}


def test_without_halt_polls_the_net_time_is_unavailable_with_their_reason() -> None:
    emulated = Unavailable(metric="halt_poll_time", reason="emulated: no VM exits.")
    readings = list(net_readings(raw_trial(NOWHERE, readings=[*GUEST, emulated])))
    assert reasons(readings) == {"vcpu_cpu_net": "emulated: no VM exits."}
    assert list(net_readings(raw_trial(NOWHERE, kind="native"))) == []
