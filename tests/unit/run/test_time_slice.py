"""Time slices of threads, by the kernel of the machine that runs the tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from labctl.base.errors import BrokenError
from labctl.base.placement import known_slice_ns, set_slice, slice_ns
from labctl.run.guests import bench
from labctl.run.guests.bench import set_slices

NO_SUCH_THREAD = (1 << 22) + 1  # beyond the kernel's limit on ids (PID_MAX_LIMIT)


@pytest.fixture
def thread() -> Iterator[int]:
    """A thread of one's own, which is gone with what was set."""
    over = threading.Event()
    waiting = threading.Thread(target=over.wait)
    waiting.start()
    assert waiting.native_id is not None
    if known_slice_ns(waiting.native_id) is None:
        over.set()
        pytest.skip("this kernel has no slice of each thread's (Linux 6.12)")
    yield waiting.native_id
    over.set()
    waiting.join()


@pytest.mark.parametrize("wanted_ms", [0.1, 3, 100])
def test_a_slice_is_what_was_set(thread: int, wanted_ms: float) -> None:
    set_slice(thread, round(wanted_ms * 1e6))
    assert slice_ns(thread) == wanted_ms * 1e6


def test_the_kernel_keeps_a_slice_within_its_limits(thread: int) -> None:
    set_slice(thread, 1)
    assert slice_ns(thread) == 100_000


def test_other_threads_keep_theirs(thread: int) -> None:
    before = slice_ns(threading.get_native_id())
    set_slice(thread, 20_000_000)
    assert slice_ns(threading.get_native_id()) == before


def test_a_kernel_that_takes_a_slice_and_does_nothing_is_found_out(
    thread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before Linux 6.12."""
    set_slices([thread], 3_000_000)
    assert slice_ns(thread) == 3_000_000
    monkeypatch.setattr(bench, "set_slice", lambda tid, wanted_ns: None)
    with pytest.raises(BrokenError, match=r"expected a time slice of 20 ms, got 3 ms"):
        set_slices([thread], 20_000_000)


def test_of_a_thread_that_has_ended_none_is_known() -> None:
    assert known_slice_ns(NO_SUCH_THREAD) is None
    with pytest.raises(ProcessLookupError):
        slice_ns(NO_SUCH_THREAD)
    with pytest.raises(ProcessLookupError):
        set_slice(NO_SUCH_THREAD, 3_000_000)
