"""Parse YAML to plain values, with the line of each key, within limits.

libyaml finds the events, and this module makes the values: libyaml's composer recurses for each
level, and does not count values repeated by aliases. A word without quotes has the meaning of YAML
1.2: `yes` and `off` are words, `017` is seventeen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Final

from yaml import AliasEvent, MappingStartEvent, ScalarEvent, SequenceStartEvent, StreamEndEvent
from yaml._yaml import CParser
from yaml.error import MarkedYAMLError, YAMLError

MOST_BYTES: Final = 1 << 20
"""Limit for one document. The largest that labctl brings has 7 KiB."""
MOST_DEEP: Final = 32
"""Levels of lists and mappings."""
MOST_VALUES: Final = 100_000
"""Values of one document, including each repetition by an alias."""
MOST_ENTRIES: Final = 10_000
"""Limit for one list or mapping."""
MOST_DIGITS: Final = 100
"""Limit for one number."""


class YamlError(ValueError):
    """Report why a text is refused. `line`: from 1; None if it is unknown."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem if line is None else f"line {line}: {problem}")
        self.problem = problem
        self.line = line


class YamlMapping(dict[Any, Any]):
    """Hold a mapping with the line (from 1) of each key; a mapping that no file contained has
    none."""

    lines: dict[Any, int]

    def __init__(self, content: Mapping[Any, Any] | None = None) -> None:
        super().__init__(content or {})
        self.lines = {}


class YamlList(list[Any]):
    """Hold a list with the line (from 1) of each value."""

    lines: list[int]


def parse_yaml(text: str, *, aliases: bool = True) -> Any:
    """Return the value of a text with one document: a scalar, YamlMapping or YamlList. `aliases`:
    whether it may have any.

    Raises YamlError for text that is not YAML, for types that labctl does not know, and beyond a
    limit, which it names.
    """
    return _parsed(text, lambda parser: _Reader(parser, aliases=aliases).document())


def parse_documents(text: str) -> list[Any]:
    """Return the value of each document of a text, within the limits of one. Raises YamlError as
    `parse_yaml` does."""
    found: list[Any] = _parsed(text, lambda parser: _Reader(parser, aliases=True).documents())
    return found


def _parsed(text: str, read: Callable[[Any], Any]) -> Any:
    check_size(len(text))
    if found := _TAG_DIRECTIVE.search(text):
        # libyaml compares each with all earlier ones.
        raise YamlError(
            "not valid YAML: no %TAG is known here", text.count("\n", 0, found.start()) + 1
        )
    try:
        return read(CParser(text))
    except MarkedYAMLError as error:
        raise _explained(error, text) from error
    except (YAMLError, UnicodeEncodeError) as error:
        reason = getattr(error, "reason", "") or str(error)
        raise YamlError(f"not valid YAML: {reason}") from error


def _explained(error: MarkedYAMLError, text: str) -> YamlError:
    """Return libyaml's error with the probable line and cause of the mistake."""
    mark = error.problem_mark or error.context_mark
    line = None if mark is None else mark.line + 1
    problem = str(error.problem or error.context)
    began = None if error.context_mark is None else error.context_mark.line + 1
    if line is not None and "\t" in _indent(text, line):
        return YamlError("not valid YAML: a tab indents the line, and YAML takes blanks", line)
    for looks, context, cause in _CAUSES:
        if looks in problem and context in str(error.context or ""):
            at = began if context and began else line
            return YamlError(f"not valid YAML: {cause}", at)
    return YamlError(f"not valid YAML: {problem}", line)


def _indent(text: str, line: int) -> str:
    found = text.splitlines()[line - 1 : line]
    return found[0][: len(found[0]) - len(found[0].lstrip())] if found else ""


_CAUSES: Final = (
    ("unexpected end", "quoted scalar", "a quote is opened here and never closed"),
    (
        "unknown escape character",
        "",
        "a backslash in double quotes begins an escape: use single quotes",
    ),
    (
        "block sequence entries are not allowed",
        "",
        "a list begins behind its key: put each '- ' on a line of its own",
    ),
    ("", "flow sequence", "a list is opened with '[' here, and a ',' or its ']' is missing"),
    ("", "flow mapping", "a mapping is opened with '{' here, and a ',' or its '}' is missing"),
    (
        "mapping values are not allowed",
        "",
        "a second ': ' in one value: indent the line as its neighbours are, or put the value in "
        "quotes",
    ),
    (
        "could not find expected ':'",
        "simple key",
        "a line without 'key: ': the ':' needs a blank behind it, and a text of several lines "
        "needs '>' or quotes",
    ),
    ("did not find expected key", "", "the line isn't indented as the keys above it are"),
    ("did not find expected '-' indicator", "", "the line isn't indented as the list above it is"),
    (
        "cannot start any token",
        "",
        "a value begins with a sign that YAML keeps for itself ('@', '`', '%'): put it in quotes",
    ),
)
"""Parts of libyaml's problem and context, and the probable cause. A cause with a context is at the
line where that begins."""


