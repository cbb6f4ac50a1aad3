"""The real runner, as a process at the other end of a real channel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base.channel import Channel
from labctl.base.runner_messages import runner_archive

OUTCOME: Mapping[str, Any] = {
    "event": "result",
    "returncode": 0,
    "timed_out": False,
    "duration_ns": 1_000_000,
    "files": {".stdout": "aGk=", ".stderr": ""},
    "rusage": {},
    "before": {"monotonic_ns": 1, "stat": "cpu 1"},
    "after": {"monotonic_ns": 2, "stat": "cpu 2"},
    "threads": {"before": [{"pid": 7, "tid": 7, "stat": "7 (x)"}], "after": []},
}
"""Everything that a runner says of a command that went well, without the request's id."""


@dataclass(frozen=True)
class Runner:
    channel: Channel
    connection: socket.socket
    process: subprocess.Popen[bytes]


@contextmanager
def running_runner() -> Iterator[Runner]:
    ours, theirs = socket.socketpair()
    # What it was doing when it is killed stays in its folder for temporary files.
    with ours, tempfile.TemporaryDirectory() as scratch, tempfile.NamedTemporaryFile() as program:
        program.write(runner_archive())
        program.flush()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", program.name, "--fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "TMPDIR": scratch},
            )
        try:
            yield Runner(Channel(ours, "the machine"), ours, process)
        finally:
            process.kill()
            process.wait()


def is_gone(pid: int) -> bool:
    """Whether a process ends within a few seconds; a zombie has ended."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False
