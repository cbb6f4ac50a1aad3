"""Run a sweep's work in a session of its own, which outlives the caller and its terminal."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from labctl.base.errors import BrokenError, ExitCode
from labctl.base.events import Event, Listener, Note, RunBegun, Warned
from labctl.base.jsontext import parse_json
from labctl.base.wording import printable
from labctl.store.jsonfile import canonical

_MOST_SAID = 1 << 16


@dataclass(frozen=True, slots=True)
class Detached:
    """Hold what is known of a run that goes on by itself."""

    pid: int
    folder: Path
    progress: Path


def detached(work: Callable[[Listener], None]) -> Detached | ExitCode:
    """Run `work` in a child with a session of its own, until its listener hears that its run has
    begun; then the child closes its standard streams and goes on alone.

    What the child does after that returns to no caller: it exits. A child that ends before the run
    has begun has said why on standard error: its exit status is returned.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    here, there = os.pipe()
    child = os.fork()
    if child:
        os.close(there)
        return _waited_for(child, here)
    os.close(here)
    os.setsid()

    def listen(event: Event) -> None:
        match event:
            case RunBegun():
                _let_go(there, event)
            case Note(text=text) | Warned(text=text):
                click.echo(printable(text), err=True)

    work(listen)
    sys.exit(ExitCode.DONE)


def _waited_for(child: int, pipe: int) -> Detached | ExitCode:
    """Return what the child says on the pipe, or its exit status."""
    said = b""
    while True:
        try:
            piece = os.read(pipe, _MOST_SAID)
        except KeyboardInterrupt:
            os.kill(child, signal.SIGINT)  # it has a session of its own, and heard none
            continue
        if not piece:
            break
        said += piece
    os.close(pipe)
    if said:
        begun = parse_json(said)
        return Detached(child, Path(begun["folder"]), Path(begun["progress"]))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        raise BrokenError(f"the sweep was ended by {signal.Signals(-status).name}")
    if status in set(ExitCode):
        return ExitCode(status)
    raise SystemExit(status)  # 130: it was interrupted


def _let_go(pipe: int, begun: RunBegun) -> None:
    """Close the standard streams, so that nobody waits for their end, then tell the caller."""
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
    told = {"folder": str(begun.folder), "progress": str(begun.progress)}
    os.write(pipe, canonical(told).encode())
    os.close(pipe)
