import copy
import json
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.threads import host_threads
from labctl.store.samples import Reading
from tests.unit.collect.trials import (
    RUNNER,
    TCG,
    Change,
    altered,
    reasons,
    recorded,
    same,
    trial,
    values,
)


def _parse(folder: Path, change: Change = same) -> list[Reading]:
    return list(host_threads.parse(trial(folder, host=altered(TCG, change))))


def _native(data: Any) -> None:
    data["kind"] = "native"
    for taken in (data["before"], data["after"]):
        taken["threads"] = [t for t in taken["threads"] if t["role"] in ("labctl", "neighbour")]


def _threads(data: Any, role: str) -> tuple[list[Any], list[Any]]:
    """The rows of a role, before and after."""
    before, after = (
        [t for t in data[when]["threads"] if t["role"] == role] for when in ("before", "after")
    )
    return before, after


def test_cpu_time_is_the_change_of_schedstat_over_the_window(tmp_path: Path) -> None:
    data = json.loads(recorded(TCG))
    before, after = _threads(data, "vcpu")
    ns = sum(int(t["schedstat"].split()[0]) for t in after)
    ns -= sum(int(t["schedstat"].split()[0]) for t in before)
    window_ns = data["after"]["monotonic_ns"] - data["before"]["monotonic_ns"]
    found = values(_parse(tmp_path))
    assert found["host_cpu{thread=vcpu}"] == pytest.approx(ns / window_ns)
    assert found["host_cpu{thread=neighbour}"] == pytest.approx(1, abs=0.1)
    assert found["host_cpu{thread=labctl}"] < 0.01


def test_every_role_that_has_threads_is_there_and_no_other(tmp_path: Path) -> None:
    found = values(_parse(tmp_path))
    roles = {"vcpu", "emulator", "iothread", "neighbour", "labctl"}
    assert {key for key in found if key.startswith("host_cpu")} == {
        f"host_cpu{{thread={role}}}" for role in roles
    }


def test_run_delay_and_switches_are_those_of_the_vcpus(tmp_path: Path) -> None:
    def wait_longer(data: Any) -> None:
        row = _threads(data, "vcpu")[1][0]
        run, delay, slices = row["schedstat"].split()
        row["schedstat"] = f"{run} {int(delay) + 1_000_000_000} {slices}\n"
        row["status"] = row["status"].replace(
            "nonvoluntary_ctxt_switches:\t", "nonvoluntary_ctxt_switches:\t1"
        )

    data = json.loads(recorded(TCG))
    before, after = (
        sum(int(t["schedstat"].split()[1]) for t in rows) for rows in _threads(data, "vcpu")
    )
    window_ns = data["after"]["monotonic_ns"] - data["before"]["monotonic_ns"]
    usual, altered_ = values(_parse(tmp_path)), values(_parse(tmp_path, wait_longer))
    assert usual["run_delay"] == pytest.approx((after - before) / window_ns)
    assert altered_["run_delay"] - usual["run_delay"] == pytest.approx(0.5, rel=0.05)
    involuntary = "ctx_switches{kind=involuntary,of=vcpu}"
    assert altered_[involuntary] > usual[involuntary] > 0
    voluntary = "ctx_switches{kind=voluntary,of=vcpu}"
    assert altered_[voluntary] == usual[voluntary]


def test_a_trial_without_a_tick_of_the_clock_has_no_steal_and_all_else(tmp_path: Path) -> None:
    def stop_the_clock(data: Any) -> None:
        data["after"]["proc_stat"] = data["before"]["proc_stat"]

    found = _parse(tmp_path, stop_the_clock)
    assert "no tick of the host's clock" in reasons(found)["host_steal"]
    assert "host_cpu{thread=vcpu}" in values(found)


def test_natively_the_workload_s_time_is_its_rusage(tmp_path: Path) -> None:
    counts = json.loads(recorded(RUNNER))
    found = list(host_threads.parse(trial(tmp_path, host=altered(TCG, _native), runner=counts)))
    usage = counts["rusage"]
    expected = (usage["utime_s"] + usage["stime_s"]) / counts["duration_s"]
    assert values(found)["host_cpu{thread=workload}"] == pytest.approx(expected)
    assert "host_cpu{thread=vcpu}" not in values(found)
    assert "natively" in reasons(found)["run_delay"]


def test_a_thread_that_ended_is_billed_from_its_process(tmp_path: Path) -> None:
    usual = values(_parse(tmp_path))

    def end_the_busiest_helper(data: Any) -> None:
        gone = max(_threads(data, "emulator")[1], key=lambda t: int(t["schedstat"].split()[0]))
        data["after"]["threads"].remove(gone)

    found = _parse(tmp_path, end_the_busiest_helper)
    # To two ticks of 10 ms at each end.
    assert values(found)["host_cpu{thread=emulator}"] == pytest.approx(
        usual["host_cpu{thread=emulator}"], abs=0.02
    )


