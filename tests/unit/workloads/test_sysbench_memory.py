"""sysbench memory: what it is asked for, and what its output says."""

import re
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from tests.unit.workloads.trials import reasons, recorded, trial, values

SYSBENCH_MEMORY = workload("sysbench-memory")

SMALL = "sysbench-1.0.20-memory-1-mib.txt"
LARGE = "sysbench-1.0.20-memory-16-mib-2-threads.txt"
WINDOW = "sysbench-1.0.20-memory-window.txt"


def _setting(**parameters: int | str) -> Setting:
    checked = SYSBENCH_MEMORY.check_parameters(parameters)
    return Setting(parameters=checked, vcpus=2, duration_s=2)


@pytest.mark.parametrize("name", [SMALL, LARGE, WINDOW])
def test_the_rate_is_the_printed_one_with_more_digits(tmp_path: Path, name: str) -> None:
    text = recorded(name)
    found = values(list(SYSBENCH_MEMORY.parse(trial(tmp_path, stdout_txt=text))))
    printed = re.findall(r"Total operations: (\d+) \( *([\d.]+) per second\)", text)[0]
    assert found["operations"] == float(printed[0])
    # It prints what it has counted at the moment when time is up, and goes on to the event's end.
    assert found["events_per_s"] == pytest.approx(float(printed[1]), rel=0.05)


def test_sysbench_1_1_names_the_time_otherwise(tmp_path: Path) -> None:
    # Of its cpu test, posted on a public page; what is read of both is the same.
    text = recorded("sysbench-1.1.0-8-threads.txt")
    found = values(list(SYSBENCH_MEMORY.parse(trial(tmp_path, stdout_txt=text))))
    assert found["events_per_s"] == pytest.approx(6481.1278, rel=1e-4)
    assert found["latency_p99"] == pytest.approx(49.21e-3, rel=1e-3)
    assert found["latency_max"] == pytest.approx(57.69e-3)


def test_no_time_at_all_is_an_error(tmp_path: Path) -> None:
    text = re.sub(r"total time: +[\d.]+s", "total time: 0.0000s", recorded(SMALL))
    with pytest.raises(BrokenError, match="total time is 0"):
        list(SYSBENCH_MEMORY.parse(trial(tmp_path, stdout_txt=text)))


def test_p95_agrees_with_sysbench_s_own(tmp_path: Path) -> None:
    text = recorded(SMALL)
    theirs_ms = float(re.findall(r"95th percentile:\s+([\d.]+)", text)[0])
    found = values(list(SYSBENCH_MEMORY.parse(trial(tmp_path, stdout_txt=text))))
    assert found["latency_p95"] * 1000 == pytest.approx(theirs_ms, rel=0.002)


def test_a_few_large_blocks_have_no_p95(tmp_path: Path) -> None:
    raw = trial(tmp_path, stdout_txt=recorded(LARGE))
    assert "latency_p95" in reasons(list(SYSBENCH_MEMORY.parse(raw)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "\0\1\2 not sysbench at all",
        lambda text: text[: text.index("Total operations")],
        lambda text: text[text.index("Total operations") :],
        lambda text: text.replace("total time:  ", "total time:  x"),
        lambda text: re.sub(r"(\|\*+ +)\d", r"\g<1>7", text, count=1),
    ],
    ids=["empty", "garbage", "cut", "no histogram", "no time", "altered"],
)
def test_output_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, damage: "object"
) -> None:
    text = damage(recorded(SMALL))  # type: ignore[operator]
    with pytest.raises(BrokenError, match=r"stdout\.txt.*expected"):
        list(SYSBENCH_MEMORY.parse(trial(tmp_path, stdout_txt=text)))


def test_each_thread_has_a_block_of_its_own_and_no_word_is_preferred() -> None:
    argv = SYSBENCH_MEMORY.command(_setting(block_mib=64, operation="write")).argv
    assert {
        "--threads=2",
        "--memory-block-size=64M",
        "--memory-scope=local",
        "--memory-oper=write",
        "--memory-access-mode=rnd",
        "--rand-type=uniform",
        "--time=2",
    } <= set(argv)


@pytest.mark.parametrize(("rate", "total"), [(None, 32), (1.0, 32), (30.0, 96)])
def test_a_window_is_as_many_blocks_for_each_thread(rate: float | None, total: int) -> None:
    argv = SYSBENCH_MEMORY.warmup_command(_setting(), 0.2, rate).argv
    assert {"--time=0", f"--memory-total-size={total}M"} <= set(argv)
