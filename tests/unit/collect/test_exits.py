import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.exits import bpf_exits, exits
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.trace import exit_names, files
from labctl.trace.files import note_problem
from tests.unit.collect.trials import reasons, recorded, values

META = "exits-linux-6.18-software-kvm.json"
COUNTS = "exits-bpftrace-0.17-software-kvm.jsonl"
VCPU0, VCPU1 = 3543, 3544
HLT, IO, MSR_WRITE = 12, 30, 32
VMX = 1

# Two seconds of a guest of two vCPUs on an Intel host.
EXITS = {
    (VCPU0, VMX, IO): 6000,
    (VCPU0, VMX, HLT): 1000,
    (VCPU1, VMX, HLT): 1000,
    (VCPU1, VMX, MSR_WRITE): 2000,
}
NS = {
    (VCPU0, VMX, IO): 60_000_000,
    (VCPU0, VMX, HLT): 1_500_000_000,
    (VCPU1, VMX, HLT): 1_800_000_000,
    (VCPU1, VMX, MSR_WRITE): 20_000_000,
}
SECONDS = 2

SVM_COUNTS = {
    ("6.1", "0.17"): {
        "cpuid": 33,
        "npf": 653,
        "interrupt": 703,
        "vintr": 743,
        "hlt": 1729,
        "msr": 4328,
    },
    ("6.12", "0.23"): {
        "npf": 3,
        "cpuid": 33,
        "hlt": 123,
        "vintr": 195,
        "interrupt": 533,
        "msr": 849,
    },
}
"""By the versions of Linux and of bpftrace."""


def _maps(counts: dict[tuple[int, int, int], int]) -> dict[str, int]:
    return {",".join(map(str, key)): count for key, count in counts.items()}


def _bpf_output(**maps: Any) -> str:
    lines = [{"type": "attached_probes", "data": {"probes": 5}}]
    given = {"opened": 10**9, "closed": 10**9 + SECONDS * 10**9, "on": 0, **maps}
    lines += [{"type": "map", "data": {f"@{name}": value}} for name, value in given.items()]
    return "\n".join(json.dumps(line) for line in lines) + "\n"


WORKING = _bpf_output(exits=_maps(EXITS), ns=_maps(NS), userspace=_maps({(VCPU0, 2, 0): 5000}))


def _trial(folder: Path, total: int | None, counts: str = WORKING, **changes: Any) -> TrialFolder:
    """`total`: how many exits KVM counted meanwhile, in a window of the same length."""
    raw = TrialFolder(folder)
    data = json.loads(recorded(META))
    before = {"/machine/unattached/device[0]": 100} if total is not None else None
    after = {"/machine/unattached/device[0]": 100 + total} if total is not None else None
    data["total"] = {"before": before, "after": after, "seconds": SECONDS}
    raw.write_raw_json(files.EXITS, {**data, **changes})
    raw.write_raw(bpf_exits.RAW, counts)
    return raw


def _parse(raw: TrialFolder) -> list[Reading]:
    return list(exits.parse(raw))


def test_exits_count_per_second_by_reason_over_all_vcpus(tmp_path: Path) -> None:
    found = values(_parse(_trial(tmp_path, total=10_000)))
    assert found["exits{reason=IO_INSTRUCTION}"] == 3000
    assert found["exits{reason=HLT}"] == 1000
    assert found["exits{reason=MSR_WRITE}"] == 1000
    assert found["exits_window"] == 2
    assert found["exits_agreement"] == 1


def test_the_total_is_the_reasons_sum_and_not_kvms_which_is_of_a_longer_window(
    tmp_path: Path,
) -> None:
    found = values(_parse(_trial(tmp_path, total=10_050)))
    by_reason = [key for key in found if re.fullmatch(r"exits\{reason=[^,]*\}", key)]
    assert found["exits"] == sum(found[key] for key in by_reason) == 5000
    assert found["exits{vcpu=0}"] + found["exits{vcpu=1}"] == 5000
    assert found["exits_agreement"] == pytest.approx(10_000 / 10_050)


