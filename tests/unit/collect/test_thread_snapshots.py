"""Snapshots of real threads, and what of taking them is inside the window that they open."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from labctl.base.tuning import Level
from labctl.collect.collector import Edge, ThreadRef
from labctl.collect.table import COLLECTORS
from labctl.collect.threads.host_threads import THREADS
from labctl.collect.threads.thread_snapshots import OWN, ThreadSnapshots


def _ref(tid: int, role: str = OWN) -> ThreadRef:
    return ThreadRef(pid=os.getpid(), tid=tid, role=role, index=0)


def _burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _ran_ns(taken: Mapping[str, Any]) -> int:
    return sum(int(row["schedstat"].split()[0]) for row in taken["threads"])


class _Order:
    """Files of schedstat in the order in which they are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[str] = []
        read_text = Path.read_text

        def noted(path: Path, *args: Any, **options: Any) -> str:
            if path.name == "schedstat":
                self.read.append(path.parent.name)
            elif path == Path("/proc/stat"):
                self.read.append("host")
            else:
                self.read.append("rest")
            return read_text(path, *args, **options)

        monkeypatch.setattr(Path, "read_text", noted)

    def taken(self) -> list[str]:
        found, self.read = self.read, []
        return found


def test_a_snapshot_holds_what_the_kernel_says_of_a_thread() -> None:
    stop = threading.Event()
    started = threading.Thread(target=stop.wait)
    started.start()
    assert started.native_id is not None
    refs = [_ref(os.getpid()), _ref(started.native_id)]
    snapshot = ThreadSnapshots(lambda: refs)
    both = snapshot(Edge.OPENS)
    stop.set()
    started.join()
    # Python's thread has ended before the kernel's has.
    deadline = time.monotonic() + 10
    while Path(f"/proc/self/task/{started.native_id}").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    one = snapshot(Edge.CLOSES)
    assert [row["tid"] for row in both["threads"]] == [ref.tid for ref in refs]
    assert [row["tid"] for row in one["threads"]] == [os.getpid()]
    assert both["processes"].keys() == {str(os.getpid())}
    assert all(
        line.startswith(("cpu", "ctxt", "procs")) for line in both["proc_stat"].split("\n") if line
    )
    assert one["monotonic_ns"] > both["monotonic_ns"]


def test_a_thread_born_in_the_window_is_in_the_second_snapshot() -> None:
    found = [_ref(os.getpid())]
    snapshot = ThreadSnapshots(lambda: found)
    snapshot(Edge.OPENS)
    stop = threading.Event()
    born = threading.Thread(target=stop.wait)
    born.start()
    try:
        assert born.native_id is not None
        found.append(_ref(born.native_id, "vcpu"))
        assert [row["tid"] for row in snapshot(Edge.CLOSES)["threads"]] == [
            os.getpid(),
            born.native_id,
        ]
    finally:
        stop.set()
        born.join()


def test_the_counts_stand_next_to_the_window_and_the_readers_own_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    own, vcpu = (thread.native_id for thread in threads)
    assert own is not None
    assert vcpu is not None
    reader = threading.get_native_id()
    refs = [_ref(reader), _ref(own), _ref(vcpu, "vcpu")]
    snapshot = ThreadSnapshots(lambda: refs)
    try:
        order = _Order(monkeypatch)
        snapshot(Edge.OPENS)
        before = order.taken()
        snapshot(Edge.CLOSES)
        after = order.taken()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    edge = [str(reader), str(own), "host", str(vcpu)]
    assert before[-4:] == edge[::-1]
    assert after[:4] == edge
    assert set(before[:-4]) == set(after[4:]) == {"rest"}


def test_what_finding_threads_takes_is_outside_of_the_window() -> None:
    def find() -> Sequence[ThreadRef]:
        _burn(0.05)
        return [_ref(threading.get_native_id())]

    snapshot = ThreadSnapshots(find)
    before, after = snapshot(Edge.OPENS), snapshot(Edge.CLOSES)
    assert _ran_ns(after) - _ran_ns(before) < 20e6


def test_what_the_reader_ran_since_the_last_tick_is_counted() -> None:
    snapshot = ThreadSnapshots(lambda: [_ref(threading.get_native_id())])
    # Less than a tick each: the kernel's file alone would show nothing of most.
    for _ in range(20):
        before = snapshot(Edge.OPENS)
        _burn(0.0005)
        assert _ran_ns(snapshot(Edge.CLOSES)) - _ran_ns(before) >= 500_000


def test_threads_are_read_next_to_the_window() -> None:
    at_counters = [found for found in COLLECTORS if found.level is Level.COUNTERS]
    assert at_counters[0] is THREADS
