"""A neighbour's threads move among its CPUs, whatever its domain asked for."""

from __future__ import annotations

from labctl.base.xmldiff import parse
from labctl.domain.session import confined_to

PINNED = """\
<domain><name>a</name><vcpu placement='static' cpuset='3'>1</vcpu>
  <cputune><shares>512</shares><vcpupin vcpu='0' cpuset='3'/><emulatorpin cpuset='0'/>
    <iothreadpin iothread='1' cpuset='0'/><vcpusched vcpus='0' scheduler='fifo' priority='1'/>
    <iothreadsched iothreads='1' scheduler='rr' priority='1'/><emulatorsched scheduler='batch'/>
  </cputune></domain>
"""


def test_pins_and_policies_go_and_what_weighs_the_guest_stays() -> None:
    root = parse(confined_to(PINNED, frozenset({0, 1, 5})))
    vcpu = root.find("vcpu")
    assert vcpu is not None
    assert (vcpu.get("cpuset"), vcpu.text) == ("0-1,5", "1")
    assert [element.tag for element in root.iterfind("cputune/*")] == ["shares"]


def test_nothing_is_left_of_pins_alone() -> None:
    xml = "<domain><vcpu>2</vcpu><cputune><emulatorpin cpuset='0'/></cputune></domain>"
    assert parse(confined_to(xml, frozenset({1}))).find("cputune") is None
