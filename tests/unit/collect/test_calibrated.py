from pathlib import Path
from typing import Any

import pytest

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.collect.counters import calibrated
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from tests.unit.collect.targets import raw_trial
from tests.unit.collect.trials import reasons, recorded, sample, trial, values

FEW = recorded("callgrind-3.19.0-sysbench-50-events.txt")
MANY = recorded("callgrind-3.19.0-sysbench-150-events.txt")
LACKEY_FEW = recorded("lackey-3.19.0-sysbench-50-events.txt")
LACKEY_MANY = recorded("lackey-3.19.0-sysbench-150-events.txt")
COUNT = {"instructions_per_operation": 150_000.0, "tsc_hz": 2.5e9}
GUEST = [
    sample("operations", 2000.0),
    sample("host_cpu{thread=vcpu}", 0.5),
    sample("host_window", 2.0),
]


def _parse(
    folder: Path, count: Any = COUNT, readings: list[Reading] | None = None, **more: Any
) -> list[Reading]:
    raw = TrialFolder(folder) if count is None else trial(folder, calibration=count)
    readings = GUEST if readings is None else readings
    return list(calibrated.parse(raw_trial(raw, readings=readings, **more)))


def test_starting_up_cancels_out_of_two_recorded_counts() -> None:
    counts = [
        (50, calibrated.collected_instructions(FEW)),
        (150, calibrated.collected_instructions(MANY)),
    ]
    # Counted in an emulated guest; natively 100 and 200 events gave 153,431 each.
    assert calibrated.instructions_per_operation(counts) == pytest.approx(153_431, rel=1e-4)


@pytest.mark.parametrize(
    "stderr", ["", FEW[:200], FEW + MANY, FEW.replace("21924632", "a lot"), "valgrind: killed"]
)
def test_output_without_one_count_is_an_error(stderr: str) -> None:
    with pytest.raises(BrokenError, match="Collected"):
        calibrated.collected_instructions(stderr)


def test_another_tool_counts_the_same_instructions() -> None:
    first = calibrated.instructions_per_operation(
        [
            (50, calibrated.collected_instructions(FEW)),
            (150, calibrated.collected_instructions(MANY)),
        ]
    )
    second = calibrated.instructions_per_operation(
        [
            (50, calibrated.lackey_instructions(LACKEY_FEW)),
            (150, calibrated.lackey_instructions(LACKEY_MANY)),
        ]
    )
    assert second == pytest.approx(153_437, abs=1)
    assert 0 < calibrated.error_bound(first, second) < 1e-3


@pytest.mark.parametrize(
    "stderr",
    ["", LACKEY_FEW[:500], LACKEY_FEW + LACKEY_MANY, LACKEY_FEW.replace("21,974,993", "many"), FEW],
)
def test_output_without_lackey_s_count_is_an_error(stderr: str) -> None:
    with pytest.raises(BrokenError, match="guest instrs"):
        calibrated.lackey_instructions(stderr)


def test_the_bound_is_the_farthest_of_the_other_counts_either_way() -> None:
    assert calibrated.error_bound(100.0, 101.0, 98.0) == pytest.approx(0.02)


@pytest.mark.parametrize("counts", [[], [(50, 10)], [(50, 10), (50, 20)], [(50, 20), (150, 10)]])
def test_counts_that_do_not_grow_have_no_slope(counts: list[tuple[int, int]]) -> None:
    with pytest.raises(BrokenError, match="don't grow"):
        calibrated.instructions_per_operation(counts)


def test_ipc_is_instructions_over_reference_cycles_of_busy_time(tmp_path: Path) -> None:
    # 2000 operations of 150,000 instructions, on half a CPU of 2.5 GHz for 2 s.
    assert values(_parse(tmp_path)) == {"ipc{source=calibrated}": pytest.approx(0.12)}


def test_natively_busy_is_the_workload_s_own_time(tmp_path: Path) -> None:
    native: list[Reading] = [
        GUEST[0],
        sample("host_cpu{thread=workload}", 1.0),
        sample("duration", 2.0),
    ]
    found = values(_parse(tmp_path, readings=native, kind="native"))
    assert found == {"ipc{source=calibrated}": pytest.approx(0.06)}
    assert values(_parse(tmp_path, readings=list(GUEST), kind="native")) == {}


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"calibratable": False}, "not constant"),
        ({"rate_metric": None}, "not constant"),
        ({"count": None}, "not counted on this side"),
        ({"count": {**COUNT, "tsc_hz": None}}, "time-stamp"),
        ({"readings": GUEST[:1]}, "host_cpu{thread=vcpu}"),
        ({"readings": GUEST[:2]}, "host_window"),
        ({"readings": GUEST[1:]}, "operations"),
        ({"readings": [GUEST[0], sample("host_cpu{thread=vcpu}", 0.0)]}, "not above 0"),
    ],
)
def test_where_it_makes_no_sense_it_is_unavailable(
    tmp_path: Path, more: dict[str, Any], word: str
) -> None:
    readings = _parse(tmp_path, **more)
    assert values(readings) == {}
    assert word in reasons(readings)["ipc{source=calibrated}"]


@pytest.mark.parametrize(
    "count",
    [
        [],
        {},
        {**COUNT, "instructions_per_operation": "many"},
        {**COUNT, "instructions_per_operation": 0},
        {**COUNT, "instructions_per_operation": float("nan")},
        {**COUNT, "tsc_hz": -1},
    ],
)
def test_a_count_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, count: Any
) -> None:
    with pytest.raises(BrokenError, match=r"calibration\.json"):
        _parse(tmp_path, count)


def test_the_command_is_counted_as_it_is() -> None:
    command = calibrated.callgrind_command(Command(argv=("/usr/bin/x", "-a"), env={"A": "b"}))
    assert command.argv[-2:] == ("/usr/bin/x", "-a")
    assert "--tool=callgrind" in command.argv
    assert command.env == {"A": "b"}


CPUINFO = "flags\t\t: fpu tsc constant_tsc\nbogomips\t: 4999.99\n"


@pytest.mark.parametrize(
    ("cpuinfo", "khz", "expected"),
    [
        (CPUINFO, None, 2.499995e9),
        (CPUINFO, "2500000\n", 2.5e9),
        (CPUINFO, "unknown", 2.499995e9),
        (CPUINFO.replace("constant_tsc", ""), None, None),
        (CPUINFO.replace("bogomips", "BogoMIPS"), None, None),
        (CPUINFO.replace("4999.99", "0.00"), None, None),
        ("", None, None),
    ],
)
def test_the_tsc_rate_comes_from_the_kernel_or_is_not_known(
    cpuinfo: str, khz: str | None, expected: float | None
) -> None:
    assert calibrated.tsc_hz(cpuinfo, khz) == expected
