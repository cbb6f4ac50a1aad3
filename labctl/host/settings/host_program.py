"""Run a program of the host's while a tuning is in force: a scheduler of sched_ext, stalld,
irqbalance.

It ends with the block, and with labctl however that ends (PR_SET_PDEATHSIG), so that nothing is
left to undo, and no journal lists it.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from labctl.base.deadline import Deadline
from labctl.base.errors import HostError, LabctlError
from labctl.base.knob_values import HostProgram
from labctl.base.last_words import last_words
from labctl.base.latency_qos import Held
from labctl.base.process import dies_with_labctl, run, running
from labctl.base.trust import doubt
from labctl.host.settings.knob import Impossible

_START_S = 10.0
"""Seconds until its check succeeds for the first time."""
_CHECK_S = 10.0
_POLL_S = 0.1


def check_files(program: HostProgram, root: Path = Path("/")) -> None:
    """Raise Impossible where a command's file isn't there, or others than root can change it: it
    runs as root. `root`: of the host's files."""
    for argv in (program.command, program.check):
        path = root / argv[0].lstrip("/")
        if not path.is_file():
            raise Impossible(f"there is no {path}")
        if why := doubt(path):
            raise Impossible(f"{path} may not run as root: {why}")


@contextmanager
def program_running(program: HostProgram) -> Iterator[Held]:
    """Run the program inside the block, from when its check succeeds.

    Raises HostError with its last words where it ends before, or the check doesn't succeed.
    """
    name = shlex.join(program.command)
    with (
        tempfile.TemporaryFile() as said,
        running(
            [*dies_with_labctl(), *program.command], stdout=said, stderr=subprocess.STDOUT
        ) as process,
    ):
        deadline = Deadline.after(_START_S, f"the check of '{name}'")
        while _why_not(program, process, said):
            if process.poll() is not None or deadline.expired:
                raise HostError(
                    f"the host's program isn't in force: {_why_not(program, process, said)}",
                    hint="It must stay in the foreground: as a daemon it would outlast its trials.",
                )
            time.sleep(_POLL_S)
        yield Held(
            name=f"program {name}",
            before="-",
            now=f"process {process.pid}",
            why_over=lambda: _why_not(program, process, said),
        )


def _why_not(program: HostProgram, process: subprocess.Popen[bytes], said: IO[bytes]) -> str | None:
    """Return why the program isn't in force now; None where it is."""
    if (status := process.poll()) is not None:
        said.seek(0)
        words = last_words(said.read()[-4096:])
        return f"'{shlex.join(program.command)}' ended with status {status}: {words or 'no output'}"
    if (failed := _failed(program.check)) is not None:
        return f"its check '{shlex.join(program.check)}' {failed}"
    return None


def _failed(check: Sequence[str]) -> str | None:
    try:
        done = run(check, deadline=Deadline.after(_CHECK_S, shlex.join(check)), check=False)
    except LabctlError as error:
        return f"fails: {error.message}"
    return None if done.returncode == 0 else f"ends with status {done.returncode}"
