"""VM exits of the window, cut from what perf recorded from before it to after it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.exits import exits, perf
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.trace import files
from tests.unit.collect.trials import reasons, recorded, values
from tests.unit.trace.kvm_recording import entry, left, recording, table, to_qemu

VCPU0, VCPU1 = 40, 41
HLT, IO, WRITE = 12, 30, 32
OPENED, CLOSED = 10_000_000, 12_000_000
SECONDS = 0.002
US = 1_000

RECORDED = Path(__file__).parents[1] / "trace" / "fixtures" / "svm-perf-6.1.data"
"""851 exits of one vCPU in 432 ms, under kvm_amd on an emulated host, and 3 returns to QEMU."""
THREAD = 4199
FIRST_NS, LAST_NS = 1_826_726_714_023, 1_827_159_292_049
TABLE = "perf-kvm-stat-6.1-svm-850-samples.txt"


def _pair(tid: int, code: int, at_ns: int, us: int) -> list[bytes]:
    return [left(tid, at_ns, code), entry(tid, at_ns + us * US)]


INSIDE = [
    *(one for at in range(4) for one in _pair(VCPU0, IO, OPENED + at * 100 * US, 5)),
    *_pair(VCPU0, HLT, OPENED + 500 * US, 300),
    *(one for at in range(2) for one in _pair(VCPU1, IO, OPENED + at * 100 * US, 6)),
    *_pair(VCPU1, WRITE, OPENED + 700 * US, 2),
    *(to_qemu(VCPU0, OPENED + at * 100 * US + 1, 2) for at in range(4)),
    to_qemu(VCPU1, OPENED + 50, 2, errno=-4),
]
SLOW_TO_BEGIN = [
    *(entry(tid, 1) for tid in (VCPU0, VCPU1)),
    *(one for at in range(900) for one in _pair(VCPU0, IO, 10 + at * 10 * US, 5)),
    *(to_qemu(VCPU0, 20 + at * 10 * US, 2) for at in range(900)),
]
SLOW_TO_END = [one for at in range(700) for one in _pair(VCPU1, WRITE, CLOSED + at * 10 * US, 2)]
RECORDS = [*SLOW_TO_BEGIN, *INSIDE, *SLOW_TO_END]
RECORDS_TABLE = table(
    ("IO_INSTRUCTION", 906, (904 * 5 + 2 * 6) / 906), ("MSR_WRITE", 701, 2), ("HLT", 1, 300)
)


def _trial(
    folder: Path,
    data: bytes | Sequence[bytes] = RECORDS,
    report: str = RECORDS_TABLE,
    *,
    total: int | None = 8,
    **changes: object,
) -> TrialFolder:
    """`total`: what KVM counted in a window that is as long."""
    raw = TrialFolder(folder)
    told = {
        "tool": exits.PERF,
        "no_bpf": "BPF can't be used: a test.",
        "vcpus": {str(VCPU0): 0, str(VCPU1): 1},
        "window": {"opened_ns": OPENED, "closed_ns": CLOSED},
        "kernel": "6.18.0",
        "total": {
            "before": None if total is None else {"vcpu": 100},
            "after": None if total is None else {"vcpu": 100 + total},
            "seconds": SECONDS,
        },
    }
    raw.write_raw_json(files.EXITS, {**told, **changes})
    raw.write_raw(perf.RAW, data if isinstance(data, bytes) else recording(data))
    raw.write_raw(perf.REPORT, report)
    return raw


def _parse(raw: TrialFolder) -> list[Reading]:
    return list(exits.parse(raw))


def test_what_happened_while_perf_was_switched_on_and_off_is_not_counted(tmp_path: Path) -> None:
    found = values(_parse(_trial(tmp_path)))
    assert found["exits_window"] == SECONDS
    assert found["exits_agreement"] == 1
    assert found["exits{reason=IO_INSTRUCTION}"] == 6 / SECONDS
    assert found["exits{reason=MSR_WRITE}"] == 1 / SECONDS
    assert found["exit_time"] == pytest.approx((4 * 5 + 2 * 6 + 2) * 1e-6 / SECONDS)
    assert found["userspace_exits"] == 5 / SECONDS
    assert found["userspace_exits{reason=IO}"] == 4 / SECONDS
    assert found["userspace_exits{reason=restart}"] == 1 / SECONDS


def test_each_vcpu_has_its_reasons_and_their_time(tmp_path: Path) -> None:
    found = values(_parse(_trial(tmp_path)))
    assert found["exits{reason=IO_INSTRUCTION,vcpu=0}"] == 4 / SECONDS
    assert found["exits{reason=IO_INSTRUCTION,vcpu=1}"] == 2 / SECONDS
    assert found["exit_time{vcpu=0}"] == pytest.approx(20e-6 / SECONDS)
    assert found["exit_time{reason=IO_INSTRUCTION,vcpu=1}"] == pytest.approx(12e-6 / SECONDS)
    assert not [key for key in found if key.startswith("exit_time") and "HLT" in key]


def test_an_exit_at_the_windows_end_is_counted_and_has_no_time(tmp_path: Path) -> None:
    last = _pair(VCPU0, IO, CLOSED - 2 * US, 5)
    known = table(("IO_INSTRUCTION", 7, (5 * 5 + 2 * 6) / 7), ("MSR_WRITE", 1, 2), ("HLT", 1, 300))
    records = [entry(VCPU0, 1), entry(VCPU1, 1), *INSIDE, *last]
    found = values(_parse(_trial(tmp_path, records, known, total=9)))
    assert found["exits{reason=IO_INSTRUCTION}"] == 7 / SECONDS
    assert found["exit_time"] == pytest.approx((4 * 5 + 2 * 6 + 2) * 1e-6 / SECONDS)
    assert found["exits_agreement"] == 1


def test_a_total_of_kvms_that_is_smaller_is_no_longer_explained_by_a_slow_perf(
    tmp_path: Path,
) -> None:
    said = reasons(_parse(_trial(tmp_path, total=7)))
    assert "add up to 8 VM exits and KVM's total is 7" in said["exits{reason}"]


def test_a_code_without_a_name_leaves_the_instruction_set_known(tmp_path: Path) -> None:
    # perf calls it UNKNOWN, in capitals as VMX's names are; KVM of this Linux counts all SVM exits.
    records = [entry(VCPU0, 1), left(VCPU0, OPENED, 0x3FF, isa=2), entry(VCPU0, OPENED + US)]
    raw = _trial(tmp_path, records, table(("UNKNOWN", 1, 1)), total=0, kernel="6.1.20")
    said = reasons(_parse(raw))
    assert "differ by more than 1 %" in said["exits{reason}"]


def test_what_a_real_guest_did_is_told_of_any_part_of_the_recording(tmp_path: Path) -> None:
    middle_ns = (FIRST_NS + LAST_NS) // 2
    counts = []
    for number, edges in enumerate(
        ((FIRST_NS, LAST_NS + 1), (FIRST_NS, middle_ns), (middle_ns, LAST_NS + 1))
    ):
        window = dict(zip(("opened_ns", "closed_ns"), edges, strict=True))
        raw = _trial(
            tmp_path / str(number),
            RECORDED.read_bytes(),
            recorded(TABLE),
            vcpus={THREAD: 0},
            window=window,
            total=None,
        )
        found = values(_parse(raw))
        seconds = found["exits_window"]
        assert seconds == pytest.approx((edges[1] - edges[0]) / 1e9)
        counts.append(
            {key: round(found[key] * seconds) for key in found if key.startswith("exits{reason=")}
        )
    whole, first, second = counts
    assert sum(whole.values()) == 851
    assert whole == {key: first.get(key, 0) + second.get(key, 0) for key in whole}
    assert whole["exits{reason=npf}"] == 453
    assert 0 < sum(first.values()) < 851


@pytest.mark.parametrize(
    "report",
    [
        table(("IO_INSTRUCTION", 905, 5), ("MSR_WRITE", 702, 2), ("HLT", 1, 300)),
        table(("IO_INSTRUCTION", 906, 5), ("MSR_WRITE", 701, 2.1), ("HLT", 1, 300)),
        table(("IO_INSTRUCTION", 906, 5), ("HLT", 701, 2)),
        recorded("perf-kvm-stat-no-samples.txt"),
    ],
    ids=["a count", "a time", "a kind", "nothing"],
)
def test_a_table_that_says_something_else_makes_all_of_it_unavailable(
    tmp_path: Path, report: str
) -> None:
    readings = _parse(_trial(tmp_path, report=report))
    assert values(readings) == {}
    said = reasons(readings)
    assert set(said) == set(exits.BY_REASON)
    assert "labctl reads perf's recording differently" in said["exit_time"]


def test_a_time_that_is_off_by_more_than_perfs_rounding_is_seen(tmp_path: Path) -> None:
    known = {"vcpus": {THREAD: 0}, "window": {"opened_ns": FIRST_NS, "closed_ns": LAST_NS}}
    text = recorded(TABLE)
    for was, now, is_seen in (("47.96us", "47.96us", False), ("47.96us", "47.99us", True)):
        assert was in text
        raw = _trial(tmp_path, RECORDED.read_bytes(), text.replace(was, now), total=None, **known)
        said = reasons(_parse(raw)).get("exit_time", "")
        assert ("5086940 ns by its table and 5084086 ns by the file" in said) is is_seen


def test_a_trial_whose_window_was_not_stored_is_unavailable(tmp_path: Path) -> None:
    raw = _trial(tmp_path)
    data = raw.read_json(files.EXITS)
    for key in ("window", "vcpus"):
        del data[key]
    raw.write_raw_json(files.EXITS, {**data, "seconds": SECONDS, "around_s": 0.1})
    readings = _parse(raw)
    assert values(readings) == {}
    assert "did not store where" in reasons(readings)["userspace_exits"]


@pytest.mark.parametrize(
    "window", [{}, {"opened_ns": 5, "closed_ns": 5}, {"opened_ns": "x", "closed_ns": 5}, 7]
)
def test_a_window_that_is_none_is_an_error_that_names_the_file(
    tmp_path: Path, window: object
) -> None:
    with pytest.raises(BrokenError, match=r"exits\.json"):
        _parse(_trial(tmp_path, window=window))


@pytest.mark.parametrize(
    "report",
    [
        recorded("perf-kvm-stat-intel-report-866-samples.txt") * 2,
        recorded("perf-kvm-stat-3.7-mmio-and-ioport.txt"),
        recorded("perf-kvm-stat-riscv-browser.txt"),
    ],
    ids=["two runs", "accesses", "browser"],
)
def test_what_is_not_one_table_of_exits_is_an_error(tmp_path: Path, report: str) -> None:
    with pytest.raises(BrokenError, match="expected one table of VM-EXIT"):
        _parse(_trial(tmp_path, report=report))


def test_perf_without_samples_is_a_kvm_in_software_where_kvm_counted_some(tmp_path: Path) -> None:
    records = [to_qemu(VCPU0, OPENED + at, 2) for at in range(4)]
    report = recorded("perf-kvm-stat-no-samples.txt")
    readings = _parse(_trial(tmp_path, records, report, total=500))
    assert "never fired" in reasons(readings)["exits{reason}"]
    assert values(readings)["userspace_exits"] == 4 / SECONDS


def test_events_that_perf_lost_make_the_reasons_unavailable(tmp_path: Path) -> None:
    readings = _parse(_trial(tmp_path, report=f"{RECORDS_TABLE}\nLost events: 7\n"))
    assert values(readings) == {}
    assert "lost 7 events" in reasons(readings)["exits{reason}"]


def test_what_perf_did_not_write_to_its_end_makes_the_reasons_unavailable(tmp_path: Path) -> None:
    whole = RECORDED.read_bytes()
    readings = _parse(_trial(tmp_path, whole[: len(whole) // 2], recorded(TABLE)))
    assert values(readings) == {}
    assert "'trace/perf.data.guest'" in reasons(readings)["exits{reason}"]


def test_a_recording_of_other_tracepoints_makes_the_reasons_unavailable(tmp_path: Path) -> None:
    other = RECORDED.with_name("kvm-perf-6.1.data")
    readings = _parse(_trial(tmp_path, other.read_bytes()))
    assert (
        "'trace/perf.data.guest' was recorded without kvm:kvm_exit"
        in reasons(readings)["exits{reason}"]
    )