def check_size(size: int) -> None:
    """Raise YamlError for more bytes than a document may have."""
    if size > MOST_BYTES:
        raise YamlError(f"is larger than {MOST_BYTES >> 20} MiB, the limit for YAML")


@dataclass(slots=True)
class _Known:
    """Hold a parsed value, the number of values in it, and its depth."""

    value: Any
    weight: int = 1
    height: int = 0


@dataclass(slots=True)
class _Open:
    """Hold a list or mapping that is not closed yet."""

    found: _Known
    line: int
    anchor: str | None
    key: Any = None
    key_line: int = 0
    """Line of the current key; 0 if the next value is a key."""
    merged: list[YamlMapping] = field(default_factory=list)


class _Reader:
    def __init__(self, parser: Any, *, aliases: bool) -> None:
        self._parser = parser
        self._may_repeat = aliases
        self._anchors: dict[str, _Known] = {}
        self._count = 0

    def document(self) -> Any:
        self._parser.get_event()  # the stream's start
        if isinstance(self._parser.get_event(), StreamEndEvent):
            return None
        value = self._value()
        self._parser.get_event()  # the document's end
        following = self._parser.get_event()
        if not isinstance(following, StreamEndEvent):
            line = following.start_mark.line + 1
            raise YamlError("not valid YAML: a second document begins", line)
        return value

    def documents(self) -> list[Any]:
        self._parser.get_event()  # the stream's start
        found = []
        while not isinstance(self._parser.get_event(), StreamEndEvent):
            self._anchors = {}
            found.append(self._value())
            self._parser.get_event()  # the document's end
        return found

    def _value(self) -> Any:
        """Return the next value with all its contents. A loop, so that depth costs no stack."""
        unfinished: list[_Open] = []
        while True:
            event = self._parser.get_event()
            line = event.start_mark.line + 1
            anchor = None
            if isinstance(event, ScalarEvent):
                known, anchor = _Known(_scalar(event, line)), event.anchor
            elif isinstance(event, AliasEvent):
                known = self._aliased(event.anchor, line)
            elif isinstance(event, MappingStartEvent | SequenceStartEvent):
                unfinished.append(_Open(_Known(_empty(event, line)), line, event.anchor))
                self._check_depth(len(unfinished), line)
                self._weigh(1, line)
                continue
            else:
                ended = unfinished.pop()
                known, anchor, line = _finished(ended), ended.anchor, ended.line
            if not isinstance(known.value, YamlMapping | YamlList) or isinstance(event, AliasEvent):
                self._weigh(known.weight, line)
            if anchor is not None:
                self._anchors[anchor] = known
            if not unfinished:
                return known.value
            self._check_depth(len(unfinished) + known.height, line)
            _put(unfinished[-1], known, line, is_merge=_is_merge(event))

    def _aliased(self, anchor: str, line: int) -> _Known:
        if not self._may_repeat:
            raise YamlError(f"holds the alias '*{anchor[:40]}', and none is taken here", line)
        if anchor not in self._anchors:
            raise YamlError(f"not valid YAML: no value before it is marked '&{anchor}'", line)
        return self._anchors[anchor]

    def _weigh(self, weight: int, line: int) -> None:
        self._count += weight
        if self._count > MOST_VALUES:
            raise YamlError(
                f"holds more than {MOST_VALUES} values, with those that aliases repeat", line
            )

    def _check_depth(self, depth: int, line: int) -> None:
        if depth > MOST_DEEP:
            raise YamlError(f"is nested deeper than {MOST_DEEP} levels", line)


def _empty(event: Any, line: int) -> YamlMapping | YamlList:
    is_mapping = isinstance(event, MappingStartEvent)
    if event.tag not in (None, "!", f"{_YAML}{'map' if is_mapping else 'seq'}"):
        raise YamlError(_unknown(event.tag), line)
    if is_mapping:
        return YamlMapping()
    values = YamlList()
    values.lines = []
    return values