def test_a_vcpu_without_an_exit_has_none(tmp_path: Path) -> None:
    mine = {key: count for key, count in EXITS.items() if key[0] == VCPU0}
    found = values(_parse(_trial(tmp_path, total=7000, counts=_bpf_output(exits=_maps(mine)))))
    assert found["exits"] == found["exits{vcpu=0}"] == 3500
    assert found["exits{vcpu=1}"] == 0


def test_the_time_of_exits_leaves_out_that_of_halts(tmp_path: Path) -> None:
    found = values(_parse(_trial(tmp_path, total=10_000)))
    assert found["exit_time"] == pytest.approx(0.04)
    assert found["exit_time{reason=IO_INSTRUCTION}"] == pytest.approx(0.03)
    assert found["exit_time{vcpu=0}"] == pytest.approx(0.03)
    assert found["exit_time{vcpu=1}"] == pytest.approx(0.01)
    assert "exit_time{reason=HLT}" not in found


def test_of_several_vcpus_each_has_its_reasons_and_their_time(tmp_path: Path) -> None:
    found = values(_parse(_trial(tmp_path, total=10_000)))
    assert found["exits{reason=IO_INSTRUCTION,vcpu=0}"] == 3000
    assert found["exits{reason=HLT,vcpu=0}"] == found["exits{reason=HLT,vcpu=1}"] == 500
    assert found["exit_time{reason=MSR_WRITE,vcpu=1}"] == pytest.approx(0.01)
    assert "exits{reason=MSR_WRITE,vcpu=0}" not in found
    assert "exit_time{reason=HLT,vcpu=0}" not in found


def test_of_one_vcpu_the_sums_are_its_own(tmp_path: Path) -> None:
    mine = {key: count for key, count in EXITS.items() if key[0] == VCPU0}
    readings = _parse(_trial(tmp_path, total=7000, counts=_bpf_output(exits=_maps(mine))))
    assert values(readings)["exits{reason=HLT}"] == 500
    assert not [key for key in values(readings) if "reason=" in key and "vcpu=" in key]


def test_returns_to_qemu_are_a_metric_of_their_own(tmp_path: Path) -> None:
    found = values(_parse(_trial(tmp_path, total=10_000)))
    assert found["userspace_exits"] == found["userspace_exits{reason=IO}"] == 2500


def test_bpftrace_s_newest_words_are_read(tmp_path: Path) -> None:
    # What no double holds it writes as text (src/output/json.cpp): nsecs 105 days after boot.
    late = (1 << 53) + 1
    text = WORKING + _bpf_output(opened=str(late), closed=str(late + SECONDS * 10**9))
    text = text.replace('"attached_probes", ', '"attached_probes", "count": 5, ')
    assert _parse(_trial(tmp_path, 10_000, text)) == _parse(_trial(tmp_path, 10_000))


def test_a_map_that_bpftrace_says_took_no_more_makes_the_reasons_unavailable(
    tmp_path: Path,
) -> None:
    said = {"type": "helper_error", "msg": "Argument list too long", "helper": "map_update_elem"}
    readings = _parse(_trial(tmp_path, 10_000, f"{WORKING}{json.dumps(said)}\n"))
    assert "maps were full" in reasons(readings)["exits{reason}"]
    other = {**said, "helper": "probe_read_kernel"}
    assert values(_parse(_trial(tmp_path, 10_000, f"{WORKING}{json.dumps(other)}\n")))


@pytest.mark.parametrize(("keys", "is_full"), [(len(EXITS), True), (len(EXITS) + 1, False)])
def test_maps_that_were_full_leave_all_that_they_tell_unavailable(
    tmp_path: Path, keys: int, is_full: bool
) -> None:
    readings = _parse(_trial(tmp_path, total=10_000, keys_max=keys))
    assert ("exit_time" in reasons(readings)) is is_full
    assert ("userspace_exits" not in values(readings)) is is_full
    if is_full:
        assert (
            f"full: they leave out exits beyond {keys} pairs" in reasons(readings)["exits{reason}"]
        )


def test_maps_hold_every_reason_on_every_vcpu() -> None:
    names = max(len(exit_names._VMX), len(exit_names._SVM), len(exit_names._TO_QEMU))
    assert bpf_exits.keys_max(1) == bpf_exits.KEYS_MAX
    assert bpf_exits.keys_max(256) > 256 * names


