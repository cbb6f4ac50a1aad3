"""End a run at SIGTERM and SIGHUP as at Ctrl-C: through every context manager on the way out."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_WAY_OUT_S = 30.0
"""Time for cleaning up. Limited, because an interrupt that arrives in a callback of C code is lost,
and another must count."""


@contextmanager
def ending_signals_call(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have SIGINT, SIGTERM and SIGHUP call `handler`. One that was ignored before (nohup) stays
    ignored."""
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
    after does not cut the cleanup short. A signal that was ignored before (nohup) stays ignored."""
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
    """Keep Ctrl-C and SIGTERM from cutting the cleanup short."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
