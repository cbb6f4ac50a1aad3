"""Copies of a command wait, start at once, and end when they are told to, with what each left: by
the runner itself, as in a guest."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import labctl.base.runner_messages
from labctl.base.channel import Serving
from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.process import Deadline
from labctl.base.runner_messages import EndedServer
from labctl.workloads.beside import START, Left, copies_of, left_by
from tests.unit.runner.runners import Runner, running_runner

PATH = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}

UNTIL_STOPPED = (
    "trap 'echo stopped; echo 7 > hog.yaml; exit 0' INT; echo began; echo note >&2; "
    "while :; do sleep 0.01; done"
)
WHOLE_RUNS = 'told=; trap told=1 TERM; while echo run; [ -z "$told" ]; do sleep 0.05; done'


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    monkeypatch.setattr(labctl.base.runner_messages, "WORK", str(tmp_path / "work"))
    with running_runner() as found:
        yield found


class Copies:
    """Copies of a shell's script that wait in a runner."""

    def __init__(self, runner: Runner, serving: Serving, folder: Path) -> None:
        self._runner = runner
        self._serving = serving
        self.folder = folder

    def start(self) -> None:
        (pid,) = self._serving.pids
        kill = Command(argv=("kill", f"-{START.name[3:]}", str(pid)))
        assert self._runner.channel.run(kill, seconds=20).returncode == 0

    @property
    def ended(self) -> EndedServer:
        (ended,) = self._serving.ended
        return ended

    def left(self, count: int) -> list[Left]:
        path = str(self.folder / "left.json")
        texts = self._runner.channel.read([path], Deadline.after(20, "reading"))
        return left_by(texts[path], count, "the machine")


@contextmanager
def copies(
    runner: Runner,
    folder: Path,
    script: str,
    count: int,
    stop: signal.Signals = signal.SIGINT,
    *,
    to_group: bool = True,
    scratch_mib: int | None = None,
) -> Iterator[Copies]:
    command = Command(
        argv=("sh", "-c", script),
        environment=PATH,
        files=("hog.*",),
        scratch_mib=scratch_mib,
    )
    server = copies_of(command, count, stop, to_group=to_group, grace_s=10)
    with runner.channel.serving([server]) as serving:
        yield Copies(runner, serving, folder / "work")


def wait_until(path: Path) -> None:
    deadline = Deadline.after(20, f"{path.name}")
    while not path.exists() or not path.read_bytes():
        deadline.remaining()
        time.sleep(0.01)


def test_they_wait_for_the_start_and_each_leaves_its_own_when_told_to_stop(
    runner: Runner, tmp_path: Path
) -> None:
    with copies(runner, tmp_path, UNTIL_STOPPED, 3) as some:
        assert not list(some.folder.glob("*.out"))
        some.start()
        for number in range(3):
            wait_until(some.folder / f"{number}.out")
        # The machine answers meanwhile.
        runner.channel.wait_ready(Deadline.after(10, "the answer"))
    assert (some.ended.too_early, some.ended.status) == (False, 0)
    left = some.left(3)
    for one in left:
        assert (one.status, one.stdout, one.stderr) == (0, "began\nstopped\n", "note\n")
        assert one.files == {"hog.yaml": "7\n"}
        assert 0 < one.seconds < 20


def test_what_runs_again_and_again_comes_to_the_end_of_its_last_run(
    runner: Runner, tmp_path: Path
) -> None:
    with copies(runner, tmp_path, WHOLE_RUNS, 1, signal.SIGTERM, to_group=False) as some:
        some.start()
        wait_until(some.folder / "0.out")
    (left,) = some.left(1)
    assert left.status == 0
    assert set(left.stdout.splitlines()) == {"run"}


def test_one_that_ends_by_itself_takes_the_others_with_it_and_is_named(
    runner: Runner, tmp_path: Path
) -> None:
    script = 'case "$PWD" in */1) echo no such thing >&2; exit 9;; esac; ' + UNTIL_STOPPED
    with copies(runner, tmp_path, script, 2) as some:
        some.start()
        wait_until(some.folder / "left.json")
        deadline = Deadline.after(20, "the end of the copies")
        while not any(runner_child_has_ended(some)):
            time.sleep(min(0.01, deadline.remaining()))
    assert some.ended.too_early
    assert some.ended.output.decode().splitlines()[-1] == "status 9: no such thing"


def runner_child_has_ended(some: Copies) -> Iterator[bool]:
    for pid in some._serving.pids:
        yield "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]


def test_those_that_never_started_are_ended_without_a_word(runner: Runner, tmp_path: Path) -> None:
    with copies(runner, tmp_path, UNTIL_STOPPED, 2) as some:
        pass
    assert (some.ended.too_early, some.ended.status) == (False, 0)


def test_no_copy_writes_more_than_its_workload_may(runner: Runner, tmp_path: Path) -> None:
    script = "exec head -c 3000000 /dev/zero"
    with copies(runner, tmp_path, script, 1, scratch_mib=1) as some:
        some.start()
        wait_until(some.folder / "left.json")
    assert (some.folder / "0.out").stat().st_size == 1 << 20


def test_nothing_that_a_copy_started_is_left(runner: Runner, tmp_path: Path) -> None:
    script = "sleep 100.25 & echo $! > pid; " + UNTIL_STOPPED
    with copies(runner, tmp_path, script, 1) as some:
        some.start()
        wait_until(some.folder / "0.out")
    pid = int((some.folder / "0/pid").read_text())
    deadline = Deadline.after(10, "the end of what it started")
    while Path(f"/proc/{pid}").exists():
        time.sleep(min(0.01, deadline.remaining()))


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{}x",
        "[]",
        "{}",
        json.dumps([1]),
        json.dumps([{"status": 0, "seconds": 1.0, "stdout": 7, "stderr": "", "files": {}}]),
        json.dumps([{"status": 0, "seconds": 1.0, "stdout": "", "stderr": "", "files": []}]),
        json.dumps([{"status": 0, "seconds": "x", "stdout": "", "stderr": "", "files": {}}]),
    ],
)
def test_what_a_hostile_guest_leaves_in_place_of_it_is_refused(text: str | None) -> None:
    with pytest.raises(BrokenError, match="guest labctl-noisy-1: its programs' output is damaged"):
        left_by(text, 1, "the guest labctl-noisy-1")


def test_the_program_needs_no_more_than_the_runners_python() -> None:
    server = copies_of(
        Command(argv=("true",), environment=PATH), 1, signal.SIGINT, to_group=True, grace_s=1
    )
    compile(server.argv[2], "copies", "exec")
    assert os.path.basename(server.argv[0]) == "python3"
