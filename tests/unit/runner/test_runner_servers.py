"""Servers, users and limits of a workload's commands, by the runner itself."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.base.channel import RefusedError
from labctl.base.command import Command, FileSystem, LeftBehind, Ready, Server
from labctl.base.errors import BrokenError
from labctl.base.paths import NOBODY
from tests.unit.runner.runners import Runner, is_gone

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes its user")
PATH = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
LISTEN = (
    "import socket,sys,time;s=socket.socket();s.bind(('127.0.0.1',int(sys.argv[1])));s.listen();"
    "print('ready',flush=True);time.sleep(60)"
)


def shell(script: str, **fields: object) -> Command:
    command = Command(argv=("sh", "-c", script), environment=PATH, scratch_mib=1)
    return replace(command, **fields)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_whole_environment_leaves_nothing_of_the_machines_own(runner: Runner) -> None:
    result = runner.channel.run(shell("env | sort"), seconds=20)
    names = {line.partition(b"=")[0] for line in result.stdout.splitlines()}
    assert names <= {b"LC_ALL", b"PATH", b"PWD", b"OLDPWD", b"SHLVL", b"_"}


@needs_root
def test_a_program_of_a_user_has_the_named_capability_and_no_other(runner: Runner) -> None:
    script = "id -u; id -G; grep -E 'Cap(Eff|Bnd|Amb)|NoNewPrivs' /proc/self/status; touch here"
    command = shell(script, user=NOBODY, capabilities=("sys_nice",))
    user, groups, effective, _, ambient, locked = (
        runner.channel.run(command, seconds=20).stdout.decode().splitlines()
    )
    assert (user, groups) == (str(NOBODY), str(NOBODY))
    assert effective.split()[1] == ambient.split()[1] == f"{1 << 23:016x}"
    assert locked.split()[1] == "1"


def test_setup_and_after_surround_the_command_in_its_folder(runner: Runner) -> None:
    command = shell(
        "cat before",
        setup=(("sh", "-c", "echo first > before"),),
        after=(("sh", "-c", "echo last > behind"),),
        files=("be*",),
    )
    result = runner.channel.run(command, seconds=20)
    assert result.stdout == b"first\n"
    assert result.files == {"before": b"first\n", "behind": b"last\n"}


def test_a_failed_setup_names_command_status_and_last_words(runner: Runner) -> None:
    command = shell("true", setup=(("sh", "-c", "echo no such thing; exit 7"),))
    with pytest.raises(RefusedError, match="setup: sh ended with status 7: no such thing"):
        runner.channel.run(command, seconds=20)


def test_endless_output_ends_at_the_limit_and_says_so(runner: Runner) -> None:
    with pytest.raises(BrokenError, match="wrote more than 1 MiB to its standard output"):
        runner.channel.run(shell("exec yes"), seconds=20)


def test_a_command_that_hangs_is_killed_with_what_it_started_in_another_session(
    runner: Runner,
) -> None:
    sleep = own_sleep()
    command = shell(f"setsid {' '.join(sleep)} & exec sleep 100")
    with pytest.raises(BrokenError, match="was killed after"):
        runner.channel.run(replace(command, timeout_s=0.5), seconds=20)
    assert running(sleep) == []


def test_what_labctl_starts_beside_a_program_outlives_it(runner: Runner) -> None:
    recorder, left = own_sleep(), own_sleep()
    start = Command(argv=("sh", "-c", f"setsid {' '.join(recorder)} >log 2>&1 & sleep 0.2"))
    runner.channel.run(start, seconds=20)
    server = Server(
        argv=("sh", "-c", "echo up; exec sleep 100"),
        ready=Ready(kind="log", value="up"),
        environment=PATH,
    )
    with runner.channel.serving([server]):
        runner.channel.run(shell(f"setsid {' '.join(left)} >log 2>&1 & sleep 0.2"), seconds=20)
    assert running(left) == []
    (pid,) = running(recorder)
    os.kill(pid, signal.SIGTERM)
    for _ in range(100):
        runner.channel.run(Command(argv=("true",)), seconds=20)
        if not Path(f"/proc/{pid}").exists():
            break
    assert not Path(f"/proc/{pid}").exists(), "nobody reaped it"


def own_sleep() -> list[str]:
    """Return a command that is this test's own and no other's."""
    return ["sleep", f"100.{secrets.randbelow(10**9)}"]


def running(argv: list[str]) -> list[int]:
    processes = (path for path in Path("/proc").iterdir() if path.name.isdigit())
    return [int(p.name) for p in processes if _argv(p) == argv and not is_gone(int(p.name))]


def _argv(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_bytes().decode().split("\0")[:-1]
    except OSError:
        return []


def test_a_server_is_there_when_its_port_is_and_gone_afterwards(runner: Runner) -> None:
    port = free_port()
    server = Server(
        argv=("python3", "-c", LISTEN, str(port)),
        ready=Ready(kind="tcp", value=port),
        environment=PATH,
    )
    burn = f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}))\"; ls .."
    with runner.channel.serving([server]) as serving:
        result = runner.channel.run(shell(burn), seconds=20)
    assert result.returncode == 0
    assert result.stdout.split() == [b"run"]
    (ended,) = serving.ended
    assert (ended.name, ended.too_early, ended.output) == ("python3", False, b"ready\n")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=0.2)


def test_an_interrupt_does_not_wait_for_a_runner_that_is_in_the_midst_of_a_command(
    runner: Runner,
) -> None:
    server = Server(
        argv=("sh", "-c", "echo up; exec sleep 100"),
        ready=Ready(kind="log", value="up"),
        environment=PATH,
    )
    began = time.monotonic()
    with (
        suppress(KeyboardInterrupt),
        runner.channel.serving([server]) as serving,
        runner.channel.prepared(shell("sleep 100"), seconds=200) as execution,
    ):
        execution.go()
        raise KeyboardInterrupt
    assert time.monotonic() - began < 20
    assert serving.ended == ()


def test_a_foreign_listener_at_the_port_makes_no_server_ready(runner: Runner) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ready = Ready(kind="tcp", value=other.getsockname()[1], timeout_s=0.5)
        server = Server(argv=("sleep", "60"), ready=ready, environment=PATH)
        with (
            pytest.raises(RefusedError, match=r"sleep was not ready after 0.5 s"),
            runner.channel.serving([server]),
        ):
            pass


def test_a_server_that_ends_says_why(runner: Runner) -> None:
    server = Server(
        argv=("sh", "-c", "echo the port is taken; exit 1"),
        ready=Ready(kind="log", value="^ready"),
        environment=PATH,
    )
    with (
        pytest.raises(RefusedError, match="sh ended at once; it printed: the port is taken"),
        runner.channel.serving([server]),
    ):
        pass


BURN = """import time
while time.process_time() < 0.5: pass
open("burnt", "w")
"""
"""Half a second of CPU time, and a file that tells when it is over, however busy the host is."""


def test_a_servers_cpu_time_is_counted_with_its_childrens(runner: Runner) -> None:
    burn = f"while ! test -e go; do sleep 0.05; done; python3 -c '{BURN}'; exec sleep 100"
    found = counted_beside(runner, burn)
    assert found == pytest.approx(0.5, abs=0.2)


def test_a_servers_child_that_ends_meanwhile_is_counted(runner: Runner) -> None:
    """As PostgreSQL's do, which are sessions of their own."""
    burn = f"while ! test -e go; do sleep 0.05; done; setsid python3 -c '{BURN}'; exec sleep 100"
    assert counted_beside(runner, burn) == pytest.approx(0.5, abs=0.2)


