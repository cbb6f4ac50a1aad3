"""Faults on the memory of a real guest under KVM, be it firmware of a few bytes."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.run.trials.warmup import KVM, MINOR, change, faults_so_far
from tests.guest.conftest import wait_for
from tests.guest.firmware import started

pytestmark = pytest.mark.kvm

PAGES = 0x90
# xor ax, ax; here: mov ds, ax; mov byte [0], 1; add ax, 0x100; cmp ax, 0x9000; jb here; jmp 0
TOUCHING = bytes.fromhex("31c0 8ed8 c606000001 050001 3d0090 72f1 ebed")
"""Writes to each page of the first 576 KiB, again and again."""

PR_SET_THP_DISABLE = 41  # include/uapi/linux/prctl.h

WINDOWS = 6
"""Half seconds that are looked at. The kernel's NUMA balancing takes a guest's pages away at most
once a second, to see who uses them (scan_period_min_ms), so that it spares some."""


@pytest.fixture
def _small_pages() -> Iterator[None]:
    """What is started gets no transparent huge pages, though QEMU asks for them: one fault would
    serve 512 first touches."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        assert prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0


@pytest.mark.usefixtures("_small_pages")
def test_a_guest_has_its_faults_when_it_first_touches_memory_and_then_no_more(
    tmp_path: Path,
) -> None:
    with started(tmp_path, TOUCHING, "-S") as guest:
        start = faults_so_far(guest.bench)
        assert start.keys() == {MINOR, KVM}
        guest.ask("cont")

        def touched() -> bool:
            return change(start, faults_so_far(guest.bench))[MINOR] >= PAGES

        wait_for(touched, 30, "a guest that touches its memory")
        more = []
        for _ in range(WINDOWS):
            warm = faults_so_far(guest.bench)
            time.sleep(0.5)
            more.append(change(warm, faults_so_far(guest.bench))[MINOR])
        assert min(more) < PAGES / 10
