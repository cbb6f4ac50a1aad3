"""Walk through JSON and YAML by dotted paths. A missing step is an error that names the existing
ones, and nothing is ever dropped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labctl.base.errors import BrokenError, nearest

_STEP = re.compile(
    r'\.?"(?P<quoted>[^"]*)"'
    r"|\.?(?P<key>[^\s.\[\]\"=*]+)"
    r"|\[(?P<index>-?\d{1,9})\]"
    r"|(?P<all>\[\*\])"
    r'|\[(?P<by>[^\s.\[\]"=*]+)=(?:"(?P<text>[^"]*)"|(?P<word>[^\]"]*))\]'
)
_MOST_STEPS = 50
_MOST_VALUES = 1_000_000


@dataclass(frozen=True, slots=True)
class Key:
    name: str


@dataclass(frozen=True, slots=True)
class Index:
    number: int


@dataclass(frozen=True, slots=True)
class Every:
    """Take every element of a list, or every value of a mapping."""


@dataclass(frozen=True, slots=True)
class Having:
    """Take the only element whose `key` is `text`."""

    key: str
    text: str


Step = Key | Index | Every | Having


def parse_path(path: str) -> tuple[Step, ...]:
    """Return the steps of a path like `a."95.0"[0][name=fork][*].b`. Raises ValueError."""
    steps: list[Step] = []
    at = 0
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None or (at == 0 and path.startswith(".")):
            raise ValueError(
                'expected a path such as a.b[0], a."95.0", a[name=fork] or a[*]; error '
                f"at {path[at : at + 20]!r}"
            )
        # A dot separates two keys.
        if at and (found["key"] or found["quoted"] is not None) and path[at] != ".":
            raise ValueError(f"a '.' is missing before {path[at : at + 20]!r}")
        steps.append(_step(found))
        at = found.end()
    if not 1 <= len(steps) <= _MOST_STEPS:
        raise ValueError(f"a path has 1 to {_MOST_STEPS} steps")
    return tuple(steps)


def values_at(root: Any, path: str, *, may_be_empty: bool = False) -> list[Any]:
    """Return the values at a path, in order. Raises BrokenError that names the missing step and the
    existing ones, and for an empty list unless it `may_be_empty`."""
    nodes, gone = [root], ""
    for step in parse_path(path):
        gone += _shown(step)
        following: list[Any] = []
        for node in nodes:
            following += _stepped(node, step, gone)
            if len(following) > _MOST_VALUES:
                raise BrokenError(f"'{gone}' has more than {_MOST_VALUES} values")
        nodes = following
    if not nodes and not may_be_empty:
        raise BrokenError(f"'{gone.lstrip('.')}' matches nothing: the list is empty")
    return nodes


def _step(found: re.Match[str]) -> Step:
    if found["all"]:
        return Every()
    if found["index"]:
        return Index(int(found["index"]))
    if found["by"]:
        return Having(found["by"], found["text"] if found["text"] is not None else found["word"])
    return Key(found["quoted"] if found["quoted"] is not None else found["key"])


def _shown(step: Step) -> str:
    match step:
        case Key(name):
            return f".{name}" if re.fullmatch(r"[\w-]+", name) else f'."{name}"'
        case Index(number):
            return f"[{number}]"
        case Every():
            return "[*]"
        case Having(key, text):
            return f"[{key}={text}]"


def _stepped(node: Any, step: Step, gone: str) -> Sequence[Any]:
    place = gone.lstrip(".")
    match step:
        case Key(name):
            if not isinstance(node, dict):
                raise BrokenError(f"'{place}': expected a mapping, got {_kind(node)}")
            by_text = {str(key): value for key, value in node.items()}
            if name not in by_text:
                raise BrokenError(
                    f"'{place}' is not there", hint=nearest(name, [key[:60] for key in by_text])
                )
            return [by_text[name]]
        case Every():
            if isinstance(node, dict):
                return list(node.values())
            return _list(node, place)
        case Index(number):
            values = _list(node, place)
            if not -len(values) <= number < len(values):
                raise BrokenError(f"no '{place}': the list has {len(values)} elements")
            return [values[number]]
        case Having(key, text):
            values = _list(node, place)
            found = [v for v in values if isinstance(v, dict) and str(v.get(key)) == text]
            if len(found) != 1:
                there = sorted(
                    {str(v[key])[:60] for v in values if isinstance(v, dict) and key in v}
                )
                raise BrokenError(
                    f"'{place}': expected one element, got {len(found)}",
                    hint=f"'{key}' there: {', '.join(there[:20]) or 'of no element'}.",
                )
            return found


def _list(node: Any, place: str) -> list[Any]:
    if not isinstance(node, list):
        raise BrokenError(f"'{place}': expected a list, got {_kind(node)}")
    return node


def _kind(node: Any) -> str:
    if isinstance(node, dict):
        return f"a mapping with the keys {', '.join(str(key)[:60] for key in list(node)[:20])}"
    return "a list" if isinstance(node, list) else repr(node)[:80]