@pytest.mark.parametrize("total", [9_910, 10_090])
def test_within_a_hundredth_of_kvms_total_they_agree(tmp_path: Path, total: int) -> None:
    found = values(_parse(_trial(tmp_path, total=total)))
    assert found["exits_agreement"] == pytest.approx(10_000 / total)


@pytest.mark.parametrize("total", [9_800, 10_200])
def test_reasons_that_do_not_add_up_to_kvms_total_are_unavailable(
    tmp_path: Path, total: int
) -> None:
    readings = _parse(_trial(tmp_path, total=total))
    assert not [key for key in values(readings) if key.startswith(("exits{", "exit_time"))]
    for metric in ("exits{reason}", "exit_time", "exits_agreement"):
        assert "10000" in reasons(readings)[metric]
        assert str(total) in reasons(readings)[metric]
    assert values(readings)["userspace_exits"] == 2500


def test_kvms_total_may_hold_what_happened_around_the_window(tmp_path: Path) -> None:
    raw = _trial(tmp_path, total=11_000)
    data = raw.read_json(files.EXITS)
    data["total"]["seconds"] = 2.2
    raw.write_raw_json(files.EXITS, data)
    assert values(_parse(raw))["exits_agreement"] == pytest.approx(10 / 11)


def test_a_kernel_known_not_to_count_fast_paths_keeps_the_reasons_and_is_named(
    tmp_path: Path,
) -> None:
    readings = _parse(_trial(tmp_path, total=4_000, kernel="6.1.20-cloud"))
    assert values(readings)["exits{reason=HLT}"] == 1000
    said = reasons(readings)["exits_agreement"]
    assert "6.1.20-cloud" in said
    assert "fast path" in said


def test_such_a_kernel_s_fast_paths_are_vmxs_alone(tmp_path: Path) -> None:
    counts = {f"{VCPU0},2,124": 4000, f"{VCPU0},2,120": 1000}
    output = _bpf_output(exits=counts, ns={f"{VCPU0},2,124": 10**6})
    readings = _parse(_trial(tmp_path, total=2_000, counts=output, kernel="6.1.20"))
    assert "exits{reason}" in reasons(readings)


def test_such_a_kernel_does_not_explain_a_total_that_is_too_large(tmp_path: Path) -> None:
    readings = _parse(_trial(tmp_path, total=20_000, kernel="6.1.20"))
    assert "exits{reason}" in reasons(readings)


@pytest.mark.parametrize(
    ("kernel", "misses"),
    [
        ("5.14.0-427.el9", True),
        ("5.15.115", True),
        ("5.15.116", False),
        ("6.1.32", True),
        ("6.1.0-56-cloud-amd64", True),
        ("6.1.33", False),
        ("6.1.140", False),
        ("6.2.16", True),
        ("6.3.6", True),
        ("6.3.7", False),
        ("6.4.0", False),
        ("6.18.44", False),
        ("6.18", False),
        ("7.0", False),
    ],
)
def test_kernels_that_miss_fast_paths_are_known_by_version(kernel: str, misses: bool) -> None:
    assert exits.misses_fast_paths(kernel) is misses


def test_a_kvm_in_software_has_returns_to_qemu_and_no_reasons(tmp_path: Path) -> None:
    raw = TrialFolder(tmp_path)
    raw.write_raw(files.EXITS, recorded(META))
    raw.write_raw(bpf_exits.RAW, recorded(COUNTS))
    readings = _parse(raw)
    found = values(readings)
    window = 49460964292291 - 49459696304565
    assert found["userspace_exits{reason=IO}"] == pytest.approx(24082 / (window / 1e9))
    assert found["userspace_exits{reason=restart}"] == pytest.approx(4 / (window / 1e9))
    assert not [key for key in found if key.startswith(("exits{", "exit_time"))]
    assert "KVM counted 24254 VM exits" in reasons(readings)["exits{reason}"]
    assert "never fired" in reasons(readings)["exit_time"]


