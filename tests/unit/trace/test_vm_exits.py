from collections.abc import Sequence
from pathlib import Path

from labctl.trace.perf.perfdata import read_trace
from labctl.trace.vm_exits import WANTED, Took, seen_by_perf, vm_exits
from tests.unit.trace.kvm_recording import VMX, entry, left, recording

HLT, IO = (VMX, 12), (VMX, 30)


def _counted(
    folder: Path, records: Sequence[bytes], start_ns: int, end_ns: int
) -> tuple[dict[int, dict[tuple[int, int], Took]], dict[tuple[int, int], Took]]:
    """Those of a window by thread, and what perf makes of all."""
    path = folder / "perf.data"
    path.write_bytes(recording(records))
    trace = read_trace(path, WANTED)
    own = {tid: one.within(start_ns, end_ns).by_code() for tid, one in vm_exits(trace).items()}
    return own, seen_by_perf(trace)


def test_an_exit_ends_with_the_next_entry_of_its_own_thread(tmp_path: Path) -> None:
    records = [
        *(entry(1, 10), entry(2, 11)),
        *(left(1, 100, 30), left(2, 110, 12), entry(1, 130), entry(2, 1110)),
        *(left(1, 200, 30), entry(1, 205)),
    ]
    own, perf = _counted(tmp_path, records, 0, 10_000)
    assert own == {
        1: {IO: Took(exits=2, ended=2, ns=35)},
        2: {HLT: Took(exits=1, ended=1, ns=1000)},
    }
    assert perf == own[1] | own[2]


def test_an_exit_that_another_follows_or_nothing_has_no_end(tmp_path: Path) -> None:
    records = [entry(1, 10), left(1, 100, 12), left(1, 150, 30), entry(1, 160), left(1, 200, 30)]
    own, perf = _counted(tmp_path, records, 0, 10_000)
    assert own == {1: {HLT: Took(exits=1, ended=0, ns=0), IO: Took(exits=2, ended=1, ns=10)}}
    assert perf == {IO: Took(exits=1, ended=1, ns=10)}


def test_perf_knows_a_vcpu_from_its_first_entry_on(tmp_path: Path) -> None:
    records = [left(1, 100, 30), entry(1, 130), left(1, 200, 30), entry(1, 201), left(2, 300, 30)]
    own, perf = _counted(tmp_path, records, 0, 10_000)
    assert own[1] == {IO: Took(exits=2, ended=2, ns=31)}
    assert perf == {IO: Took(exits=1, ended=1, ns=1)}


def test_a_window_has_what_begins_in_it_and_the_time_of_what_ends_in_it(tmp_path: Path) -> None:
    records = [entry(1, 10)]
    for at in (100, 200, 300, 400):
        records += [left(1, at, 30), entry(1, at + 50)]
    own, _ = _counted(tmp_path, records, 200, 400)
    assert own == {1: {IO: Took(exits=2, ended=2, ns=100)}}
    own, _ = _counted(tmp_path, records, 120, 350)
    assert own == {1: {IO: Took(exits=2, ended=1, ns=50)}}
    own, _ = _counted(tmp_path, records, 500, 600)
    assert own == {1: {}}


def test_codes_of_32_bits_are_kept_whole(tmp_path: Path) -> None:
    codes = (0xFFFFFFFF, 0x8000000C, 0)
    records = [entry(1, 10)]
    for at, code in enumerate(codes, 1):
        records += [left(1, 100 * at, code, isa=2), entry(1, 100 * at + at)]
    own, _ = _counted(tmp_path, records, 0, 10_000)
    assert own[1] == {(2, code): Took(exits=1, ended=1, ns=at) for at, code in enumerate(codes, 1)}