def counted_beside(runner: Runner, script: str) -> float:
    """Return the CPU seconds of a server that burns some once it is told to."""
    ready = Ready(kind="log", value="up")
    server = Server(argv=("sh", "-c", f"echo up; {script}"), ready=ready, environment=PATH)
    with runner.channel.serving([server]):
        wait = shell("touch ../go; while ! test -e ../burnt; do sleep 0.05; done; sleep 0.3")
        return float(runner.channel.run(wait, seconds=60).counts["servers_s"])


def test_what_a_server_detaches_during_a_run_lives_as_long_as_the_server(runner: Runner) -> None:
    worker = own_sleep()
    detach = f"sleep 0.3; (setsid {' '.join(worker)} &) ; exec sleep 100"
    server = Server(
        argv=("sh", "-c", f"echo up; {detach}"),
        ready=Ready(kind="log", value="up"),
        environment=PATH,
    )
    with runner.channel.serving([server]):
        runner.channel.run(shell("sleep 1"), seconds=20)
        assert len(running(worker)) == 1
    assert running(worker) == []


def test_what_a_command_leaves_running_is_counted(runner: Runner) -> None:
    burn = f"setsid python3 -c '{BURN}time.sleep(100)' >log 2>&1 &"
    left = shell(f"{burn} while ! test -e burnt; do sleep 0.05; done")
    found = runner.channel.run(left, seconds=60)
    assert found.counts["servers_s"] > 0.4
    assert found.left == LeftBehind(count=1, names=("python3",))


