"""A guest's huge pages: as its XML asks for them, and as the kernel shows them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.base.tuning import Memory, Pin, Strategy
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.domain.readback import Pages, default_page, huge_page_kib, memory_problems, pages_asked
from labctl.domain.render import render
from labctl.study.tunings import load_tuning
from tests.unit.domain import hosts

MIB = 1024 * 1024

SMAPS = Path(__file__).parent / "fixtures" / "smaps-linux-6.18-one-of-two-huge-pages.txt"


def test_only_pages_that_a_process_really_has_are_counted() -> None:
    assert huge_page_kib(SMAPS.read_text()) == {2048: 2048}


@pytest.mark.parametrize("text", ["", "garbage\n", "Private_Hugetlb: much\n"])
def test_a_text_without_them_has_none(text: str) -> None:
    assert huge_page_kib(text) == {}


def test_memory_that_is_not_in_huge_pages_is_a_problem() -> None:
    asked = [Pages("2M", 0, 32 * MIB), Pages("2M", 1, 32 * MIB)]
    assert memory_problems(asked, os.getpid()) == [
        "0 MiB of the guest's memory are in huge pages of 2M, expected 64"
    ]
    assert memory_problems([], os.getpid()) == []


def test_a_qemu_that_has_ended_has_no_memory_to_read() -> None:
    with pytest.raises(BrokenError, match="smaps can't be read"):
        memory_problems([Pages("2M", None, MIB)], 2**22 + 1)


def domain(backing: str, rest: str = "") -> str:
    return f"""<domain type='kvm'><memory unit='MiB'>1024</memory>
    <memoryBacking>{backing}</memoryBacking>{rest}</domain>"""


TWO_CELLS = """<cpu><numa>
  <cell id='0' cpus='0' memory='768' unit='MiB'/><cell id='1' cpus='1' memory='256' unit='MiB'/>
</numa></cpu>"""


@pytest.mark.parametrize(
    ("xml", "asked"),
    [
        (domain("<locked/>"), []),
        (domain("<hugepages/>"), [Pages("2M", None, 1024 * MIB)]),
        (
            domain("<hugepages><page size='1' unit='GiB'/></hugepages>"),
            [Pages("1G", None, 1024 * MIB)],
        ),
        (  # no host has them: libvirt says so
            domain("<hugepages><page size='64' unit='KiB'/></hugepages>"),
            [],
        ),
        (
            domain("<hugepages/>", "<numatune><memory mode='strict' nodeset='1'/></numatune>"),
            [Pages("2M", 1, 1024 * MIB)],
        ),
        (
            domain(
                "<hugepages/>", "<numatune><memory mode='interleave' nodeset='0-1'/></numatune>"
            ),
            [Pages("2M", 0, 512 * MIB), Pages("2M", 1, 512 * MIB)],
        ),
        (
            domain(
                "<hugepages/>",
                f"{TWO_CELLS}<numatune><memnode cellid='1' mode='strict' nodeset='3'/></numatune>",
            ),
            [Pages("2M", None, 768 * MIB), Pages("2M", 3, 256 * MIB)],
        ),
        (  # one cell in pages of its own, the other in everybody's
            domain(
                "<hugepages><page size='2048' unit='KiB'/>"
                "<page size='1048576' unit='KiB' nodeset='0'/></hugepages>",
                TWO_CELLS,
            ),
            [Pages("1G", None, 768 * MIB), Pages("2M", None, 256 * MIB)],
        ),
        (  # the other cell is in plain memory
            domain("<hugepages><page size='2048' unit='KiB' nodeset='1'/></hugepages>", TWO_CELLS),
            [Pages("2M", None, 256 * MIB)],
        ),
        (  # memory that was plugged in
            domain(
                "<hugepages/>",
                f"""{TWO_CELLS}<devices><memory model='dimm'>
                <target><size unit='MiB'>128</size><node>1</node></target></memory></devices>""",
            ),
            [Pages("2M", None, (1024 + 128) * MIB)],
        ),
    ],
)
def test_every_way_to_ask_for_huge_pages_is_read(xml: str, asked: list[Pages]) -> None:
    assert pages_asked(xml, "2M") == asked


def test_what_a_tuning_asks_for_is_read_from_the_xml_that_it_becomes() -> None:
    two_sockets = hosts.topology([[0], [1], [2], [3]], packages=2)
    plan = pin_plan(two_sockets, 2, 0, Strategy.SPREAD)

    def asked(**memory: Any) -> dict[int | None, int]:
        tuning = replace(
            load_tuning("hugepages-2M"),
            pin=Pin(vcpus="plan", strategy=Strategy.SPREAD),
            memory=Memory(hugepages="2M", **memory),
        )
        xml = render(hosts.request(tuning, plan=plan, vcpus=2, memory_mib=101))
        return {pages.node: pages.size_bytes for pages in pages_asked(xml, None)}

    first, second = plan.vcpu_nodes
    assert asked() == {None: 101 * MIB}
    assert sum(asked(numa="strict").values()) == 101 * MIB
    assert asked(numa="strict", cells=True) == {first: 51 * MIB, second: 50 * MIB}


@pytest.mark.parametrize(
    ("meminfo", "size"),
    [
        ("MemTotal: 1 kB\nHugepagesize:       2048 kB\n", "2M"),
        ("Hugepagesize:    1048576 kB\n", "1G"),
        ("MemTotal: 1 kB\n", None),
    ],
)
def test_the_kernels_default_size_is_what_a_domain_gets_that_names_none(
    meminfo: str, size: str | None
) -> None:
    assert default_page(meminfo) == size
    assert [pages.size for pages in pages_asked(domain("<hugepages/>"), size)] == (
        [size] if size else []
    )
