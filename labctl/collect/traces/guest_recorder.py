"""Record the guest's own scheduler with the guest's perf around a trial's measured command.

The recorder runs beside the command, in a session of its own. The runner starts and ends it with
ordinary commands before and after, so the runner needs no support for it, and a trial without a
trace is unaffected. Both clocks are read before and after.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from labctl.base.channel import Channel, ChannelClosed, ClockReading
from labctl.base.command import Command, CommandResult
from labctl.base.errors import BrokenError, DeadlineError
from labctl.base.kernel import LOCKED_DOWN, TRACEFS, clock_discipline
from labctl.base.process import Deadline
from labctl.collect.collector import Target
from labctl.collect.traces.perf_record import MIB, NO_ROOM, WORDS, complaints, perf_record
from labctl.store.trial import TrialFolder
from labctl.trace import clocks, files
from labctl.trace.files import GUEST_TRACE, SIZE_LIMIT, note_problem
from labctl.trace.model import FORK, MIGRATE, SWITCH, TIMER_EXPIRE, TIMER_START, WAKEUPS, WAKING

EVENTS = (
    SWITCH,
    WAKING,
    *WAKEUPS,
    MIGRATE,
    FORK,
    TIMER_START,
    TIMER_EXPIRE,
)
"""Events that perf records in the guest: switches, waits, forks, and when a timer was due."""

READINGS = 20
"""Number of readings of the clocks at either end; the quickest of them count."""

FOLDER = "/run/labctl-trace"
"""Folder in the guest, always in memory, so that recording writes to no disk."""

LIMIT_MIB = 64
"""Limit on the guest's memory. A cyclictest with 1000 wake-ups a second fills it in a minute and a
half."""

_PIECE_MIB = 8
_START_S = 120.0
_STOP_S = 60.0

_PERF = perf_record(
    "perf.data",
    [f"--event={','.join(EVENTS)}"],
    control="fifo:control,ack",
    # perf wakes when the buffer is half full, and then runs in the measured window: the larger the
    # buffer, the rarer.
    buffer_mib=4,
    limit_mib=LIMIT_MIB,
)

# sh -c ... sh FOLDER TRACEFS SECONDS PERF...: the mount ends with its namespace. However the
# recorder ends, its end is reported, so that nothing waits for an answer that never comes.
_START = f"""
test -s "$1/pid" && kill "$(cat "$1/pid")"
rm -rf "$1" && mkdir -m 700 "$1" && cd "$1" && mkfifo control ack || exit
shift
exec 3<>control 4<>ack
setsid sh -c '
    {LOCKED_DOWN} && echo the kernel is locked down: it has no tracepoints ||
    unshare --mount --propagation private sh -c "
        test -d \\"\\$1/events\\" || mount -t tracefs nodev \\"\\$1\\"
        test -d \\"\\$1/events\\" || {{ echo no tracepoints in \\"\\$1\\"; exit; }}
        shift
        timeout \\"\\$@\\" & echo \\$! >pid
        wait \\$!
    " sh "$@"
    rm -f pid
    echo ended >&4
' sh "$@" >log 2>&1 &
echo enable >&3
read -r answer <&4
test "$answer" = ack || {{ cat log >&2; exit 1; }}
"""

# If it ended by itself, it ended too early. The ends of FIFOs are opened before the request,
# because data in a FIFO that nobody holds open is lost.
_STOP = """
cd "$1" && exec 4<>ack || exit
if test -s pid && kill "$(cat pid)"; then read -r answer <&4; else cat log >&2; exit 1; fi
"""


@contextmanager
def guest_tracing(target: Target) -> Iterator[None]:
    """Store the guest's trace and readings of both clocks in the trial's folder, or why there are
    none.

    Raises ChannelClosed when the guest ends; other failures are stored as the reason.
    """
    channel, folder = target.channel, target.folder
    has_room = target.is_traced and target.room_mib > 0
    first = clock_discipline()
    before = _read_clocks(channel)
    problem = _start(channel, target.seconds) if has_room else NO_ROOM
    # If the block raises, the trial is invalid; the next start ends what is left of this one.
    yield
    if problem is None:
        problem = _stop(channel, folder)
    if problem is not None:
        note_problem(folder, GUEST_TRACE, problem)
    readings = [*before, *_read_clocks(channel)]
    folder.write_raw_json(files.CLOCKS, [clocks.to_json(reading) for reading in readings])
    last = clock_discipline()
    if first and last:
        folder.write_raw_json(files.CLOCK_DISCIPLINE, [asdict(first), asdict(last)])


def _read_clocks(channel: Channel) -> list[ClockReading]:
    deadline = Deadline.after(30, f"{channel.name}: reading its clock")
    return [channel.wait_ready(deadline) for _ in range(READINGS)]


def _start(channel: Channel, seconds: float) -> str | None:
    """Start the recorder and wait until it records; return why it does not."""
    lives_s = seconds + _START_S + _STOP_S
    arguments = (FOLDER, TRACEFS, f"{lives_s:.0f}", *_PERF)
    found = _run(channel, _START_S, "sh", "-c", _START, "sh", *arguments)
    if isinstance(found, str):
        return f"perf can't record in the guest: {found}"
    return None


def _stop(channel: Channel, folder: TrialFolder) -> str | None:
    """End the recorder and store its recording; return why that is incomplete."""
    ended = _run(channel, _STOP_S, "sh", "-c", _STOP, "sh", FOLDER)
    pieces: list[bytes] = []
    while not pieces or len(pieces[-1]) == _PIECE_MIB * MIB:
        if len(pieces) * _PIECE_MIB > 2 * LIMIT_MIB:
            return f"the guest's trace has no end within {2 * LIMIT_MIB} MiB"
        source = (f"if={FOLDER}/perf.data", f"bs={_PIECE_MIB}M", f"skip={len(pieces)}", "count=1")
        piece = _run(channel, _STOP_S, "dd", *source)
        if isinstance(piece, str):
            return f"the guest's trace can't be fetched: {piece}"
        pieces.append(piece.stdout)
    folder.write_raw(files.GUEST, b"".join(pieces))
    _run(channel, _STOP_S, "rm", "-r", FOLDER)
    if isinstance(ended, str):
        if SIZE_LIMIT in ended:
            # perf's message holds a size that differs from trial to trial.
            return f"the guest's recording met its {SIZE_LIMIT} of {LIMIT_MIB} MiB before the end"
        return f"perf in the guest ended before the trial: {ended}"
    return None


def _run(channel: Channel, seconds: float, *argv: str) -> CommandResult | str:
    """Return the result of a command; its message if it fails, cannot be started or takes too
    long."""
    try:
        result = channel.run(Command(argv=argv), seconds=seconds)
    except (ChannelClosed, DeadlineError):
        raise
    except BrokenError as error:
        return error.message
    if result.returncode == 0:
        return result
    return (
        " / ".join(complaints(result.stderr)[:2])[:WORDS]
        or f"{argv[0]} ended with status {result.returncode}"
    )
