"""What differs between two domain XMLs."""

from __future__ import annotations

import pytest

from labctl.base.errors import UsageError
from labctl.base.xmldiff import XmlChange, changes, children, parse, unified

PINNED = """<domain>
  <vcpu>2</vcpu>
  <cputune>
    <vcpupin vcpu="0" cpuset="1"/>
    <vcpupin vcpu="1" cpuset="2"/>
  </cputune>
</domain>"""


def inside(text: str) -> str:
    return f"<domain>{text}</domain>"


def test_layout_comments_and_order_are_no_changes() -> None:
    other = """<domain><!-- mine --><cputune>
      <vcpupin cpuset='2' vcpu='1'/><vcpupin cpuset='1' vcpu='0'/>
    </cputune><vcpu> 2 </vcpu></domain>"""
    assert changes(PINNED, other) == []


def test_a_processing_instruction_is_no_part_of_a_domain() -> None:
    root = parse("<domain><?planted words?><cputune><?planted words?></cputune></domain>")
    assert [element.tag for element in root.iter()] == ["domain", "cputune"]


def test_a_changed_attribute_is_named_with_what_tells_its_element_from_its_siblings() -> None:
    after = PINNED.replace('vcpu="1" cpuset="2"', 'vcpu="1" cpuset="3"')
    assert changes(PINNED, after) == [XmlChange("cputune/vcpupin[@vcpu='1']/@cpuset", "2", "3")]


def test_what_is_new_or_gone_has_no_value_on_the_other_side() -> None:
    assert changes(inside("<vcpu>2</vcpu>"), PINNED) == [
        XmlChange("cputune/vcpupin[@vcpu='0']/@cpuset", None, "1"),
        XmlChange("cputune/vcpupin[@vcpu='1']/@cpuset", None, "2"),
    ]
    assert [c.after for c in changes(PINNED, inside("<vcpu>2</vcpu>"))] == [None, None]


def test_a_changed_text_is_one_change() -> None:
    before, after = (inside(f"<iothreads>{n}</iothreads>") for n in (1, 2))
    assert changes(before, after) == [XmlChange("iothreads", "1", "2")]


def test_an_element_that_says_all_by_being_there_is_a_change() -> None:
    before = inside("<memoryBacking/>")
    after = inside("<memoryBacking><locked/></memoryBacking>")
    assert XmlChange("memoryBacking/locked", None, "") in changes(before, after)
    assert changes(inside("<a><timer name='x'/></a>"), inside("<a/>"))[0] == XmlChange(
        "a/timer[@name='x']", "", None
    )


def test_disks_are_told_apart_by_their_targets() -> None:
    disk = "<disk><driver cache='{}'/><target dev='{}'/></disk>"
    before = inside(disk.format("none", "vda") + disk.format("none", "vdb"))
    after = inside(disk.format("writeback", "vdb") + disk.format("none", "vda"))
    assert changes(before, after) == [
        XmlChange("disk[target/@dev='vdb']/driver/@cache", "none", "writeback")
    ]


def test_elements_that_nothing_tells_apart_are_counted() -> None:
    port = "<controller type='pci' model='pcie-root-port'/>"
    assert changes(inside(port), inside(port * 2)) == [
        XmlChange("controller[@type='pci'][2]/@model", None, "pcie-root-port")
    ]


def test_every_path_is_an_xpath_that_finds_the_value() -> None:
    found = changes(inside(""), PINNED + "")
    root = parse(PINNED)
    for change in found:
        (value,) = root.xpath(change.path)
        assert str(getattr(value, "text", value)) == change.after


def test_an_apostrophe_in_an_identity_keeps_the_path_an_xpath() -> None:
    xml = inside("""<disk><target dev="it's"/><x a="1"/></disk>""")
    (path,) = [c.path for c in changes(inside(""), xml) if c.path.endswith("@a")]
    assert parse(xml).xpath(path) == ["1"]


def test_prefixed_elements_keep_their_prefix() -> None:
    xml = "<domain xmlns:q='urn:q'><q:commandline><q:arg value='-s'/></q:commandline></domain>"
    assert changes(inside(""), xml)[0].path == "q:commandline/q:arg/@value"


def test_children_are_found_by_the_steps_of_paths() -> None:
    steps = children(parse(PINNED))
    assert list(steps) == ["vcpu", "cputune"]
    assert list(children(steps["cputune"])) == ["vcpupin[@vcpu='0']", "vcpupin[@vcpu='1']"]


def test_a_unified_diff_shows_only_what_differs_with_context() -> None:
    after = PINNED.replace('cpuset="2"', 'cpuset="3"')
    text = unified(PINNED, after, ("a", "b"))
    assert text.splitlines()[:2] == ["--- a", "+++ b"]
    assert '-    <vcpupin vcpu="1" cpuset="2"/>' in text
    assert '+    <vcpupin vcpu="1" cpuset="3"/>' in text
    assert unified(PINNED, PINNED.replace("\n", "").replace("  ", ""), ("a", "b")) == ""


@pytest.mark.parametrize("broken", ["", "<domain>", "no xml", "<a/><b/>"])
def test_what_is_no_xml_is_refused_with_its_line(broken: str) -> None:
    with pytest.raises(UsageError, match="is not XML: line"):
        changes(broken, PINNED)


def test_an_entity_is_not_read_from_elsewhere(tmp_path: object) -> None:
    xml = '<!DOCTYPE d [<!ENTITY e SYSTEM "/etc/hostname">]><domain><name>&e;</name></domain>'
    assert all(c.after in ("", None) for c in changes("<domain/>", xml))
