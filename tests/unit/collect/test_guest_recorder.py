"""A recorder beside the measured command: the real runner and shell, and a perf of the test's."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from labctl.base.channel import ChannelClosed
from labctl.base.command import Command, CommandResult
from labctl.base.errors import BrokenError
from labctl.base.process import Deadline
from labctl.base.tuning import Kind, Level
from labctl.collect.traces import guest_recorder as module
from labctl.collect.traces.guest_recorder import guest_tracing
from labctl.collect.traces.perf_record import NO_ROOM
from labctl.run.collectors.collecting import collecting
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.clocks import ClockMap, stored_clock_map
from labctl.trace.files import GUEST_TRACE, noted_problem
from tests.unit.collect.targets import target
from tests.unit.runner.runners import Runner, running_runner

PERF = """#!/bin/sh
# Records as perf does: from the moment that it is told to, until it is told to end.
for word; do case $word in --control=fifo:*) pipes=${word#--control=fifo:};; esac; done
exec 3<>"${pipes%,*}" 4<>"${pipes#*,}"
echo Events disabled >&2
# timeout(1) passes the signal on to its child, then to its group: twice to some.
trap 'trap "" TERM; echo "to $(date +%s%N)" >>perf.data; exit 143' TERM
read -r word <&3
echo "$$ from $(date +%s%N)" >perf.data
echo Events enabled >&2
printf 'ack\\n\\0' >&4
while :; do sleep 0.01; done
"""

UNSHARE = """#!/bin/sh
# A mount namespace takes root.
while [ "${1#--}" != "$1" ] || [ "$1" = private ]; do shift; done
exec "$@"
"""


@dataclass(frozen=True)
class Machine:
    """A runner whose machine has the programs that the test gives it."""

    runner: Runner
    tools: Path
    raw: TrialFolder

    def has(self, name: str, script: str) -> None:
        path = self.tools / name
        path.write_text(script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    @contextmanager
    def traced(self) -> Iterator[None]:
        with guest_tracing(target(self.raw, channel=self.runner.channel)):
            yield

    def run(self, *argv: str) -> CommandResult:
        return self.runner.channel.run(Command(argv=argv), seconds=20)

    @property
    def problem(self) -> str:
        return str(noted_problem(self.raw, GUEST_TRACE))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "FOLDER", str(tmp_path / "in the guest"))
    monkeypatch.setattr(module, "TRACEFS", str(tmp_path / "tracing"))
    raw = TrialFolder(tmp_path / "trial")
    raw.path.mkdir()
    with running_runner() as runner:
        made = Machine(runner, tools, raw)
        made.has("perf", PERF)
        made.has("unshare", UNSHARE)
        made.has("mount", '#!/bin/sh\nmkdir -p "$4/events"\n')
        try:
            yield made
        finally:
            left = Path(module.FOLDER) / "pid"
            if left.exists():
                os.kill(int(left.read_text()), signal.SIGTERM)


def is_gone(pid: int) -> bool:
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.02)
    return False


def recorded(machine: Machine) -> Mapping[str, int]:
    first, last = machine.raw.read_text(files.GUEST).splitlines()
    pid, _, start = first.split()
    return {"pid": int(pid), "start": int(start), "end": int(last.split()[1])}


def test_the_recorder_records_before_the_command_starts_until_after_it_has_ended(
    machine: Machine,
) -> None:
    with machine.traced():
        ran = machine.run("sh", "-c", "date +%s%N; sleep 0.1; date +%s%N")
    began, ended = map(int, ran.stdout.split())
    found = recorded(machine)
    assert found["start"] < began < ended < found["end"]
    assert is_gone(found["pid"])
    assert noted_problem(machine.raw, GUEST_TRACE) is None


def test_the_command_beside_the_recorder_is_run_as_ever(machine: Machine) -> None:
    alone = machine.run("sh", "-c", "echo said; exit 3")
    with machine.traced():
        beside = machine.run("sh", "-c", "echo said; exit 3")
    assert (beside.returncode, beside.stdout, beside.stderr) == (3, b"said\n", b"")
    assert beside.counts.keys() == alone.counts.keys()


def test_both_clocks_are_read_around_it(machine: Machine) -> None:
    with machine.traced():
        window = machine.run("sleep", "0.05").counts
    found = stored_clock_map(machine.raw)
    assert isinstance(found, ClockMap)
    assert len(machine.raw.read_json(files.CLOCKS)) == 2 * module.READINGS
    # A machine whose clock is the host's: what is measured is only how unsure that is.
    assert abs(found.offset_ns) <= found.error_ns
    assert found.at_ns < window["before"]["monotonic_ns"] < window["after"]["monotonic_ns"]
    assert window["after"]["monotonic_ns"] < found.until_ns


@pytest.mark.parametrize(
    ("level", "kind"),
    [(Level.COUNTERS, Kind.GUEST), (Level.EXITS, Kind.GUEST), (Level.TRACE, Kind.NATIVE)],
)
def test_nothing_is_asked_of_a_machine_that_is_not_traced(
    tmp_path: Path, level: Level, kind: Kind
) -> None:
    with collecting(target(tmp_path, kind=kind), level, before_command=True):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_large_trace_comes_in_pieces_and_whole(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECE_MIB", 1)
    whole = os.urandom(2 * 1024 * 1024 + 5)
    (machine.tools / "large").write_bytes(whole)
    machine.has("perf", PERF.replace('echo "to', f'cp {machine.tools}/large perf.data; echo "to'))
    with machine.traced():
        machine.run("true")
    stored = (machine.raw.path / files.GUEST).read_bytes()
    assert stored[: len(whole)] == whole
    assert stored[len(whole) :].startswith(b"to ")


def test_a_trace_without_an_end_is_given_up(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECE_MIB", 1)
    monkeypatch.setattr(module, "LIMIT_MIB", 1)
    machine.has("dd", "#!/bin/sh\nhead -c 1048576 /dev/zero\n")
    with machine.traced():
        machine.run("true")
    assert "has no end within 2 MiB" in machine.problem
    assert not machine.raw.has(files.GUEST)


def test_a_recorder_that_reached_its_limit_leaves_what_it_has_and_says_so(
    machine: Machine,
) -> None:
    full = "[ perf record: perf size limit reached (65536 KB), stopping session ]"
    machine.has("perf", PERF.replace("while :; do sleep 0.01; done", f"echo '{full}' >&2"))
    with machine.traced():
        machine.run("sleep", "0.3")
    assert machine.problem == "the guest's recording met its size limit of 64 MiB before the end"
    assert "from" in machine.raw.read_text(files.GUEST)


@pytest.mark.parametrize(
    ("name", "script", "says"),
    [
        ("perf", None, "failed to run command"),
        ("perf", "#!/bin/sh\necho \" Error: unknown option 'control'\" >&2; exit 129\n", "unknown"),
        ("perf", "#!/bin/sh\nexit 255\n", "sh ended with status 1"),
        ("mount", "#!/bin/sh\necho 'mount: permission denied' >&2; exit 32\n", "permission denied"),
        # tracefs of a kernel that is locked down is empty (kernel_lockdown(7)).
        ("mount", "#!/bin/sh\nexit 0\n", "no tracepoints in"),
        ("unshare", "#!/bin/sh\necho 'unshare: not permitted' >&2; exit 1\n", "not permitted"),
    ],
)
def test_a_machine_that_cannot_record_says_why_and_runs_the_command(
    machine: Machine, name: str, script: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is None:
        monkeypatch.setattr(module, "_PERF", ("nosuchperf", *module._PERF[1:]))
    else:
        machine.has(name, script)
    with machine.traced():
        ran = machine.run("echo", "ran")
    assert ran.stdout == b"ran\n"
    assert machine.problem.startswith("perf can't record in the guest: ")
    assert says in machine.problem
    assert not machine.raw.has(files.GUEST)
    # The clocks can be read all the same.
    assert isinstance(stored_clock_map(machine.raw), ClockMap)


def test_a_recorder_that_never_answers_costs_its_deadline(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_START_S", 0.5)
    monkeypatch.setattr(module, "_STOP_S", 0.5)
    machine.has("perf", "#!/bin/sh\necho $$ >perf.pid\nexec sleep 60\n")
    with machine.traced():
        assert machine.run("echo", "ran").stdout == b"ran\n"
    assert "was killed after 0.5 s" in machine.problem
    pid = int((Path(module.FOLDER) / "perf.pid").read_text())
    with machine.traced():
        pass
    assert is_gone(pid), "the next trial ends what is left of the one before"


def test_a_trial_that_fails_leaves_its_recorder_to_the_next(machine: Machine) -> None:
    with pytest.raises(BrokenError, match="the trial"), machine.traced():
        raise BrokenError("the trial failed")
    pid = int((Path(module.FOLDER) / "perf.data").read_text().split()[0])
    with machine.traced():
        machine.run("true")
    assert is_gone(pid)
    assert recorded(machine)["pid"] != pid


def test_a_guest_that_ends_meanwhile_is_no_matter_of_the_trace(machine: Machine) -> None:
    tracing = machine.traced()
    tracing.__enter__()
    machine.runner.process.kill()
    machine.runner.process.wait()
    with pytest.raises(ChannelClosed):
        tracing.__exit__(None, None, None)
    assert noted_problem(machine.raw, GUEST_TRACE) is None


def test_the_runner_answers_on_when_the_trace_is_over(machine: Machine) -> None:
    with machine.traced():
        machine.run("true")
    machine.runner.channel.wait_ready(Deadline.after(20, "an answer"))
    assert not Path(module.FOLDER).exists()


def test_without_room_for_it_nothing_is_started_in_the_guest(machine: Machine) -> None:
    with guest_tracing(target(machine.raw, channel=machine.runner.channel, room_mib=0)):
        assert not Path(module.FOLDER).exists()
    assert machine.problem == NO_ROOM
    assert not machine.raw.has(files.GUEST)
    assert isinstance(stored_clock_map(machine.raw), ClockMap)