def _put(into: _Open, known: _Known, line: int, *, is_merge: bool) -> None:
    found, value = into.found, known.value
    found.weight += known.weight
    found.height = max(found.height, known.height + isinstance(value, YamlMapping | YamlList))
    if isinstance(found.value, YamlList):
        _check_length(len(found.value), line)
        found.value.append(value)
        found.value.lines.append(line)
    elif not into.key_line:
        if isinstance(value, YamlMapping | YamlList):
            raise YamlError("not valid YAML: a key is a word or a number", line)
        if value in found.value:
            raise YamlError(f"not valid YAML: the key '{_shown(value)}' appears twice", line)
        into.key, into.key_line = _MERGE if is_merge else value, line
    else:
        if into.key is _MERGE:
            into.merged += _mappings(value, line)
        else:
            _check_length(len(found.value), line)
            found.value[into.key] = value
            found.value.lines[into.key] = into.key_line
        into.key_line = 0


def _finished(ended: _Open) -> _Known:
    """Fill in what `<<` merges: a mapping's own keys win, then the first's."""
    mapping = ended.found.value
    for other in ended.merged:
        for key, value in other.items():
            if key not in mapping:
                _check_length(len(mapping), ended.line)
                mapping[key] = value
                mapping.lines[key] = other.lines[key]
    return ended.found


def _mappings(value: Any, line: int) -> list[YamlMapping]:
    several = value if isinstance(value, YamlList) else [value]
    if not all(isinstance(one, YamlMapping) for one in several):
        raise YamlError("not valid YAML: '<<' merges mappings, and nothing else", line)
    return list(several)


def _check_length(length: int, line: int) -> None:
    if length >= MOST_ENTRIES:
        raise YamlError(f"a list or mapping has more than {MOST_ENTRIES} entries", line)


def _is_merge(event: Any) -> bool:
    return (
        isinstance(event, ScalarEvent)
        and event.value == "<<"
        and event.implicit[0]
        and event.tag is None
    )


_MERGE: Final = object()
"""Marker for the key `<<`."""

_YAML = "tag:yaml.org,2002:"
_TAG_DIRECTIVE = re.compile(r"^%TAG", re.MULTILINE)
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)")
_FLOAT = re.compile(
    r"[-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"
)
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})?)?"
)
_BEGINS_A_NUMBER = frozenset("+-.0123456789")


def _scalar(event: ScalarEvent, line: int) -> Any:
    """Return the value of a scalar; its tag defines the type, else its form."""
    text = event.value
    if event.tag is None:
        return _plain(text, line) if event.implicit[0] else text
    if event.tag == "!":
        return text
    make = _BY_TAG.get(event.tag.removeprefix(_YAML))
    if make is None:
        raise YamlError(_unknown(event.tag), line)
    return make(text, line)


def _plain(text: str, line: int) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _BEGINS_A_NUMBER:
        return text
    for looks, make in ((_INTEGER, _integer), (_FLOAT, _float), (_TIME, _time)):
        if looks.fullmatch(text):
            return make(text, line)
    return text


def _integer(text: str, line: int) -> int:
    if not _INTEGER.fullmatch(text):
        raise YamlError(f"'{_shown(text)}' is not a whole number", line)
    digits = _digits(text, line)
    base = {"0b": 2, "0o": 8, "0x": 16}.get(digits.lstrip("+-")[:2], 10)
    try:
        return int(digits, base)
    except ValueError as error:  # only underscores behind the 0x
        raise YamlError(f"'{_shown(text)}' is not a whole number", line) from error


def _float(text: str, line: int) -> float:
    if not _FLOAT.fullmatch(text) and not _INTEGER.fullmatch(text):
        raise YamlError(f"'{_shown(text)}' is not a number", line)
    digits = _digits(text, line)
    try:
        # Python's words for NaN and infinity have no leading dot.
        return float(re.sub(r"\.(?=[inIN])", "", digits))
    except ValueError as error:
        raise YamlError(f"'{_shown(text)}' is not a number", line) from error


def _digits(text: str, line: int) -> str:
    if len(text) > MOST_DIGITS:
        raise YamlError(f"a number has more than {MOST_DIGITS} digits", line)
    return text.replace("_", "")


def _time(text: str, line: int) -> date:
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        return date.fromisoformat(text) if len(text) == 10 else datetime.fromisoformat(text)
    except ValueError as error:
        raise YamlError(
            f"YAML reads '{_shown(text)}' as a date, and no such date exists: put it in quotes",
            line,
        ) from error


def _word(text: str, line: int) -> bool | None:
    if text not in _WORDS:
        raise YamlError(f"'{_shown(text)}' is neither true nor false", line)
    return _WORDS[text]


_BY_TAG: dict[str, Callable[[str, int], Any]] = {
    "str": lambda text, _: text,
    "int": _integer,
    "float": _float,
    "bool": _word,
    "null": _word,
    "timestamp": _time,
}


def _unknown(tag: str) -> str:
    return f"the tag '{_shown(tag.replace(_YAML, '!!'))}' is of no type that is known here"


def _shown(value: Any, most: int = 60) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}…"