@pytest.mark.parametrize(
    ("linux", "bpftrace", "total"), [("6.1", "0.17", 27904 - 19708), ("6.12", "0.23", 7312 - 5576)]
)
def test_a_guest_s_exits_are_told_by_reason_as_kvm_counts_them(
    linux: str, bpftrace: str, total: int, tmp_path: Path
) -> None:
    # cyclictest in a guest of one vCPU under kvm_amd, on an emulated host.
    raw = TrialFolder(tmp_path)
    raw.write_raw(files.EXITS, recorded(f"exits-linux-{linux}-svm.json"))
    raw.write_raw(bpf_exits.RAW, recorded(f"exits-bpftrace-{bpftrace}-svm.jsonl"))
    found = values(_parse(raw))
    window = found["exits_window"]
    known = SVM_COUNTS[linux, bpftrace]
    counts = {key: round(found[f"exits{{reason={key}}}"] * window) for key in known}
    assert counts == known
    assert found["exits_agreement"] == pytest.approx(sum(known.values()) / total)
    assert found["exit_time"] == found["exit_time{vcpu=0}"]
    by_reason = [found[key] for key in found if key.startswith("exit_time{reason=")]
    assert sum(by_reason) == pytest.approx(found["exit_time"])
    assert "exit_time{reason=hlt}" not in found


def test_a_window_without_exits_has_no_reasons_and_says_so(tmp_path: Path) -> None:
    readings = _parse(_trial(tmp_path, total=0, counts=_bpf_output()))
    assert "no VM exit" in reasons(readings)["exits{reason}"]


def test_without_a_total_the_reasons_are_unchecked_and_it_says_so(tmp_path: Path) -> None:
    readings = _parse(_trial(tmp_path, total=None))
    assert values(readings)["exits{reason=HLT}"] == 1000
    assert "no total" in reasons(readings)["exits_agreement"]


def test_a_vcpu_that_comes_during_the_trial_makes_the_reasons_unavailable(tmp_path: Path) -> None:
    readings = _parse(_trial(tmp_path, total=3, counts=_bpf_output(exits={"77,1,12": 3})))
    assert values(readings) == {}
    assert "thread 77" in reasons(readings)["exits{reason}"]


def test_what_the_collector_said_is_the_reason(tmp_path: Path) -> None:
    raw = TrialFolder(tmp_path)
    raw.path.mkdir(exist_ok=True)
    note_problem(raw, "exits", "BPF can't be used: it is locked.")
    assert set(reasons(_parse(raw)).values()) == {"BPF can't be used: it is locked."}
    assert "exits{reason}" in reasons(_parse(raw))


def test_a_trial_that_was_not_to_tell_exits_by_reason_has_no_readings(tmp_path: Path) -> None:
    assert _parse(TrialFolder(tmp_path)) == []


def test_natively_exits_take_no_time(tmp_path: Path) -> None:
    raw = TrialFolder(tmp_path)
    raw.write_raw_json(files.EXITS, {"tool": exits.NONE})
    assert values(_parse(raw)) == {"exit_time": 0, "userspace_exits": 0}


@pytest.mark.parametrize(
    "counts",
    [
        "",
        "Attaching 5 probes...\n",
        WORKING[: len(WORKING) // 2],
        "[]\n",
        '{"type": "map"}\n',
        _bpf_output(exits={"1,2": 3}),
        _bpf_output(exits={f"{VCPU0},1,12": -3}),
        _bpf_output(exits={f"{VCPU0},1,12": "3"}),
        _bpf_output(exits=[3]),
        _bpf_output(closed=5),
    ],
)
def test_other_output_is_an_error_that_names_the_file(tmp_path: Path, counts: str) -> None:
    with pytest.raises(BrokenError, match=r"trace/exits\.(json|bpftrace\.jsonl)"):
        _parse(_trial(tmp_path, total=3, counts=counts))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("tool"),
        lambda data: data.update(tool="ftrace"),
        lambda data: data.pop("kernel"),
        lambda data: data.update(vcpus=[1]),
        lambda data: data.update(total=7),
    ],
)
def test_other_facts_of_the_recording_are_an_error_that_names_the_file(
    tmp_path: Path, change: Callable[[Any], object]
) -> None:
    raw = _trial(tmp_path, total=10_000)
    data = raw.read_json(files.EXITS)
    change(data)
    raw.write_raw_json(files.EXITS, data)
    with pytest.raises(BrokenError, match=r"exits\.json"):
        _parse(raw)
