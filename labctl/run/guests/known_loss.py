"""Take a known share of the guest's time away: the known-loss arm (METHOD rule 5).

QEMU is stopped (SIGSTOP) for `percent` of every second, in one piece. One piece, because the host
scheduler makes short gaps good again: after a pause the vCPU thread is owed time and preempts its
neighbours, for up to about one scheduling slice (3 ms). Of a whole second, so that a trial of
whole seconds loses exactly its share wherever the seconds fall.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PERIOD_S = 1.0


@contextmanager
def handicapped(pid: int, percent: float) -> Iterator[None]:
    """Stop the process for `percent` of each second while inside; nothing for 0."""
    if percent <= 0:
        yield
        return
    over = threading.Event()
    stopped_s = PERIOD_S * percent / 100

    def stop_and_go() -> None:
        while not over.wait(PERIOD_S - stopped_s):
            if not _signal(pid, signal.SIGSTOP):
                return
            over.wait(stopped_s)
            _signal(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go, name="handicap", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
