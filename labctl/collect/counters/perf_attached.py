"""Run perf stat around a block."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from labctl.base.errors import BrokenError
from labctl.base.process import dies_with_labctl, running
from labctl.collect.counters.perf_stat_probe import ENVIRONMENT, Countable
from labctl.store.trial import TrialFolder

_ATTACH_S = 0.2
_GRACE_S = 5.0


class Printed:
    """Hold what perf printed, once it has ended."""

    text = ""


@contextmanager
def counting(
    folder: TrialFolder, can: Countable, command: Sequence[str], *, raw: str, problem: str
) -> Iterator[None]:
    """Run perf stat beside the block and store what it prints in `raw`; where it can't count, store
    why in `problem`. Raises BrokenError when it ends before it is asked to."""
    if can.problem is not None:
        folder.write_raw(problem, can.problem)
        yield
        return
    with perf_attached(command) as printed:
        yield
    folder.write_raw(raw, printed.text)


@contextmanager
def perf_attached(command: Sequence[str]) -> Iterator[Printed]:
    """Run perf stat beside the block. Raises BrokenError when it ends before it is asked to."""
    printed = Printed()
    with running(
        (*dies_with_labctl(), *command),
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        stop_signal=signal.SIGINT,
    ) as perf:
        # perf says nothing when it has attached; its own start takes a few milliseconds.
        time.sleep(_ATTACH_S)
        yield printed
        # 0: it saw the last of its threads end (natively the command's) before we told it to stop.
        if perf.poll() not in (None, 0):
            raise BrokenError(f"perf stat ended by itself with status {perf.returncode}")
        perf.send_signal(signal.SIGINT)
        try:
            _, counts = perf.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired as error:
            raise BrokenError(f"perf stat did not end within {_GRACE_S:g} s") from error
        printed.text = counts.decode(errors="replace")
