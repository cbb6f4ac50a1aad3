from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from labctl.workloads.workload import Workload
from tests.unit.workloads.trials import recorded, trial, values

STRESS_NG_FORK = workload("stress-ng-fork")
STRESS_NG_MMAP = workload("stress-ng-mmap")

FORK = "stress-ng-0.15.06-fork-tcg-guest.yaml"
MMAP = "stress-ng-0.15.06-mmap.yaml"


def _parse(program: Workload, folder: Path, text: str) -> dict[str, float]:
    folder_of_it = trial(folder)
    folder_of_it.write_raw("files/stress-ng.yaml", text)
    return values(list(program.parse(folder_of_it)))


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (STRESS_NG_FORK, FORK),
        (STRESS_NG_MMAP, MMAP),
        # Debian 13's, with a line that is no YAML.
        (STRESS_NG_FORK, "stress-ng-0.19.02-fork.yaml"),
        (STRESS_NG_MMAP, "stress-ng-0.19.02-mmap.yaml"),
    ],
)
def test_the_rate_is_stress_ng_s_own_by_real_time(
    tmp_path: Path, program: Workload, name: str
) -> None:
    text = recorded(name)
    found = _parse(program, tmp_path, text)
    lines = dict(line.strip().split(": ", 1) for line in text.splitlines() if ": " in line)
    assert found["operations"] == int(lines["bogo-ops"])
    assert found["ops_per_s"] == pytest.approx(float(lines["bogo-ops-per-second-real-time"]))
    assert program.window_rates("", {"stress-ng.yaml": text.encode()}) == [found["ops_per_s"]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "metrics:\n",
        "\0\1",
        recorded(FORK)[:500],
        recorded(FORK).replace("stressor: fork", "stressor: vfork"),
        recorded(FORK).replace("bogo-ops:", "ops:"),
        recorded(FORK).replace("bogo-ops: ", "bogo-ops: -"),
        recorded(FORK).replace("wall-clock-time: ", "wall-clock-time: 0 # "),
        recorded(FORK).replace("wall-clock-time: ", "wall-clock-time: 2026-02-30 # "),
        f"a: {'[' * 1500}\n...\n",
        f"a: &a [{'b,' * 900}]\nc: &c [{'*a,' * 900}]\nd: [{'*c,' * 900}]\n...\n",
        f"a: {'b' * (2 << 20)}\n...\n",
    ],
    ids=lambda text: text[-30:],
)
def test_output_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(BrokenError, match=r"files/stress-ng\.yaml: "):
        _parse(STRESS_NG_FORK, tmp_path, text)


def test_a_warm_up_without_a_report_is_an_error() -> None:
    with pytest.raises(BrokenError, match="no file 'stress-ng.yaml'"):
        STRESS_NG_FORK.window_rates("", {})


def test_there_is_a_worker_for_each_vcpu_and_a_window_is_a_number_of_operations() -> None:
    parameters = STRESS_NG_MMAP.check_parameters({"size_kib": 512})
    setting = Setting(parameters=parameters, vcpus=3, duration_s=5)
    argv = STRESS_NG_MMAP.command(setting).argv
    assert {"--mmap=3", "--mmap-bytes=512k", "--timeout=5s"} <= set(argv)
    window = STRESS_NG_MMAP.warmup_command(setting, 0.1, 300.0).argv
    assert "--mmap-ops=30" in window
    assert not any(word.startswith("--timeout") for word in window)
