"""Validate domain XML against libvirt's own RelaxNG schema, before libvirt sees it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from lxml import etree

from labctl.base.errors import HostError, UsageError
from labctl.base.hostfacts import is_older
from labctl.base.tuning import Tuning

SCHEMA_FOLDERS = (Path("/usr/share/libvirt/schemas"), Path("/usr/local/share/libvirt/schemas"))


def schema_path() -> Path:
    """Return libvirt's domain.rng; raises HostError when it is not installed."""
    for folder in SCHEMA_FOLDERS:
        if (path := folder / "domain.rng").is_file():
            return path
    raise HostError(
        f"libvirt's schema domain.rng is in none of {', '.join(map(str, SCHEMA_FOLDERS))}",
        hint="Run 'labctl setup', which installs libvirt.",
    )


def covers(tuning: Tuning, installed: object) -> bool:
    """Return whether the schema of libvirt `installed` ("9.0.0"; no text: unknown, so assumed)
    covers all that the tuning requests."""
    needed = tuning.requires.libvirt
    return needed is None or not isinstance(installed, str) or not is_older(installed, needed)


def validate(xml: str, *, what: str = "the domain XML") -> None:
    """Check that `xml` is a valid domain; raise UsageError naming line and element."""
    try:
        document = etree.fromstring(xml.encode()).getroottree()
    except etree.XMLSyntaxError as error:
        raise UsageError(f"{what} is not XML: line {error.lineno}: {error.msg}") from error
    schema = _schema(schema_path())
    if schema.validate(document):
        return
    raise UsageError(
        f"{what} is not valid: {_complaint(schema, document)}",
        hint="Check the tuning, templates/domain.xml.j2 and its parts.",
    )


@cache
def _schema(path: Path) -> etree.RelaxNG:
    return etree.RelaxNG(etree.parse(str(path)))


def _complaint(schema: etree.RelaxNG, document: etree._ElementTree) -> str:
    """Return the place of the fault. libxml2 itself mostly names only the outermost element around
    it."""
    messages = [(entry.line, entry.message.strip()) for entry in schema.error_log]
    said = [(line, message) for line, message in messages if line > 1]
    culprit = _culprit(schema, document)
    if culprit is not None:
        element, attribute = culprit
        about = f"<{etree.QName(element).localname}>"
        if attribute is not None:
            about += f", its attribute {attribute}={element.attrib[attribute]!r}"
        detail = [message for line, message in said if line == element.sourceline]
        return f"line {element.sourceline}: {about}{f' ({detail[0]})' if detail else ''}"
    if said:
        return "; ".join(dict.fromkeys(f"line {line}: {message}" for line, message in said))
    return "; ".join(message for _, message in messages) or "libxml2 gives no reason"


def _culprit(
    schema: etree.RelaxNG, document: etree._ElementTree
) -> tuple[etree._Element, str | None] | None:
    """Return the innermost element, and its attribute, without which the document would be
    valid."""
    for element in reversed(list(document.getroot().iterdescendants(etree.Element))):
        for attribute in sorted(element.attrib):
            kept = dict(element.attrib)
            del element.attrib[attribute]
            valid = schema.validate(document)
            element.attrib.clear()
            element.attrib.update(kept)
            if valid:
                return element, str(attribute)
        parent = element.getparent()
        assert parent is not None
        at = parent.index(element)
        parent.remove(element)
        valid = schema.validate(document)
        parent.insert(at, element)
        if valid:
            return element, None
    return None
