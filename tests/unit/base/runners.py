"""The real runner program, as a process at the other end of a real channel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import labctl.base.runner_program
from labctl.base.channel import Channel


@dataclass(frozen=True)
class Runner:
    channel: Channel
    connection: socket.socket
    process: subprocess.Popen[bytes]


@contextmanager
def running_runner() -> Iterator[Runner]:
    program = labctl.base.runner_program.__file__
    ours, theirs = socket.socketpair()
    # What it was doing when it is killed stays in its folder for temporary files.
    with ours, tempfile.TemporaryDirectory() as scratch:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", program, "--fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "TMPDIR": scratch},
            )
        try:
            yield Runner(Channel(ours, "the machine"), ours, process)
        finally:
            process.kill()
            process.wait()
