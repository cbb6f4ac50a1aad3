"""Rebuild XML from a table of known elements: the machinery of labctl's allow-list. Pure.

Foreign XML is not filtered: a new tree is made, element by element, from what the table names.
Anything else is missing from it, whatever libvirt may support in the future.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lxml import etree

from labctl.base.cpus import MOST_CPUS
from labctl.base.xmldiff import tag_of, text_of

MOST_PATH: Final = 4096
"""Bytes of a path, as the kernel's PATH_MAX."""

_MOST_SHOWN = 60

Grammar = Callable[[str], str | None]
"""Function from a value to why it is refused; None for one that is copied."""


class Words(frozenset[str]):
    """Allow known values. An unknown one is left out, not refused: the guest runs with libvirt's
    default."""


@dataclass(frozen=True, slots=True)
class Element:
    """Hold what is copied of an element. `only`: the element is left out as a whole unless its
    attributes have these values. `many`: whether there may be more than one in its parent."""

    attributes: Mapping[str, Grammar | Words] = field(default_factory=dict)
    children: Mapping[str, Element] = field(default_factory=dict)
    text: Grammar | None = None
    only: Mapping[str, Words] = field(default_factory=dict)
    many: bool = False


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Hold a rebuilt tree. `root`: its root element. `left_out`: the path of tags
    (`devices/emulator`, `disk/@snapshot`) of each thing that the table does not know, once.
    `refused`: with its line, and why."""

    root: etree._Element
    left_out: tuple[str, ...]
    refused: tuple[str, ...]


def rebuilt(root: etree._Element, table: Element) -> Rebuilt:
    """Return a new tree of the parts that `table` allows."""
    left_out: dict[str, None] = {}
    refused: list[str] = []
    fresh = etree.Element(tag_of(root))
    _fill(fresh, root, table, tag_of(root), left_out, refused)
    return Rebuilt(fresh, tuple(left_out), tuple(refused))


def number(most: int, least: int = 0) -> Grammar:
    """Return a grammar of decimal numbers from `least` to `most`."""

    def why(value: str) -> str | None:
        if not re.fullmatch("-?[0-9]+", value):
            return "is not a number"
        # Check its length first: Python takes long over millions of digits.
        if len(value) > len(str(most)) + 1 or not least <= int(value) <= most:
            return f"is not from {least} to {most}"
        return None

    return why


def matching(pattern: str, what: str) -> Grammar:
    """Return a grammar of text of a form; `what` is its name in errors."""
    compiled = re.compile(pattern)
    return lambda value: None if compiled.fullmatch(value) else f"is not a {what}"


def path(value: str) -> str | None:
    """Return a grammar of absolute paths of files."""
    if len(value.encode(errors="replace")) > MOST_PATH:
        return f"is longer than {MOST_PATH} bytes"
    if not value.startswith("/") or not value.isprintable() or ".." in value.split("/"):
        return "is not an absolute path without '..'"
    return None


def one_of(paths: frozenset[str]) -> Grammar:
    """Return a grammar of labctl's own paths, and of those that it has checked."""
    return lambda value: (
        None if str(Path(value)) in paths else "is not a file that labctl has checked"
    )


def _fill(
    fresh: etree._Element,
    element: etree._Element,
    table: Element,
    name: str,
    left_out: dict[str, None],
    refused: list[str],
) -> None:
    for key, value in element.attrib.items():
        known = table.only.get(str(key)) or table.attributes.get(str(key))
        if known is None or (isinstance(known, Words) and value not in known):
            left_out[f"{name}/@{etree.QName(key).localname}"] = None
        elif not isinstance(known, Words) and (why := known(str(value))):
            refused.append(f"{_place(element)}: {key}={_shown(str(value))} {why}")
        else:
            fresh.set(str(key), str(value))
    if text := text_of(element):
        if table.text is None:
            left_out[f"{name}/text"] = None
        elif why := table.text(text):
            refused.append(f"{_place(element)}: {_shown(text)} {why}")
        else:
            fresh.text = text
    for child, inside, inner in _known(element, table, name, left_out, refused):
        made = etree.SubElement(fresh, str(child.tag))
        _fill(made, child, inside, inner, left_out, refused)


def _known(
    element: etree._Element,
    table: Element,
    name: str,
    left_out: dict[str, None],
    refused: list[str],
) -> Iterator[tuple[etree._Element, Element, str]]:
    """Children that are copied, with their part of the table and their name in it."""
    seen = set()
    for child in element.iterchildren(etree.Element):
        tag = str(child.tag)
        inside = table.children.get(tag)
        inner = f"{name}/{tag_of(child)}"
        if inside is None or any(child.get(k) not in words for k, words in inside.only.items()):
            left_out[inner] = None
        elif tag in seen and not inside.many:
            refused.append(f"{_place(child)}: more than one in its <{tag_of(element)}>")
        else:
            seen.add(tag)
            yield child, inside, inner


def _place(element: etree._Element) -> str:
    return f"<{tag_of(element)}> (line {element.sourceline})"


def _shown(value: str) -> str:
    return repr(value) if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]!r}…"


# Define the words, numbers and names in the allow-list of domain XML. Pure.


MOST_VCPUS: Final = 1024
"""More than any host that labctl knows has CPUs; each vCPU has a CPU of its own in any case."""
MOST_IOTHREADS: Final = 256
MOST_MEMORY: Final = 1 << 46
"""Limit on one size, in bytes or in a larger unit of libvirt's: 64 TiB."""

WORD = matching(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,127}", "word of up to 128 letters and digits")
NAME = matching(r"[A-Za-z0-9][\w .:+@()-]{0,127}", "name of up to 128 letters and digits")
TEXT = matching(r"[^\x00-\x1f\x7f/][^\x00-\x1f\x7f]{0,255}", "line of up to 256 characters")
LINE = matching(r"[^\x00-\x1f\x7f]{0,4096}", "line of up to 4096 characters")
INTERFACE = matching(r"[A-Za-z0-9][\w.@-]{0,63}", "name of a network interface")
MAC = matching("[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}", "MAC address")
UUID = matching("[0-9A-Fa-f-]{32,36}", "UUID")
HEX = matching("0[xX][0-9a-fA-F]{1,16}|[0-9]{1,10}", "number in a bus address")
DISK = matching("(vd|sd|hd|xvd|fd)[a-z]{1,3}", "name of a disk such as vda")
CPUS = matching(r"[0-9,^ -]{0,4096}", "list of CPUs")
ALIAS = matching(r"[A-Za-z0-9_-]{1,128}", "alias")
SIZE, COUNT = number(MOST_MEMORY), number((1 << 32) - 1)
FEW, PLACE = number(MOST_CPUS), number(65535)
RATE = number((1 << 63) - 1)
ON, YES = Words({"on", "off"}), Words({"yes", "no"})


def words(*values: str) -> Words:
    return Words(values)


def leaf(many: bool = False, **attributes: Grammar | Words) -> Element:
    return Element({key.rstrip("_"): value for key, value in attributes.items()}, many=many)


def of(text: Grammar, **attributes: Grammar | Words) -> Element:
    return Element(attributes, text=text)


STATE = leaf(state=ON)
ENABLED = leaf(enabled=YES)
VIRTIO: Final = {"iommu": ON, "ats": ON, "packed": ON, "page_per_vq": ON}
