import json
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.exits import kvm_stats
from labctl.store.samples import Reading
from tests.unit.collect.targets import raw_trial
from tests.unit.collect.trials import (
    KVM,
    Change,
    altered,
    reasons,
    recorded,
    same,
    sample,
    trial,
    values,
)


def _parse(folder: Path, change: Change = same, accelerator: str = "kvm") -> list[Reading]:
    raw = trial(folder, host=altered(KVM, change))
    return list(kvm_stats.parse(raw, accelerator=accelerator))


def _stat(taken: Any, vcpu: int, name: str) -> Any:
    return next(s for s in taken["query_stats"][0][vcpu]["stats"] if s["name"] == name)


def test_exits_are_those_of_all_vcpus_per_second(tmp_path: Path) -> None:
    data = json.loads(recorded(KVM))
    exits = sum(
        _stat(data["after"], n, "exits")["value"] - _stat(data["before"], n, "exits")["value"]
        for n in (0, 1)
    )
    seconds = (data["after"]["monotonic_ns"] - data["before"]["monotonic_ns"]) / 1e9
    assert exits > 100
    assert values(_parse(tmp_path))["exits"] == pytest.approx(exits / seconds)


def test_what_the_reasons_add_up_to_is_not_told_twice(tmp_path: Path) -> None:
    raw = trial(tmp_path, host=altered(KVM, same))
    by_reason = [sample("exits", 1000.0), sample("exits{vcpu=0}", 1000.0)]
    for known, is_told in (([], True), (by_reason, False)):
        made = raw_trial(raw, accelerator="kvm", readings=known)
        found = values(list(kvm_stats.KVM_STATS.parse(made)))
        told = {key for key in found if key.startswith("exits")}
        assert told == ({"exits", "exits{vcpu=0}", "exits{vcpu=1}"} if is_told else set())
        assert "halt_poll{result=success}" in found


def test_polls_that_did_not_succeed_failed(tmp_path: Path) -> None:
    def poll(data: Any) -> None:
        data["after"]["monotonic_ns"] = data["before"]["monotonic_ns"] + 2_000_000_000
        for name, more in (
            ("halt_attempted_poll", 100),
            ("halt_successful_poll", 30),
            ("halt_poll_fail_ns", 500_000_000),
        ):
            stat = _stat(data["after"], 0, name)
            stat["value"] = _stat(data["before"], 0, name)["value"] + more

    found = values(_parse(tmp_path, poll))
    assert found["halt_poll{result=success}"] == 15
    assert found["halt_poll{result=fail}"] == 35
    assert found["halt_poll_time{result=fail}"] == 0.25


def test_under_tcg_exits_are_unavailable_and_not_zero(tmp_path: Path) -> None:
    readings = _parse(tmp_path, accelerator="tcg")
    assert values(readings) == {}
    assert "emulated" in reasons(readings)["exits"]


def test_natively_there_are_no_exits_by_definition(tmp_path: Path) -> None:
    readings = _parse(tmp_path, lambda data: data.update(kind="native"))
    assert values(readings) == {"exits": 0}


def _without_exits(data: Any) -> None:
    for when in ("before", "after"):
        for vcpu in data[when]["query_stats"][0]:
            vcpu["stats"] = [s for s in vcpu["stats"] if s["name"] != "exits"]


def _backwards(data: Any) -> None:
    _stat(data["after"], 0, "exits")["value"] = _stat(data["before"], 0, "exits")["value"] - 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda d: d["after"].pop("query_stats"), "not queried"),
        (lambda d: d["after"].update(query_stats=[[], []]), "no statistics"),
        (lambda d: d["after"]["query_stats"][0].pop(), "vCPUs changed"),
        (_without_exits, "doesn't count 'exits'"),
        (_backwards, "backwards"),
    ],
)
def test_what_kvm_does_not_tell_is_unavailable(tmp_path: Path, change: Change, word: str) -> None:
    readings = _parse(tmp_path, change)
    assert "exits" not in values(readings)
    assert word in reasons(readings)["exits"]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["after"].update(query_stats=7),
        lambda d: d["after"].update(query_stats=[7]),
        lambda d: d["after"].update(query_stats=[["qom-path"]]),
        lambda d: d["after"]["query_stats"][0][0].pop("stats"),
        lambda d: d["after"]["query_stats"][0][0]["stats"].append("exits"),
        lambda d: d["after"]["query_stats"][0][0]["stats"].append({"name": "exits"}),
    ],
)
def test_answers_of_another_shape_are_an_error_that_names_the_file(
    tmp_path: Path, change: Change
) -> None:
    with pytest.raises(BrokenError, match=r"host\.json"):
        _parse(tmp_path, change)


def test_exits_are_told_for_each_vcpu_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    def more(data: Any) -> None:
        data["after"]["monotonic_ns"] = data["before"]["monotonic_ns"] + 1_000_000_000
        for vcpu, exits in ((0, 7), (1, 500)):
            stat = _stat(data["after"], vcpu, "exits")
            stat["value"] = _stat(data["before"], vcpu, "exits")["value"] + exits
        for when in ("before", "after"):
            # As QEMU lists them: the last one first.
            first, last = data[when]["query_stats"][0]
            first["qom-path"] = "/machine/unattached/device[10]"
            last["qom-path"] = "/machine/unattached/device[2]"

    found = values(_parse(tmp_path, more))
    assert (found["exits{vcpu=0}"], found["exits{vcpu=1}"], found["exits"]) == (500, 7, 507)


def test_the_rest_of_kvms_statistics_is_told_by_name(tmp_path: Path) -> None:
    def more(data: Any) -> None:
        data["after"]["monotonic_ns"] = data["before"]["monotonic_ns"] + 2_000_000_000
        for vcpu, count in ((0, 10), (1, 20)):
            stat = _stat(data["after"], vcpu, "insn_emulation")
            stat["value"] = _stat(data["before"], vcpu, "insn_emulation")["value"] + count
        (vm,) = data["after"]["query_stats"][1]
        flushes = next(stat for stat in vm["stats"] if stat["name"] == "remote_tlb_flush")
        flushes["value"] += 8

    found = values(_parse(tmp_path, more))
    assert found["kvm_stat{name=insn_emulation}"] == 15
    assert found["kvm_stat{name=remote_tlb_flush}"] == 4
    # No counter: it may shrink.
    assert "kvm_stat{name=pages_4k}" not in found


def test_exits_so_far_are_told_by_vcpu() -> None:
    counters = json.loads(recorded(KVM))["before"]
    assert sorted(kvm_stats.exits_by_vcpu(counters).values()) == [0, 438]
    assert kvm_stats.exits_by_vcpu({}) is None
    assert kvm_stats.exits_by_vcpu({"query_stats": [[], []]}) is None


def test_page_faults_that_kvm_fixed_so_far_are_told_over_all_vcpus() -> None:
    counters = json.loads(recorded(KVM))["before"]
    for vcpu, count in ((0, 11), (1, 22)):
        _stat(counters, vcpu, "pf_fixed")["value"] = count
    assert kvm_stats.page_faults(counters) == 33
    assert kvm_stats.page_faults({}) is None, "not under KVM"
    for vcpu in counters["query_stats"][0]:
        vcpu["stats"] = [s for s in vcpu["stats"] if s["name"] != "pf_fixed"]
    assert kvm_stats.page_faults(counters) is None, "a KVM that doesn't count them"
