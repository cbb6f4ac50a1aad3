"""Run perf record around a block: have it start and stop, and check that it did."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.kernel import with_tracefs
from labctl.base.process import dies_with_labctl, running

MIB = 1024 * 1024

LIMIT_MIB = 2048
"""Limit on a file. A host whose CPUs do nothing but switch fills it in some twenty seconds."""

NO_ROOM = "there was no room for a trace on the disk that holds the run."

_NOT_INSTALLED = "perf is not installed (Debian's package linux-perf has it)."

_BUFFERS_MIB = 256
_BUFFER_MIB = (1, 16)
"""All buffers together, and the minimum and maximum for one CPU."""

_START_S = 20.0
_TRIED_S = 0.05
_ANSWER_S = 10.0
_END_S = 60.0
WORDS = 300
"""Letters of perf's messages that are passed on."""

_SAID_ANYWAY = ("Events ", "[ perf record: Woken up", "[ perf record: Captured and wrote")


@dataclass(slots=True)
class Recorded:
    """Result of a recording. `problem`: why the block was not recorded, or not to its end; set when
    it is over."""

    problem: str | None = None


@contextmanager
def recording(
    output: Path, events: Sequence[str], *, cpus: CpuSet, limit_mib: int | None = None
) -> Iterator[Recorded]:
    """Record all of these events on every CPU, with times of CLOCK_MONOTONIC, from before the block
    to after it (perf decides how long). Never raises if perf fails.

    `events`: perf's own arguments, `-e` and `--filter`. `cpus`: those of perf itself. `limit_mib`:
    the room on the disk, 0 for none; None: LIMIT_MIB.
    """
    recorded = Recorded()
    if limit_mib == 0 or shutil.which("perf") is None:
        recorded.problem = NO_ROOM if limit_mib == 0 else _NOT_INSTALLED
        yield recorded
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    asked, asking = os.pipe()
    answers, answering = os.pipe()
    try:
        with running(
            _command(output, events, cpus, f"fd:{asked},{answering}", limit_mib or LIMIT_MIB),
            stderr=subprocess.PIPE,
            pass_fds=(asked, answering),
        ) as perf:
            # Only perf keeps these ends open: the answers end when perf does.
            asked, answering = _closed(asked), _closed(answering)
            # perf reads its control once it is ready, however long that takes.
            is_ready = _ask(asking, answers, "disable", _START_S)  # events are off by then anyway
            if not is_ready or not _ask(asking, answers, "enable", _ANSWER_S):
                recorded.problem = _why(perf, "perf can't record")
            yield recorded
            if recorded.problem is None:
                recorded.problem = _end(perf, asking, answers)
    finally:
        for end in (asked, asking, answers, answering):
            if end >= 0:
                os.close(end)


def why_unavailable(*events: str) -> str | None:
    """Return why perf cannot record these events here, a sentence, or None. Tried, because it
    depends on the kernel, its settings and the container."""
    if os.geteuid() != 0:
        return "only root can record."
    with tempfile.TemporaryDirectory() as folder:
        cpus = frozenset(os.sched_getaffinity(0))
        words = [word for event in events for word in ("-e", event)]
        with recording(Path(folder, "perf.data"), words, cpus=cpus) as recorded:
            time.sleep(_TRIED_S)
    return recorded.problem


def perf_record(
    output: Path | str, events: Sequence[str], *, control: str, buffer_mib: int, limit_mib: int
) -> tuple[str, ...]:
    """Return perf's arguments for a trace that `trace.perf.perfdata` reads, on host and in guest.

    `buffer_mib`: of each CPU.
    """
    return (
        *("perf", "record", "--all-cpus", "--clockid=CLOCK_MONOTONIC", "--count=1"),
        # Events are off until perf is told otherwise, and it acknowledges when they are on.
        *("--delay=-1", f"--control={control}"),
        f"--mmap-pages={buffer_mib}M",
        # Skips the pass over the whole trace at its end, which serves stacks; there are none.
        *("--no-buildid", "--no-buildid-cache", "--no-bpf-event"),
        f"--max-size={limit_mib}M",
        f"--output={output}",
        *events,
    )


def complaints(said: bytes) -> list[str]:
    """Return the lines that perf printed, without those that it prints in any case."""
    lines = (line.strip() for line in said.decode(errors="replace").splitlines())
    return [line for line in lines if line and not line.startswith(_SAID_ANYWAY)]


def _command(
    output: Path, events: Sequence[str], cpus: CpuSet, control: str, limit_mib: int
) -> list[str]:
    perf = perf_record(
        output,
        events,
        control=control,
        buffer_mib=buffer_mib(os.cpu_count() or 1),
        limit_mib=limit_mib,
    )
    return [
        *dies_with_labctl(),
        *("taskset", "--cpu-list", format_cpus(cpus)),
        *with_tracefs(perf),
    ]


def buffer_mib(cpu_count: int) -> int:
    """Return a power of two, as perf requires. 16 MiB hold some 100,000 events: a tenth of a second
    of nothing but switches, for which perf may get no CPU."""
    least, most = _BUFFER_MIB
    share: int = 1 << (max(1, _BUFFERS_MIB // cpu_count).bit_length() - 1)
    return min(most, max(least, share))


def _ask(asking: int, answers: int, what: str, seconds: float) -> bool:
    """Return whether perf acknowledges the command within that time."""
    try:
        os.write(asking, f"{what}\n".encode())
    except BrokenPipeError:
        return False
    ready, _, _ = select.select([answers], [], [], seconds)
    return bool(ready) and os.read(answers, 64).startswith(b"ack")


def _end(perf: subprocess.Popen[bytes], asking: int, answers: int) -> str | None:
    if not _ask(asking, answers, "disable", _ANSWER_S):
        return _why(perf, "perf ended before the trial did")
    perf.send_signal(signal.SIGINT)
    try:
        _, said = perf.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired:
        return f"perf did not end within {_END_S:g} s."
    # Having stored everything, it ends by the signal that it was sent.
    if perf.returncode not in (0, -signal.SIGINT):
        return f"perf ended with status {perf.returncode}: {_words(said)}"
    return None


def _why(perf: subprocess.Popen[bytes], what: str) -> str:
    """Return why a perf that should have answered did not; end it."""
    perf.send_signal(signal.SIGTERM)
    try:
        _, said = perf.communicate(timeout=_ANSWER_S)
    except subprocess.TimeoutExpired:
        return f"{what}: it did not answer."
    return f"{what}: {_words(said)}"


def _words(said: bytes) -> str:
    return " / ".join(complaints(said))[:WORDS] or "it said nothing."


def _closed(end: int) -> int:
    os.close(end)
    return -1
