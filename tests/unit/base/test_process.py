from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from labctl.base import process
from labctl.base.errors import BrokenError, DeadlineError, HostError
from labctl.base.process import Deadline


def soon() -> Deadline:
    return Deadline.after(30, "the command")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def ends(pid: int) -> bool:
    """Whether it ends: a SIGKILL that was sent takes a moment to act."""
    deadline = soon()
    while alive(pid) and not deadline.expired:
        time.sleep(0.01)
    return not alive(pid)


def test_a_command_gives_back_what_it_printed() -> None:
    done = process.run(["sh", "-c", "echo out; echo err >&2; exit 3"], deadline=soon(), check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 3)


def test_a_command_reads_its_input_and_environment(tmp_path: Path) -> None:
    done = process.run(
        ["sh", "-c", "cat; echo $WHO; pwd"],
        deadline=soon(),
        stdin="in ",
        env={"WHO": "me"},
        cwd=tmp_path,
    )
    assert done.stdout == f"in me\n{tmp_path}\n"


def test_a_failure_says_which_command_and_what_it_last_said() -> None:
    with pytest.raises(process.ProcessError) as caught:
        process.run(["sh", "-c", "echo 'no space' >&2; exit 7"], deadline=soon(), hint="Free some.")
    assert "status 7: no space" in caught.value.message
    assert caught.value.hint == "Free some."


def test_a_command_that_prints_without_an_end_is_ended_before_it_takes_the_memory() -> None:
    with pytest.raises(BrokenError, match="the command was ended: its program printed more than"):
        process.run(["yes"], deadline=soon())


def test_a_command_that_does_not_read_its_input_is_not_waited_for() -> None:
    many = "x" * (1 << 20)
    assert process.run(["true"], deadline=soon(), stdin=many).stdout == ""
    assert process.run(["cat"], deadline=soon(), stdin=many).stdout == many


def test_a_silent_failure_says_that_nothing_was_printed() -> None:
    with pytest.raises(process.ProcessError, match="'false' ended with status 1 and printed noth"):
        process.run(["false"], deadline=soon())


def test_a_program_that_is_not_installed_is_the_hosts_fault() -> None:
    with pytest.raises(HostError, match="'no-such-program' is not installed"):
        process.run(["no-such-program"], deadline=soon())


def test_a_program_that_may_not_be_run_is_the_hosts_fault(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(HostError, match="cannot run"):
        process.run([script], deadline=soon())


def test_output_that_is_no_text_does_not_break_the_caller() -> None:
    done = process.run(["printf", r"\377ok"], deadline=soon())
    assert done.stdout.endswith("ok")


def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $$ $! > {pids}; wait"
    with pytest.raises(DeadlineError, match="the command was not done"):
        process.run(["sh", "-c", script], deadline=Deadline.after(0.5, "the command"))
    for pid in pids.read_text().split():
        assert ends(int(pid))


def test_leaving_the_block_ends_children_that_outlived_their_parent() -> None:
    with process.running(["sh", "-c", "sleep 600 & echo $!"], stdout=-1) as started:
        assert started.stdout is not None
        child = int(started.stdout.readline())
        started.wait()
        assert alive(child)
    assert ends(child)


def test_a_process_that_ignores_the_request_to_end_is_killed() -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 600; done"
    with process.running(["sh", "-c", script], stdout=-1, grace_s=0.2) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
    assert started.returncode == -signal.SIGKILL


def test_a_process_has_a_session_of_its_own() -> None:
    with process.running(["sleep", "600"]) as started:
        assert os.getsid(started.pid) == started.pid


def test_a_command_that_is_to_die_with_labctl_is_not_begun_when_labctl_is_gone(
    tmp_path: Path,
) -> None:
    made = tmp_path / "made"
    touch = [*process.dies_with_labctl(), "touch", str(made)]
    # Its parent is a shell: so it is for a child whose labctl died before it could ask for the
    # signal.
    process.run(["sh", "-c", '"$@"; true', "sh", *touch], deadline=soon())
    assert not made.exists()
    process.run(touch, deadline=soon())
    assert made.exists()