def test_what_an_ended_thread_used_is_in_the_bill(tmp_path: Path) -> None:
    def end(data: Any, ticks: int) -> None:
        gone = _threads(data, "emulator")[1][-1]
        data["after"]["threads"].remove(gone)
        stats = data["after"]["processes"]
        name, _, rest = stats[str(gone["pid"])].rpartition(")")
        fields = rest.split()
        fields[11] = str(int(fields[11]) + ticks)
        stats[str(gone["pid"])] = f"{name}) {' '.join(fields)}"

    key = "host_cpu{thread=emulator}"
    # Enough already that rounding to ticks can't hide behind the floor of 0.
    some = values(_parse(tmp_path, lambda data: end(data, 20)))[key]
    more = values(_parse(tmp_path, lambda data: end(data, 120)))[key]
    assert more - some == pytest.approx(0.5, rel=0.05)


def test_a_thread_that_ended_with_its_process_makes_its_role_unavailable(tmp_path: Path) -> None:
    def end_the_hog(data: Any) -> None:
        for row in _threads(data, "neighbour")[1]:
            data["after"]["threads"].remove(row)
            data["after"]["processes"].pop(str(row["pid"]), None)

    found = _parse(tmp_path, end_the_hog)
    assert "ended during the trial" in reasons(found)["host_cpu{thread=neighbour}"]
    assert "host_cpu{thread=vcpu}" in values(found)


def test_two_roles_that_lost_threads_of_one_process_are_both_unavailable(tmp_path: Path) -> None:
    def end_one_each(data: Any) -> None:
        for role in ("emulator", "iothread"):
            data["after"]["threads"].remove(_threads(data, role)[1][0])

    found = reasons(_parse(tmp_path, end_one_each))
    assert {"host_cpu{thread=emulator}", "host_cpu{thread=iothread}"} <= found.keys()


def test_a_vcpu_that_ended_has_no_run_delay(tmp_path: Path) -> None:
    def end_it(data: Any) -> None:
        data["after"]["threads"].remove(_threads(data, "vcpu")[1][0])

    found = _parse(tmp_path, end_it)
    assert "run_delay" in reasons(found)
    assert "ctx_switches{kind=voluntary,of=vcpu}" in reasons(found)


def _reuse_a_number(data: Any) -> None:
    row = _threads(data, "emulator")[1][-1]
    row["schedstat"] = "10 0 1\n"
    row["comm"] = "worker"


def test_a_number_that_went_to_a_new_thread_is_no_negative_time(tmp_path: Path) -> None:
    assert values(_parse(tmp_path, _reuse_a_number))["host_cpu{thread=emulator}"] >= 0


def test_threads_that_came_or_went_are_told(tmp_path: Path) -> None:
    def come(data: Any) -> None:
        row = copy.deepcopy(_threads(data, "emulator")[1][0])
        data["after"]["threads"].append({**row, "tid": 999_999_999, "comm": "worker"})

    assert host_threads.changes(trial(tmp_path, host=altered(TCG, same))) == []
    told = host_threads.changes(trial(tmp_path, host=altered(TCG, come)))
    assert told == ["emulator thread 'worker' started during the trial."]
    told = host_threads.changes(trial(tmp_path, host=altered(TCG, _reuse_a_number)))
    assert len(told) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("after"),
        lambda d: d["after"].pop("monotonic_ns"),
        lambda d: d["after"].update(monotonic_ns=d["before"]["monotonic_ns"]),
        lambda d: d["after"].pop("threads"),
        lambda d: d["after"].update(threads=["vcpu"]),
        lambda d: d["after"]["threads"][0].pop("schedstat"),
        lambda d: d["after"]["threads"][0].update(schedstat="12"),
        lambda d: d["after"]["threads"][0].update(schedstat="-1 2 3"),
        lambda d: d["after"]["threads"][0].update(status="Name: x"),
        lambda d: d["after"]["threads"][0].update(role="stranger"),
        lambda d: d["after"].pop("proc_stat"),
        lambda d: d["after"].update(proc_stat="cpu 1 2 3"),
        lambda d: d.update(trial_cpus="all"),
        lambda d: d.update(clk_tck=0),
    ],
)
def test_snapshots_that_are_not_whole_are_an_error_that_names_the_file(
    tmp_path: Path, change: Change
) -> None:
    with pytest.raises(BrokenError, match=r"host\.json"):
        _parse(tmp_path, change)


def test_natively_a_missing_side_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match=r"runner\.json"):
        list(host_threads.parse(trial(tmp_path, host=altered(TCG, _native))))
