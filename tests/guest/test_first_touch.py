"""Faults on the memory of a real guest under KVM, be it firmware of a few bytes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from labctl.run.first_touch import KVM, MINOR, change, faults_so_far
from tests.guest.conftest import wait_for
from tests.guest.firmware import started

pytestmark = pytest.mark.kvm

PAGES = 0x90
# xor ax, ax; here: mov ds, ax; mov byte [0], 1; add ax, 0x100; cmp ax, 0x9000; jb here; jmp 0
TOUCHING = bytes.fromhex("31c0 8ed8 c606000001 050001 3d0090 72f1 ebed")
"""Writes to each page of the first 576 KiB, again and again."""

SMALL_PAGES = (
    *("-object", "memory-backend-memfd,id=memory,size=64M,share=on"),
    *("-machine", "memory-backend=memory"),
)
"""Of a guest whose anonymous memory would come in huge pages, two megabytes a fault."""


def test_a_guest_has_its_faults_when_it_first_touches_memory_and_then_no_more(
    tmp_path: Path,
) -> None:
    with started(tmp_path, TOUCHING, "-S", *SMALL_PAGES) as guest:
        start = faults_so_far(guest.bench)
        assert start.keys() == {MINOR, KVM}
        guest.ask("cont")

        def touched() -> bool:
            return change(start, faults_so_far(guest.bench))[MINOR] >= PAGES

        wait_for(touched, 30, "a guest that touches its memory")
        time.sleep(0.5)
        warm = faults_so_far(guest.bench)
        time.sleep(0.5)
        assert change(warm, faults_so_far(guest.bench))[MINOR] < PAGES / 10
