"""Find the differences between two domain XMLs, as paths and as text. Pure.

White space, comments and the order of elements make no difference, as for libvirt. Elements of one
kind are told apart as libvirt does it (a vcpupin by its vCPU).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from lxml import etree

from labctl.base.errors import UsageError

_IDENTITY: dict[str, tuple[str, ...]] = {
    "bank": ("@level", "@type", "@id"),
    "boot": ("@dev",),
    "cell": ("@id",),
    "channel": ("target/@name",),
    "controller": ("@type", "@index"),
    "disk": ("target/@dev",),
    "entry": ("@name",),
    "feature": ("@name",),
    "filesystem": ("target/@dir",),
    "input": ("@type", "@bus"),
    "iothread": ("@id",),
    "iothreadpin": ("@iothread",),
    "iothreadsched": ("@iothreads",),
    "memnode": ("@cellid",),
    "page": ("@size",),
    "sibling": ("@id",),
    "timer": ("@name",),
    "vcpu": ("@id",),
    "vcpupin": ("@vcpu",),
    "vcpusched": ("@vcpus",),
}
"""Element to the attributes, its own or a child's, that identify one among its kind."""

_UNITS: dict[str, int] = {
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    **{
        letter + rest: int(base**power)
        for power, letter in enumerate("kmgtpe", 1)
        for rest, base in (("", 1024), ("ib", 1024), ("b", 1000))
    },
}
"""Units of memory in lower case, in bytes: libvirt accepts any case
(https://libvirt.org/formatdomain.html#memory-allocation; virScaleInteger in src/util/virutil.c)."""

_CONTEXT_LINES = 2


@dataclass(frozen=True, slots=True)
class XmlChange:
    """Describe one difference.

    `path`: an XPath from below the root to an element's text (`iothreads`) or an attribute
    (`cputune/vcpupin[@vcpu='0']/@cpuset`). `before` and `after`: the value there; "" for an element
    whose presence is its whole meaning (`memoryBacking/locked`), None if it is missing.
    """

    path: str
    before: str | None
    after: str | None


def changes(before: str, after: str) -> list[XmlChange]:
    """Return all differences between two XML documents, in document order; [] if there are none.

    Raises UsageError if one is not XML.
    """
    old, new = (dict(_facts(parse(xml), "")) for xml in (before, after))
    return [
        XmlChange(path, old.get(path), new.get(path))
        for path in dict.fromkeys([*old, *new])
        if old.get(path) != new.get(path)
    ]


def unified(before: str, after: str, names: tuple[str, str]) -> str:
    """Return both documents as one unified diff, evenly indented; "" if only layout differs."""
    lines = difflib.unified_diff(
        _lines(before), _lines(after), *names, lineterm="", n=_CONTEXT_LINES
    )
    return "\n".join(lines)


def unit_bytes(element: etree._Element) -> int:
    """Return the unit of an element's sizes, in bytes; the default is KiB. Raises KeyError for one
    that libvirt does not know."""
    return _UNITS[(element.get("unit") or "KiB").lower()]


def parse(xml: str | bytes, what: str = "the domain XML") -> etree._Element:
    """Return the root element, without comments, processing instructions and white space between
    elements: they do not describe the domain, and must not appear in advice.

    Entities are not expanded, so that a foreign file cannot make labctl read another. Raises
    UsageError naming the line.
    """
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        remove_blank_text=True,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        return etree.fromstring(xml.encode() if isinstance(xml, str) else xml, parser)
    except etree.XMLSyntaxError as error:
        raise UsageError(f"{what} is not XML: line {error.lineno}: {error.msg}") from error


def children(element: etree._Element) -> dict[str, etree._Element]:
    """Return child elements by their step of a path: tag, identity, and a number if that is not
    enough (`interface[2]`)."""
    found: dict[str, etree._Element] = {}
    for child in element.iterchildren(etree.Element):
        step = _step(child)
        number = 1
        while (numbered := step if number == 1 else f"{step}[{number}]") in found:
            number += 1
        found[numbered] = child
    return found


def tag_of(element: etree._Element) -> str:
    """Return its tag, with the prefix that its document uses."""
    local = etree.QName(element).localname
    return f"{element.prefix}:{local}" if element.prefix else local


def text_of(element: etree._Element) -> str:
    """Return its own text without the white space around it."""
    return (element.text or "").strip()


def _facts(element: etree._Element, path: str) -> Iterator[tuple[str, str]]:
    inner = children(element)
    identity = _identity(element)
    attributes = {f"@{key}": str(value) for key, value in element.attrib.items()}
    attributes = {key: value for key, value in attributes.items() if key not in identity}
    for key, value in attributes.items():
        yield _joined(path, key), value
    text = text_of(element)
    if path and (text or not (attributes or inner)):
        yield path, text
    for step, child in inner.items():
        yield from _facts(child, _joined(path, step))


def _joined(path: str, step: str) -> str:
    return f"{path}/{step}" if path else step


def _step(element: etree._Element) -> str:
    identity = _identity(element).items()
    return tag_of(element) + "".join(f"[{key}={_quoted(value)}]" for key, value in identity)


def _identity(element: etree._Element) -> dict[str, str]:
    """Map `@attribute` or `child/@attribute` to its value."""
    found = {}
    for key in _IDENTITY.get(tag_of(element), ()):
        child, _, attribute = key.rpartition("@")
        owner = element.find(child.rstrip("/")) if child else element
        value = owner.get(attribute) if owner is not None else None
        if value is not None:
            found[key] = str(value)
    return found


def _quoted(value: str) -> str:
    return f'"{value}"' if "'" in value else f"'{value}'"


def _lines(xml: str) -> list[str]:
    root = parse(xml)
    etree.indent(root)
    return etree.tostring(root, encoding="unicode").splitlines()
