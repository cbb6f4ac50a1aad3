from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from tests.unit.workloads.trials import recorded, trial, values

HACKBENCH = workload("hackbench")

GUEST = "hackbench-2.40-tcg-guest.txt"
PIPE = "hackbench-2.40-pipe-threads.txt"


def _parse(folder: Path, text: str) -> dict[str, float]:
    return values(list(HACKBENCH.parse(trial(folder, stdout_txt=text))))


def test_messages_are_each_sender_s_to_each_receiver_of_its_group(tmp_path: Path) -> None:
    found = _parse(tmp_path, recorded(GUEST))
    assert found["operations"] == 1 * 20 * 20 * 100
    # 10.424 s, cut to milliseconds.
    assert found["messages_per_s"] == pytest.approx(40_000 / 10.4245)


def test_runs_are_taken_together_by_their_own_times(tmp_path: Path) -> None:
    text = recorded(PIPE)
    found = _parse(tmp_path, text)
    times = [float(line.split()[1]) for line in text.splitlines() if line.startswith("Time:")]
    assert len(times) > 1
    assert found["operations"] == len(times) * 20 * 20 * 10
    taken = sum(times) + 0.0005 * len(times)
    assert found["messages_per_s"] == pytest.approx(found["operations"] / taken)


def test_each_run_of_a_warm_up_is_a_window() -> None:
    rates = HACKBENCH.window_rates(recorded(PIPE), {})
    assert len(rates) == recorded(PIPE).count("Time:")
    assert all(rate > 0 for rate in rates)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\1 no such thing\n",
        recorded(GUEST)[:-12],
        recorded(GUEST).replace("Time: 10.424", "Time: soon"),
        recorded(GUEST).replace("Time:", "SENDER: write (error: Broken pipe)\nTime:"),
        recorded(PIPE)[:-5],
    ],
)
def test_output_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(BrokenError, match=r"stdout\.txt"):
        _parse(tmp_path, text)


def test_its_options_are_short_ones() -> None:
    # With long ones hackbench of rt-tests 2.4 refuses its own.
    parameters = HACKBENCH.check_parameters({"transport": "pipe", "tasks": "threads", "loops": 7})
    setting = Setting(parameters=parameters, vcpus=1, duration_s=2)
    argv = HACKBENCH.command(setting).argv
    assert argv[argv.index("/usr/bin/hackbench") :] == (
        *("/usr/bin/hackbench", "-p", "-T", "-g", "1", "-l", "7"),
    )
