"""Faults on a guest's memory: those of a thread of our own stand for a vCPU's."""

from __future__ import annotations

import json
import mmap
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.run.trials.warmup import KVM, MINOR, change, faults_so_far
from tests.unit.collect.trials import KVM as KVM_SNAPSHOTS
from tests.unit.collect.trials import recorded

PAGES = 2000


def bench(*tids: int, **counters: Any) -> Any:
    return SimpleNamespace(vcpu_tids=tids, counters=lambda: counters)


def test_what_a_thread_touches_first_is_its_own_faults_and_no_others() -> None:
    with mmap.mmap(-1, 2 * PAGES * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)

        def touch(first: int) -> None:
            for page in range(first, first + PAGES):
                memory[page * mmap.PAGESIZE] = 1

        vcpu = bench(threading.get_native_id())
        start = faults_so_far(vcpu)
        touch(0)
        touched = faults_so_far(vcpu)
        another = threading.Thread(target=touch, args=(PAGES,))
        another.start()
        another.join()
        touch(0)
        end = faults_so_far(vcpu)
    assert change(start, touched)[MINOR] >= PAGES
    assert change(touched, end)[MINOR] < PAGES / 10


def test_under_kvm_what_it_fixed_is_told_beside() -> None:
    counters = json.loads(recorded(KVM_SNAPSHOTS))["before"]
    found = faults_so_far(bench(threading.get_native_id(), **counters))
    assert found.keys() == {MINOR, KVM}


def test_natively_there_is_no_guest_memory() -> None:
    assert faults_so_far(bench()) == {}


def test_a_vcpu_that_is_gone_is_an_error() -> None:
    with pytest.raises(BrokenError, match="vCPU thread 4194305 is gone"):
        faults_so_far(bench(4194305))


def test_what_is_told_no_more_is_not_counted() -> None:
    assert change({MINOR: 1, KVM: 5}, {MINOR: 3}) == {MINOR: 2}