def test_a_command_in_the_foreground_leaves_nothing(runner: Runner) -> None:
    assert runner.channel.run(shell("true & wait"), seconds=20).left == LeftBehind()


def test_programs_have_the_same_limits_whoever_started_the_runner(runner: Runner) -> None:
    result = runner.channel.run(shell("ulimit -Sn; ulimit -Hn; ulimit -Ss; umask"), seconds=20)
    assert result.stdout.split() == [b"1024", b"4096", b"8192", b"0022"]


def test_a_pipe_that_nobody_reads_ends_its_writer(runner: Runner) -> None:
    """The runner, which is Python, ignores SIGPIPE."""
    result = runner.channel.run(shell("yes | head -n 1"), seconds=20)
    assert (result.stdout, result.stderr) == (b"y\n", b"")


def test_a_setup_may_leave_something_running_and_print_a_lot(runner: Runner) -> None:
    sleep = own_sleep()
    command = shell("ls -A", setup=(("sh", "-c", f"{' '.join(sleep)} & seq 9999"),))
    result = runner.channel.run(command, seconds=20)
    assert result.returncode == 0
    assert running(sleep) == []


def test_a_servers_log_ends_at_the_limit(runner: Runner) -> None:
    ready = Ready(kind="log", value="up", timeout_s=5)
    server = Server(argv=("yes",), ready=ready, environment=PATH, scratch_mib=1)
    with pytest.raises(RefusedError, match="yes ended at once"), runner.channel.serving([server]):
        pass


def test_a_command_that_is_killed_is_told_by_its_label_and_last_words(runner: Runner) -> None:
    hang = "printf '\\036run\\n' >&2; echo begun; exec sleep 100"
    command = shell(hang, timeout_s=0.5, label="mine")
    with pytest.raises(BrokenError, match=r"'mine' was killed after 0.5 s; its last output: begun"):
        runner.channel.run(command, seconds=20)


@needs_root
@pytest.mark.skipif(not Path("/dev/loop-control").exists(), reason="needs loop devices")
def test_a_file_system_is_filled_for_a_trial_and_gone_afterwards(
    runner: Runner, tmp_path: Path
) -> None:
    device, at = tmp_path / "disk", tmp_path / "mounted"
    device.write_bytes(bytes(16 << 20))
    disk = FileSystem(
        device=str(device),
        at=str(at),
        environment=PATH,
        user="daemon",
        prepare=(("sh", "-c", "id -un >who; ls -A | wc -l"),),
    )
    seen = shell(f"cat {at}/who; touch {at}/left", user="daemon")
    for _ in range(2):
        with runner.channel.serving([disk]):
            assert runner.channel.run(seen, seconds=20).stdout == b"daemon\n"
            assert (at / "left").exists()
        assert list(at.iterdir()) == []
    broken = replace(disk, prepare=(("sh", "-c", "echo no space; exit 3"),))
    with (
        pytest.raises(RefusedError, match="prepare: sh ended with status 3: no space"),
        runner.channel.serving([broken]),
    ):
        pass
    assert str(at) not in Path("/proc/mounts").read_text()


def test_a_user_that_the_machine_lacks_is_named(runner: Runner) -> None:
    command = shell("true", user="no-such-user")
    with pytest.raises(BrokenError, match="no user 'no-such-user' there"):
        runner.channel.run(command, seconds=20)


def test_a_program_has_as_many_open_files_as_it_asks_for_or_is_refused(runner: Runner) -> None:
    result = runner.channel.run(shell("ulimit -Sn; ulimit -Hn", open_files=3000), seconds=20)
    assert result.stdout.split() == [b"3000", b"3000"]
    with pytest.raises(BrokenError, match="does not grant 2000000000 open files"):
        runner.channel.run(shell("true", open_files=2_000_000_000), seconds=20)


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        (("yes",), "setup: yes wrote more than it may to a file, or printed it"),
        (("sh", "-c", "printf %09000d 1; exit 3"), "setup: sh ended with status 3: 0{299}1$"),
    ],
)
def test_a_setup_that_floods_is_told_in_a_line(
    runner: Runner, setup: tuple[str, ...], why: str
) -> None:
    with pytest.raises(BrokenError, match=why):
        runner.channel.run(shell("true", setup=(setup,)), seconds=20)
