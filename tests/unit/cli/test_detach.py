"""A sweep in a session of its own: what the caller hears, with children that only pretend."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from labctl.base.events import Listener, Note, Progress, RunBegun
from labctl.run.commands.sweep import told
from labctl.store.archive import folder_digest
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import RunFolder

BEGINNING = """
import os, sys, time
from pathlib import Path
from labctl.base.errors import UsageError
from labctl.base.events import Note, RunBegun
from labctl.cli.sweep import detached

def work(listen):
    {work}

try:
    print(detached(work))
except UsageError as error:
    print(error.message, file=sys.stderr)
    sys.exit(2)
"""


def run(work: str, seconds: float = 20) -> subprocess.CompletedProcess[str]:
    text = BEGINNING.format(work=textwrap.indent(textwrap.dedent(work), "    ").strip())
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=seconds
    )


def test_the_caller_does_not_wait_for_the_run(tmp_path: Path) -> None:
    go, end = tmp_path / "go", tmp_path / "end"
    done = run(
        f"""
        listen(RunBegun(folder=Path("/r"), progress=Path("/r/p")))
        print("nobody hears this")
        deadline = time.monotonic() + 60
        while not Path({str(go)!r}).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        Path({str(end)!r}).write_text(f"{{os.getsid(0) == os.getpid()}}")
        """
    )
    # Its output was read to its end: the child has let go of it, and is still at work.
    assert not end.exists()
    assert "Detached(pid=" in done.stdout
    assert "nobody" not in done.stdout + done.stderr
    go.touch()
    deadline = time.monotonic() + 30
    while not (end.exists() and end.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert end.read_text() == "True"


def test_an_error_before_the_run_is_the_callers() -> None:
    done = run('raise UsageError("no such study")')
    assert "no such study" in done.stderr
    assert done.stdout == "2\n"


def test_what_is_noted_before_the_run_is_shown() -> None:
    assert "an image is built" in run('listen(Note(text="an image is built"))').stderr


def test_an_interrupt_reaches_the_child_in_its_own_session(tmp_path: Path) -> None:
    child = tmp_path / "child"
    text = BEGINNING.format(
        work=f"Path({str(child)!r}).write_text(str(os.getpid())); time.sleep(30)"
    )
    caller = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.PIPE)
    while not (child.exists() and child.read_text()):
        assert caller.poll() is None, caller.communicate()[1]
        time.sleep(0.02)
    caller.send_signal(signal.SIGINT)
    caller.communicate(timeout=10)
    assert caller.returncode != 0
    assert not Path("/proc", child.read_text()).exists()


def test_an_error_of_the_command_has_its_usual_status() -> None:
    labctl = [sys.executable, "-m", "labctl.cli.main", "sweep", "no-such-study", "--detach"]
    done = subprocess.run(labctl, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no-such-study" in done.stderr


class Watched:
    """A run's folder, and what is heard of it."""

    def __init__(self, results: Path) -> None:
        self.folder = RunFolder.create(results, "run")
        self.folder.write_run(RunRecord.made({"status": "running"}))
        self.heard: list[object] = []
        self.listener: Listener = self.heard.append

    def said(self) -> dict[str, object]:
        found = json.loads((self.folder.path / "progress.json").read_text())
        assert isinstance(found, dict)
        return found


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_progress_is_written_and_passed_on(watched: Watched) -> None:
    with told(watched.folder, watched.listener) as telling:
        telling.begin()
        assert watched.said()["status"] == "running"
        progress = Progress(done=3, planned=9, invalid=1, doing="block 1", left_s=5.0)
        telling.listen(progress)
        telling.listen(Note(text="x"))
        said = watched.said()
        assert (said["done"], said["planned"], said["invalid"]) == (3, 9, 1)
        assert said["pid"] == os.getpid()
    assert isinstance(watched.heard[0], RunBegun)
    assert watched.heard[1:] == [progress, Note(text="x")]


def test_a_run_that_is_done_says_the_digest_of_its_files(watched: Watched) -> None:
    with told(watched.folder, watched.listener) as telling:
        telling.begin()
    said = watched.said()
    assert said["status"] == "done"
    assert said["digest"] == folder_digest(watched.folder.path)


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), "interrupted"), (OSError("no room"), "failed")]
)
def test_a_run_that_ended_otherwise_says_so(
    watched: Watched, error: BaseException, status: str
) -> None:
    with pytest.raises(type(error)), told(watched.folder, watched.listener):
        raise error
    assert watched.said()["status"] == status
    assert "digest" not in watched.said()
    assert watched.said().get("failure") == (str(error) or None)
