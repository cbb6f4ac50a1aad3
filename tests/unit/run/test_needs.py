"""What tunings of the catalogue need and a host lacks: each with its remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.base.errors import HostError, UsageError
from labctl.run.planning.host import check_memory
from labctl.run.planning.requirements import Offers, refuse, unmet
from labctl.study.tunings import load_tuning

GIB = 1024**3
HOST = Offers(
    accelerator="tcg",
    cpus=4,
    nodes=1,
    smt=False,
    vcpus=2,
    guest_memory_bytes=GIB,
    memory_bytes=4 * GIB,
    versions={"libvirt": "9.0.0", "qemu": "7.2.22", "kernel": "6.1.0-1"},
    cpu_flags=frozenset({"pdpe1gb"}),
    huge_pages={"2M": 0, "1G": 0},
)


def lacking(name: str, host: Offers) -> list[str]:
    return [problem.text for problem in unmet(load_tuning(name), host)]


def test_huge_pages_can_be_made_of_free_memory() -> None:
    assert lacking("hugepages-2M", HOST) == []
    assert lacking("hugepages-1G", HOST) == []


def test_huge_pages_that_are_free_already_need_no_other_memory() -> None:
    reserved = replace(HOST, memory_bytes=0, huge_pages={"2M": 512})
    assert lacking("memory-hugetlb", reserved) == []


def test_huge_pages_that_memory_can_not_hold_are_refused_with_a_remedy() -> None:
    full = replace(HOST, memory_bytes=GIB, huge_pages={"2M": 511})
    tuning = load_tuning("hugepages-2M")
    with pytest.raises(HostError, match="it needs 512 huge pages of 2M") as caught:
        refuse(tuning, unmet(tuning, full))
    assert "hugepagesz=2M hugepages=512" in (caught.value.hint or "")


def test_a_size_that_the_kernel_has_not_is_named() -> None:
    assert lacking("hugepages-1G", replace(HOST, huge_pages={"2M": 512})) == [
        "it needs huge pages of 1G, which this host's CPU or kernel doesn't have"
    ]


def test_a_guest_smaller_than_a_page_is_refused() -> None:
    assert lacking("hugepages-1G", replace(HOST, guest_memory_bytes=GIB // 4)) == [
        "it needs a guest with at least the 1G of one huge page, this one has 256 MiB"
    ]


def test_a_guest_that_does_not_fill_its_last_page_is_refused() -> None:
    """QEMU 10: memory size must be multiple of."""
    assert lacking("hugepages-2M", replace(HOST, guest_memory_bytes=GIB + 2**20)) == [
        "it needs a guest with whole huge pages of 2M, this one has 1025 MiB"
    ]


def test_mapped_iothreads_are_refused_by_name_with_what_to_install() -> None:
    tuning = load_tuning("iothreads-4-mapped")
    with pytest.raises(HostError) as caught:
        refuse(tuning, unmet(tuning, HOST))
    assert caught.value.message == (
        "this host can't run 'iothreads-4-mapped': it needs libvirt 10.0, this host has 9.0.0; "
        "it needs QEMU 9.0, this host has 7.2.22"
    )
    assert "Install libvirt 10.0 or newer." in (caught.value.hint or "")


def test_newer_versions_have_mapped_iothreads() -> None:
    newer = replace(HOST, versions={"libvirt": "10.0.0", "qemu": "9.0.2"})
    assert lacking("iothreads-4-mapped", newer) == []


def test_a_guest_that_is_larger_than_the_host_is_refused_when_it_is_planned() -> None:
    check_memory(1024, 2 * 1024**3)
    with pytest.raises(UsageError, match=r"999,999 MiB doesn't fit .* has 2,048 MiB") as caught:
        check_memory(999_999, 2 * 1024**3)
    assert "1,792 MiB at most" in str(caught.value.hint)
