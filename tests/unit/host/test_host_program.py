"""A program of the host's, while a tuning is in force: started, looked at, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labctl.base.errors import HostError
from labctl.base.tuning import KNOB_VALUES, HostProgram
from labctl.host.settings.knob import Impossible
from labctl.host.settings.knob_table import check_files, program_running

SLEEP, SH, TRUE = "/usr/bin/sleep", "/bin/sh", "/bin/true"


def program(command: str, check: str = TRUE) -> HostProgram:
    return HostProgram.of(json.dumps({"command": command, "check": check}))


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def ends_soon(pid: int) -> bool:
    until = time.monotonic() + 10
    while not (over := has_ended(pid)) and time.monotonic() < until:
        time.sleep(0.02)
    return over


def pid_of(now: str) -> int:
    return int(now.removeprefix("process "))


def test_it_runs_inside_the_block_alone() -> None:
    # It begins as what execs it.
    check = f"{SH} -c 'grep -q ^/usr/bin/sleep /proc/$0/cmdline'"
    with program_running(program(f"{SLEEP} 600")) as held:
        pid = pid_of(held.now)
        while subprocess.run([SH, "-c", f"{check} {pid}"]).returncode:
            time.sleep(0.02)
        assert held.why_over() is None
    assert ends_soon(pid)


def test_it_is_in_force_once_its_check_succeeds(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    command = f"{SH} -c 'sleep 0.3; touch {flag}; exec sleep 600'"
    with program_running(program(command, f"/usr/bin/test -e {flag}")) as held:
        assert flag.exists()
        flag.unlink()
        assert held.why_over() == f"its check '/usr/bin/test -e {flag}' ends with status 1"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (f"{SH} -c 'echo no such scheduler; exit 3'", "ended with status 3: no such scheduler"),
        # A daemon: what is started ends, and what goes on is nobody's.
        (f"{SH} -c 'sleep 1 & exit 0'", "ended with status 0: no output"),
    ],
)
def test_one_that_ends_is_refused_with_its_last_words(command: str, says: str) -> None:
    with (
        pytest.raises(HostError, match="is not working") as why,
        program_running(program(command, "/bin/false")),
    ):
        pass
    assert says in why.value.message
    assert "stay in the foreground" in (why.value.hint or "")


def test_one_that_ends_later_is_told() -> None:
    with program_running(program(f"{SLEEP} 600")) as held:
        os.kill(pid_of(held.now), signal.SIGKILL)
        assert ends_soon(pid_of(held.now))
        assert held.why_over() == f"'{SLEEP} 600' ended with status -9: no output"


def test_it_ends_with_a_labctl_that_is_killed() -> None:
    code = (
        "import time\n"
        "from tests.unit.host.test_host_program import program, program_running, SLEEP\n"
        "with program_running(program(SLEEP + ' 600')) as held:\n"
        "    print(held.now, flush=True)\n"
        "    time.sleep(600)\n"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True
    ) as labctl:
        assert labctl.stdout is not None
        pid = pid_of(labctl.stdout.readline().strip())
        assert not has_ended(pid)
        labctl.kill()
    assert ends_soon(pid)


@pytest.mark.parametrize(
    "text",
    [
        "sleep 600",
        "[]",
        '{"command": "/bin/true"}',
        '{"command": "true", "check": "/bin/true"}',
        '{"command": "/bin/true", "check": ""}',
        '{"command": "/bin/true \'", "check": "/bin/true"}',
        '{"command": ["/bin/true"], "check": "/bin/true"}',
        '{"command": "/bin/true", "check": "/bin/true", "more": 1}',
    ],
)
def test_other_values_are_none(text: str) -> None:
    assert not KNOB_VALUES["program"].accepts(text)
    with pytest.raises(ValueError, match=r".+"):
        HostProgram.of(text)


def test_a_file_that_others_can_change_does_not_run(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o777)
    for one in (program(str(mine)), program(TRUE, str(mine))):
        with pytest.raises(Impossible, match=r"may not run as root: .*is writable"):
            check_files(one)
    with pytest.raises(Impossible, match="there is no /no/such"):
        check_files(program("/no/such"))
    check_files(program(SLEEP))
