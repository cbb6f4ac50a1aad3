"""Faulty XML is refused before libvirt sees it, and the fault is named where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import HostError, UsageError
from labctl.domain import schema
from labctl.domain.render import render
from labctl.study.tunings import load_tuning

from . import hosts


@pytest.fixture
def xml() -> str:
    try:
        schema.schema_path()
    except HostError as error:
        pytest.skip(f"libvirt's schemas are not installed: {error.message}")
    return render(hosts.request(load_tuning("pinned+fifo+iothreads")))


def test_what_we_render_is_valid(xml: str) -> None:
    schema.validate(xml)


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        ('scheduler="fifo"', 'scheduler="fast"', "<vcpusched>"),
        ("<apic/>", "<apicc/>", "<apicc>"),
        ('type="raw"', 'tipe="raw"', "<driver>, its attribute tipe='raw'"),
        ('bus="virtio"', 'bus="warp"', "<target>, its attribute bus='warp'"),
        ("1024</memory>", "much</memory>", "<memory> (Type unsignedLong"),
    ],
)
def test_line_and_element_of_a_fault_are_named(
    xml: str, good: str, bad: str, complaint: str
) -> None:
    line = next(n for n, text in enumerate(xml.splitlines(), 1) if good in text)
    with pytest.raises(UsageError) as caught:
        schema.validate(xml.replace(good, bad, 1))
    assert f"line {line}: {complaint}" in caught.value.message


def test_two_faults_at_once_are_still_refused(xml: str) -> None:
    with pytest.raises(UsageError, match="is not valid: .+"):
        schema.validate(xml.replace("<apic/>", "<apicc/>").replace("<acpi/>", "<acpii/>"))


def test_text_that_is_no_xml_is_refused_with_its_line() -> None:
    with pytest.raises(UsageError, match=r"tuning 'x' is not XML: line 2"):
        schema.validate("<domain>\n<name></domain>", what="tuning 'x'")


def test_missing_schemas_are_the_hosts_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "SCHEMA_FOLDERS", (tmp_path,))
    with pytest.raises(HostError, match=r"domain\.rng is in none of") as caught:
        schema.validate("<domain/>")
    assert "labctl setup" in (caught.value.hint or "")
