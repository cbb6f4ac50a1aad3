"""Run subprocesses with deadlines: argv lists, a failure explained once. Nothing else starts
any."""

from __future__ import annotations

import os
import re
import select
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Final

from labctl.base import interpreter
from labctl.base.errors import BrokenError, DeadlineError, HostError

# Share one deadline among nested waits, instead of timeouts that each wait shortens.


@dataclass(frozen=True, slots=True)
class Deadline:
    """Bound `what`: it must be over at `at` (CLOCK_MONOTONIC, seconds)."""

    what: str
    at: float
    seconds: float

    @classmethod
    def after(cls, seconds: float, what: str) -> Deadline:
        return cls(what=what, at=time.monotonic() + seconds, seconds=seconds)

    def remaining(self) -> float:
        """Return seconds left; raises DeadlineError when there are none."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise self.error()
        return left

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self.at

    def error(self) -> DeadlineError:
        return DeadlineError(f"{self.what} was not done within {self.seconds:g} s")


# Run subprocesses: argv lists, explicit deadlines, a failure explained once. Nothing else starts
# any.


PROC = Path("/proc")


def dies_with_labctl() -> tuple[str, ...]:
    """Return the prefix of a command that must end when labctl is killed.

    The child requests the signal itself (PR_SET_PDEATHSIG(2const)). If labctl was killed before
    that, no signal comes: the child then has another parent, and ends by itself.
    """
    still_there = '[ "$PPID" = "$0" ] && exec "$@"'
    return ("setpriv", "--pdeathsig", "KILL", "sh", "-c", still_there, str(os.getpid()))


@dataclass(frozen=True, slots=True)
class Completed:
    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    wall_s: float


class ProcessError(BrokenError):
    """Report that a command ended with a failure's status."""

    def __init__(self, completed: Completed, *, hint: str | None = None) -> None:
        lines = (completed.stderr.strip() or completed.stdout.strip()).splitlines()[-5:]
        said = ": " + " / ".join(lines) if lines else " and printed nothing"
        super().__init__(
            f"'{shlex.join(completed.argv)}' ended with status {completed.returncode}{said}",
            hint=hint,
        )
        self.completed = completed


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    deadline: Deadline,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    hint: str | None = None,
) -> Completed:
    """Run a command to its end and return its output.

    `env` is added to the present environment. Raises HostError if the program is missing,
    DeadlineError (after killing its process group) if it takes too long, BrokenError if it prints
    without an end, ProcessError if `check` and its status is not 0.
    """
    started = time.monotonic()
    with running(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        out, err = _communicated(process, (stdin or "").encode(), deadline)
        completed = Completed(
            argv=tuple(os.fspath(a) for a in argv),
            returncode=process.returncode,
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            wall_s=time.monotonic() - started,
        )
    if check and completed.returncode != 0:
        raise ProcessError(completed, hint=hint)
    return completed


_MOST_MIB: Final = 64
"""Output of one command: a tool that prints for ever would take the host's memory until its
deadline. No tool that labctl asks prints more than some MiB."""


def _communicated(
    process: subprocess.Popen[bytes], given: bytes, deadline: Deadline
) -> tuple[bytes, bytes]:
    """Return what a process printed on both outputs until it ended."""
    assert process.stdout and process.stderr  # `run` asked for both
    printed = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    left = memoryview(given)
    with selectors.DefaultSelector() as selector:
        for descriptor in printed:
            selector.register(descriptor, selectors.EVENT_READ)
        if process.stdin is not None:
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            for key, _ in selector.select(deadline.remaining()):
                if key.fd in printed:
                    piece = os.read(key.fd, 1 << 16)
                    printed[key.fd] += piece
                    if not piece:
                        selector.unregister(key.fd)
                    elif len(printed[key.fd]) > _MOST_MIB << 20:
                        raise BrokenError(
                            f"{deadline.what} was ended: its program printed more than "
                            f"{_MOST_MIB} MiB"
                        )
                    continue
                assert process.stdin
                try:
                    # A pipe that may be written to takes so much without waiting (pipe(7)).
                    left = left[os.write(key.fd, left[: select.PIPE_BUF]) :]
                except BrokenPipeError:
                    left = left[:0]  # it reads no more of it
                if not left:
                    selector.unregister(process.stdin)
                    process.stdin.close()
    try:
        process.wait(deadline.remaining())
    except subprocess.TimeoutExpired:
        raise deadline.error() from None
    out, err = map(bytes, printed.values())
    return out, err


@contextmanager
def running(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    stop_signal: signal.Signals = signal.SIGTERM,
    grace_s: float = 5.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in a session of its own and end its whole group when the block is left.

    A session of its own also gives it an autogroup of its own (sched(7), "The autogroup
    feature"), so that it weighs against others as another VM would.
    """
    arguments = [os.fspath(a) for a in argv]
    try:
        process = subprocess.Popen(
            arguments,
            env={**interpreter.users_environment(), **(env or {})},
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise HostError(
            f"'{arguments[0]}' is not installed", hint="Run 'labctl setup', which installs it."
        ) from error
    except PermissionError as error:
        raise HostError(
            f"cannot run '{arguments[0]}': {error.strerror}", hint="Run labctl as root."
        ) from error
    try:
        yield process
    finally:
        end_process_group(process, stop_signal, grace_s)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def end_process_group(
    process: subprocess.Popen[bytes], stop_signal: signal.Signals, grace_s: float
) -> None:
    """Ask the group to end, wait `grace_s` seconds, then kill it. Does nothing if it has ended."""
    if process.poll() is None:
        _signal_group(process.pid, stop_signal)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
    # Children of a leader that ended by itself would otherwise outlive it.
    _signal_group(process.pid, signal.SIGKILL)


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass


def thread_ids(pid: int, proc_root: Path = PROC) -> list[int]:
    """Return a process's thread ids, sorted; [] when it is gone."""
    try:
        return sorted(int(name) for name in os.listdir(proc_root / str(pid) / "task"))
    except (FileNotFoundError, ProcessLookupError):
        return []  # ESRCH: it ended between being found and being read


def written_by(output: IO[bytes], most: int = 1 << 20) -> bytes:
    """Return the first `most` bytes that a running program wrote to a file. The file position,
    which the program shares, is not moved."""
    return os.pread(output.fileno(), most, 0)


# End a run at SIGTERM and SIGHUP as at Ctrl-C: through every context manager.


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_WAY_OUT_S = 30.0
"""Time for cleaning up. Limited, because an interrupt that arrives in a callback of C code is lost,
and another must work."""


@contextmanager
def ending_signals_call(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have SIGINT, SIGTERM and SIGHUP call `handler`. A signal that was ignored before (nohup)
    stays ignored."""
    heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def ending_signals_interrupt() -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread. A second one soon
    after does not interrupt the cleanup. A signal that was ignored before (nohup) stays ignored."""
    interrupted_at = float("-inf")

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted_at
        if time.monotonic() - interrupted_at < _WAY_OUT_S:
            return
        interrupted_at = time.monotonic()
        raise KeyboardInterrupt(signal.Signals(number).name)

    with ending_signals_call(interrupt):
        yield


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Keep Ctrl-C and SIGTERM from interrupting the cleanup."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Quote a failed program's last output.


MARK: Final = "\x1e"
"""Beginning of the lines that labctl's own loop prints between two runs (`workloads.loops`)."""


def last_words(output: bytes, lines: int = 1) -> str:
    """Return the last lines of a program's output, as one; lines of labctl's own are left out."""
    # Not splitlines(), which treats the mark as a line end.
    found = re.split(r"[\r\n]+", output.decode(errors="replace"))
    said = [line.strip() for line in found if line.strip() and line[0] != MARK]
    return "; ".join(said[-lines:])
