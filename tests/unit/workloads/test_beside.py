"""A workload beside a trial runs until it is told to stop, and each run comes to its end."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.base.yamltext import YamlMapping
from labctl.workloads import loops
from labctl.workloads.beside import LIMIT_S, Beside
from labctl.workloads.commands import TIMEOUT
from labctl.workloads.declarations import declare
from tests.unit.workloads.trials import recorded

CPUS = frozenset({2, 3})
RATE = {"rate": {"regex": r"^(?P<value>\d+) per second$", "unit": "1/s", "better": "higher"}}


def made(run_s: float = 1.0, **given: Any) -> Beside:
    """A workload that such a file declares."""
    content = {"description": "mine", "command": ["/usr/bin/true"], "primary": "elapsed", **given}
    definition = declare("mine", YamlMapping(content), Path("mine.yaml")).definition
    return Beside.of("mine", definition, {}, run_s)


def why(**given: Any) -> str | None:
    beside = made(**given)
    return beside.program.why_no_neighbour({}, beside.run_s)


def test_a_loop_that_is_told_to_stop_ends_after_its_run(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    script = f"echo >> {starts}; echo begun; sleep 0.3; echo ended"
    argv = loops.until_told(["sh", "-c", script], [])
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        while not starts.exists() or starts.stat().st_size < 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert [run.stdout for run in loops.runs_of(out, None)] == ["begun\nended\n"] * 2


def test_a_loop_whose_program_fails_ends_with_its_status() -> None:
    done = subprocess.run(loops.until_told(["sh", "-c", "exit 3"], []), check=False)
    assert done.returncode == 3


def test_what_is_stopped_by_a_signal_runs_once_and_by_itself() -> None:
    hog = Beside.of("cpu-hog", None, {}, 1.0)
    command = hog.command(CPUS)
    assert command.argv[0] == "/usr/bin/stress-ng"
    assert command.files == ("hog.yaml",)
    assert (hog.stop_signal, command.timeout_s) == (signal.SIGINT, LIMIT_S)
    assert TIMEOUT not in hog.binaries


@pytest.mark.parametrize("kind", ["duration", "repeat", "once"])
def test_anything_else_is_run_again_and_again(kind: str) -> None:
    beside = made(2.0, trial={"kind": kind}, command=["/usr/bin/x", "{{ duration }}", "{{ cpus }}"])
    command = beside.command(CPUS)
    assert command.argv[0] == loops.SHELL
    assert command.argv[-3:] == ("/usr/bin/x", "2", "2-3")
    assert beside.stop_signal is signal.SIGTERM
    assert loops.SHELL in beside.binaries


def test_files_that_each_run_leaves_are_marked_and_not_asked_for() -> None:
    metrics = {
        "n": {"from": "out.txt", "regex": "(?P<value>.+)", "unit": "count", "better": "lower"}
    }
    command = made(metrics=metrics).command(CPUS)
    assert "out.txt" in command.argv
    assert command.files == ()


def test_operations_are_those_that_the_program_counts() -> None:
    hog = Beside.of("cpu-hog", None, {}, 1.0)
    report = recorded("stress-ng-0.15.06.yaml").encode()
    assert hog.operations("", "", {"hog.yaml": report}, 9.0) == 3039


def test_operations_of_fixed_work_are_its_runs() -> None:
    beside = made(trial={"kind": "once", "work": 20}, primary="work_per_s")
    runs = "\x1erun\n"
    assert beside.operations(runs * 3, runs * 3, {}, 9.0) == 60


def test_without_a_count_the_rate_says_it() -> None:
    beside = made(metrics=RATE, primary="rate", trial={"kind": "repeat"})
    runs = "\x1erun\n100 per second\n\x1erun\n50 per second\n"
    # Runs of equal work: a rate is all work over all time.
    assert beside.operations(runs, "\x1erun\n" * 2, {}, 9.0) == pytest.approx(9 / (0.015))


def test_a_workload_that_says_neither_is_an_error() -> None:
    with pytest.raises(BrokenError, match="neither operations nor a rate"):
        made().operations("\x1erun\n", "\x1erun\n", {}, 1.0)


def test_output_that_is_cut_is_an_error() -> None:
    beside = made(metrics=RATE, primary="rate", trial={"kind": "repeat"})
    runs = "\x1erun\n100 per second\n\x1erun\n50 per sec"
    with pytest.raises(BrokenError):
        beside.operations(runs, "\x1erun\n" * 2, {}, 9.0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data_disk": {"use": "block"}}, "the data disk"),
        ({"privileges": ["realtime"]}, "rights with which it could starve"),
        ({"user": "root"}, "rights with which it could starve"),
        ({"setup": [["/usr/bin/true"]], "trial": {"kind": "once"}}, "surround one run"),
        ({"sides": [{"side": "native", "reason": "it needs a guest"}]}, "it needs a guest"),
        ({"run_s": 0.5}, "'run_s' doesn't fit"),
        (
            {"serve": [{"argv": ["/usr/bin/x"], "ready": {"tcp": 1}, "on": "peer"}]},
            "no link to one",
        ),
    ],
)
def test_what_cannot_run_beside_a_trial_says_why(given: dict[str, Any], said: str) -> None:
    assert said in str(why(**given))


def test_fixed_work_needs_no_length_of_a_run() -> None:
    assert why(run_s=0.5, trial={"kind": "repeat"}) is None
