"""The runner itself, driven by the channel that labctl drives it with."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.base.channel import ChannelClosed, RefusedError
from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.process import Deadline
from labctl.base.tuning import Policy, Sched
from tests.unit.runner.runners import Runner, is_gone, running_runner

SOON_S = 20.0


def soon() -> Deadline:
    return Deadline.after(SOON_S, "an answer")


@pytest.fixture
def runner() -> Iterator[Runner]:
    with running_runner() as found:
        yield found


def test_a_commands_output_status_and_files_come_back(runner: Runner) -> None:
    script = "echo said; echo wrong >&2; printf 'a\\0b' >out.bin; exit 3"
    command = Command(argv=("sh", "-c", script), files=("out.bin", "never-written"))
    result = runner.channel.run(command, seconds=SOON_S)
    assert result.returncode == 3
    assert result.stdout == b"said\n"
    assert result.stderr == b"wrong\n"
    assert result.files == {"out.bin": b"a\0b"}


def test_a_command_gets_its_environment_an_empty_folder_and_no_input(runner: Runner) -> None:
    script = 'echo "$COLOUR"; find . -type f ! -name ".std*"; cat'
    command = Command(argv=("sh", "-c", script), env={"COLOUR": "blue"})
    assert runner.channel.run(command, seconds=SOON_S).stdout == b"blue\n"


def test_the_commands_folder_is_removed(runner: Runner) -> None:
    folder = runner.channel.run(Command(argv=("pwd",)), seconds=SOON_S).stdout.decode().strip()
    runner.channel.wait_ready(soon())
    assert folder.startswith("/")
    assert not Path(folder).exists()


def test_side_counts_the_commands_own_cpu_time_and_duration(runner: Runner) -> None:
    script = "import time; s = time.process_time()\nwhile time.process_time() < s + 0.2: pass"
    result = runner.channel.run(Command(argv=(sys.executable, "-c", script)), seconds=SOON_S)
    usage = result.counts["rusage"]
    assert usage["utime_s"] + usage["stime_s"] >= 0.2
    assert result.duration_s >= 0.2
    assert result.counts["before"]["stat"].startswith("cpu ")
    assert result.counts["after"]["monotonic_ns"] > result.counts["before"]["monotonic_ns"]


def test_a_command_waits_in_its_place_until_it_may_go(runner: Runner) -> None:
    cpu = max(os.sched_getaffinity(0))
    batch = Sched(policy=Policy.BATCH)
    command = Command(argv=("grep", "Cpus_allowed_list", "/proc/self/status"))
    with runner.channel.prepared(
        command, seconds=SOON_S, cpus=frozenset({cpu}), sched=batch
    ) as execution:
        assert os.sched_getaffinity(execution.pid) == {cpu}
        assert os.sched_getscheduler(execution.pid) == os.SCHED_BATCH
        execution.go()
        execution.wait_exited()
        assert execution.result().stdout.split() == [b"Cpus_allowed_list:", str(cpu).encode()]


def test_a_cpu_that_the_machine_lacks_is_refused_before_anything_runs(
    runner: Runner, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(RefusedError, match="cannot start touch"):
        runner.channel.run(
            Command(argv=("touch", str(mark))), seconds=SOON_S, cpus=frozenset({1000})
        )
    runner.channel.wait_ready(soon())
    assert not mark.exists()


def test_a_missing_program_is_named_and_the_runner_lives_on(runner: Runner) -> None:
    with pytest.raises(RefusedError, match="nosuchprogram is not installed there"):
        runner.channel.run(Command(argv=("nosuchprogram",)), seconds=SOON_S)
    assert runner.channel.run(Command(argv=("true",)), seconds=SOON_S).returncode == 0


def test_a_command_that_takes_too_long_is_killed_with_its_children(runner: Runner) -> None:
    with runner.channel.prepared(
        Command(argv=("sh", "-c", "sleep 60 & echo $! >&2; wait")), seconds=0.3
    ) as execution:
        execution.go()
        execution.wait_exited()
        with pytest.raises(BrokenError, match=r"'sh' was killed after 0\.3 s"):
            execution.result()
    assert is_gone(execution.pid)
    assert runner.channel.run(Command(argv=("true",)), seconds=SOON_S).returncode == 0


def test_what_a_command_leaves_running_behind_it_is_killed(runner: Runner) -> None:
    command = Command(argv=("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"))
    left = int(runner.channel.run(command, seconds=SOON_S).stdout)
    assert is_gone(left)


def test_a_command_does_not_outlive_a_killed_runner(runner: Runner) -> None:
    with runner.channel.prepared(Command(argv=("sleep", "60")), seconds=60) as execution:
        execution.go()
        while Path(f"/proc/{execution.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        runner.process.kill()
        with pytest.raises(ChannelClosed):
            execution.wait_exited()
    assert is_gone(execution.pid)


def test_a_command_that_was_given_up_before_its_start_never_runs(
    runner: Runner, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    with (
        pytest.raises(BrokenError, match="not where it should be"),
        runner.channel.prepared(Command(argv=("touch", str(mark))), seconds=SOON_S) as execution,
    ):
        raise BrokenError("not where it should be")
    # The runner answers at once, and not only after a deadline.
    runner.channel.wait_ready(Deadline.after(5, "an answer"))
    assert is_gone(execution.pid)
    assert not mark.exists()


def test_a_garbage_line_is_skipped(runner: Runner) -> None:
    runner.connection.sendall(b"\xff\x00 not json\n[1, 2]\n{\n")
    assert runner.channel.run(Command(argv=("true",)), seconds=SOON_S).returncode == 0


def test_an_unknown_request_is_refused_by_name(runner: Runner) -> None:
    with pytest.raises(RefusedError, match="unknown op 'dance'"):
        runner.channel._ask("dance", soon())


def test_a_request_without_its_fields_is_refused(runner: Runner) -> None:
    with pytest.raises(RefusedError, match="paths"):
        runner.channel._ask("read", soon())


def test_files_are_written_with_their_mode_and_read_back(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    runner.channel.write(str(path), b"text\n", soon(), mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    missing = str(tmp_path / "missing")
    assert runner.channel.read([str(path), missing], soon()) == {str(path): "text\n", missing: None}


def test_forgetting_a_file_keeps_what_is_in_it(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 8192)
    runner.channel.forget(str(path), soon())
    assert path.read_bytes() == b"x" * 8192
    with pytest.raises(RefusedError, match="No such file"):
        runner.channel.forget(str(tmp_path / "missing"), soon())


def test_the_runner_ends_when_labctl_closes_the_channel(runner: Runner) -> None:
    runner.channel.wait_ready(soon())
    runner.connection.close()
    assert runner.process.wait(SOON_S) == 0


def scheduled(thread: dict[str, str]) -> tuple[str, str]:
    """Policy and CPUs of a thread that the runner told of, as /proc has them."""
    fields = thread["stat"].rpartition(")")[2].split()
    return fields[38], thread["status"].split()[1]


BATCH = str(os.SCHED_BATCH)


def test_the_commands_place_is_told_as_it_was_before_and_as_it_is_at_its_end(
    runner: Runner,
) -> None:
    cpu = max(os.sched_getaffinity(0))
    result = runner.channel.run(
        Command(argv=("true",)),
        seconds=SOON_S,
        cpus=frozenset({cpu}),
        sched=Sched(policy=Policy.BATCH),
    )
    told = result.counts["threads"]
    for at in ("before", "after"):
        (thread,) = told[at]
        assert thread["tid"] == thread["pid"] == result.counts["pid"]
        assert scheduled(thread) == (BATCH, str(cpu))


def test_a_policy_that_was_changed_from_outside_is_told_of_a_command_that_has_ended(
    runner: Runner,
) -> None:
    with runner.channel.prepared(Command(argv=("sleep", "0.2")), seconds=SOON_S) as execution:
        execution.go()
        os.sched_setscheduler(execution.pid, os.SCHED_BATCH, os.sched_param(0))
        execution.wait_exited()
        told = execution.result().counts["threads"]
    assert [scheduled(thread)[0] for thread in told["before"] + told["after"]] == ["0", BATCH]


def test_threads_that_outlive_the_command_are_told_as_well(runner: Runner) -> None:
    script = "import os, time\nif not os.fork(): time.sleep(60)"
    result = runner.channel.run(Command(argv=(sys.executable, "-c", script)), seconds=SOON_S)
    first, left = result.counts["threads"]["after"]
    assert first["pid"] == result.counts["pid"] != left["pid"]
    assert is_gone(left["pid"])


def test_a_programs_loader_and_libraries_are_hashed_with_it(runner: Runner) -> None:
    (found, interpreter) = runner.channel.hashes(["/bin/sh"], soon()).values()
    assert found.problem is None
    assert not found.is_script
    names = {Path(path).name.partition(".so")[0] for path in found.files}
    assert {"sh", "libc"} <= names
    assert any(name.startswith("ld") for name in names)
    for path, digest in found.files.items():
        assert digest == hashlib.sha256(Path(path).read_bytes()).hexdigest()
    # And what runs the runner itself.
    assert sys.executable in interpreter.files


@pytest.mark.parametrize("line", ["#!/bin/sh -e", "#! /usr/bin/env -i A=b sh"])
def test_a_scripts_interpreter_is_hashed_with_it(runner: Runner, tmp_path: Path, line: str) -> None:
    script = tmp_path / "script"
    script.write_text(f"{line}\necho\n")
    script.chmod(0o755)
    found = runner.channel.hashes([str(script)], soon())[str(script)]
    assert found.is_script
    shell = runner.channel.hashes(["/bin/sh"], soon())["/bin/sh"]
    assert {Path(path).name for path in found.files} >= {"script", "sh"}
    assert set(shell.files.values()) <= set(found.files.values())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"just text", "neither an ELF file nor a script"),
        (b"", "neither an ELF file nor a script"),
        (b"\x7fELF\x02\x01", "unpack"),
        (b"#!\n", "without an interpreter"),
        (b"#!{itself}\n", "without an interpreter"),
        (b"#!\xff\n", "decode"),
        (None, "No such file"),
    ],
)
def test_what_no_kernel_would_run_is_a_problem_and_not_the_runners_end(
    runner: Runner, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "program"
    if content is not None:
        path.write_bytes(content.replace(b"{itself}", str(path).encode()))
    found = runner.channel.hashes([str(path)], soon())[str(path)]
    assert problem in (found.problem or "")
    runner.channel.wait_ready(soon())
