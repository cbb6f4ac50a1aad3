from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from tests.unit.workloads.trials import recorded, trial, values

PERF_SCHED_PIPE = workload("perf-sched-pipe")

NATIVE = "perf-6.1-sched-pipe.txt"
GUEST = "perf-6.1-sched-pipe-tcg-guest.txt"


def _parse(folder: Path, text: str) -> dict[str, float]:
    return values(list(PERF_SCHED_PIPE.parse(trial(folder, stdout_txt=text))))


@pytest.mark.parametrize("name", [NATIVE, GUEST])
def test_the_rate_is_perf_s_own(tmp_path: Path, name: str) -> None:
    text = recorded(name)
    found = _parse(tmp_path, text)
    printed = [int(line.split()[0]) for line in text.splitlines() if line.endswith("ops/sec")]
    assert min(printed) <= found["ops_per_s"] <= max(printed) + 1
    executed = [int(line.split()[2]) for line in text.splitlines() if line.startswith("# Exec")]
    assert found["operations"] == sum(executed)
    assert len(PERF_SCHED_PIPE.window_rates(text, {})) == len(executed)


def test_perf_of_linux_3_has_other_words_for_it(tmp_path: Path) -> None:
    # Posted on public pages: "Extecuted" is perf's own.
    old = (
        "# Running sched/pipe benchmark...\n# Extecuted 1000000 pipe operations between two tasks\n"
        "\n     Total time: 20.888 [sec]\n\n      20.888017 usecs/op\n          47874 ops/sec\n"
    )
    found = _parse(tmp_path, old)
    assert found["ops_per_s"] == pytest.approx(47874, abs=1)
    assert found["operations"] == 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\1 no such thing\n",
        recorded(GUEST)[:100],
        recorded(GUEST).replace("usecs/op", "nsecs/op"),
        recorded(NATIVE) + "# Running 'sched/pipe' benchmark:\n",
        recorded(GUEST).replace("sched/pipe", "sched/messaging"),
    ],
)
def test_output_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(BrokenError, match=r"stdout\.txt"):
        _parse(tmp_path, text)


def test_the_two_are_what_is_asked_for() -> None:
    for tasks, threaded in (("process", False), ("threads", True)):
        parameters = PERF_SCHED_PIPE.check_parameters({"tasks": tasks, "loops": 500})
        setting = Setting(parameters=parameters, vcpus=1, duration_s=2)
        argv = PERF_SCHED_PIPE.command(setting).argv
        assert ("--threaded" in argv) is threaded
        assert "--loop=500" in argv
