"""Find the numbers that a declaration names, in the unit that the program prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labctl.base.errors import BrokenError
from labctl.base.json import parse_json
from labctl.base.quantities import Scale, known_scale
from labctl.base.templates import evaluate, names_in
from labctl.base.units import Unit
from labctl.base.yamltext import YamlError, parse_yaml
from labctl.workloads.readers.declaration import MetricFile, SourceFile
from labctl.workloads.readers.matching import Match, Matches
from labctl.workloads.readers.output import NoValueError, Part, number_of, printed_step
from labctl.workloads.readers.path import values_at

_SHOWN = 10
_LAST = 4096
"""Characters of a text's end in which `whole` must match."""


@dataclass(frozen=True, slots=True)
class Found:
    """Hold all numbers that a declaration names. `step`: the printed one, 0 if it is unknown;
    `shown`: the first of them as printed."""

    values: NDArray[np.float64]
    scale: Scale
    step: float
    shown: tuple[str, ...]


def last_part(text: str) -> str:
    """Return the part of a text in which `whole` must match."""
    return text[-_LAST:]


def asked(one: SourceFile, parts: Sequence[Part]) -> list[tuple[str, str]]:
    """Return the pairs of pattern and text that a declaration needs."""
    pairs = [(one.regex, part.text) for part in parts] if one.regex is not None else []
    if one.whole is not None:
        pairs += [(one.whole, last_part(part.text)) for part in parts]
    return pairs


def check_whole(one: SourceFile, parts: Sequence[Part], matches: Matches) -> None:
    """Raise BrokenError for a text without its end: a truncated number is still a number."""
    if one.whole is None:
        return
    for part in parts:
        if not matches.of(one.whole, last_part(part.text)):
            raise BrokenError(
                f"{part.name} is truncated: its end does not match '{one.whole}'; {part.end}"
            )


def matched(one: SourceFile, parts: Sequence[Part], matches: Matches) -> list[Match]:
    """Return all matches of a declaration's regex. Raises BrokenError if there is none."""
    assert one.regex is not None
    found = [match for part in parts for match in matches.of(one.regex, part.text)]
    if not found:
        raise BrokenError(f"the pattern '{one.regex}' matches nothing; {parts[-1].end}")
    return found


def by_regex(metric: MetricFile, parts: Sequence[Part], matches: Matches) -> Found:
    """Return the numbers in a regex's groups, or the results of a formula over them."""
    numbers: list[float] = []
    texts: list[str] = []
    scale = metric.scale
    for match in matched(metric, parts, matches):
        if metric.formula is not None:
            number, text = of_groups(metric.formula, match, metric), match.text
        else:
            text = _group(match, "value", metric)
            number = number_of(text, metric.thousands)
        if metric.has_printed_unit:
            number, scale = _in_base(number, _group(match, "unit", metric), scale)
        numbers.append(number)
        texts.append(text)
    assert scale is not None
    step = 0.0
    if metric.formula is None and not metric.has_printed_unit:
        step = _step(texts)
    shown = tuple(one.strip() for one in texts[:_SHOWN])
    return Found(np.array(numbers), scale, step, shown)


def by_path(metric: MetricFile, parts: Sequence[Part]) -> Found:
    """Return the numbers at a path of JSON or YAML, or the results of a formula over those at
    several."""
    if metric.paths:
        return _by_paths(metric, parts)
    nodes = nodes_at(metric, parts)
    numbers = [plain_number(node, metric.thousands) for node in nodes]
    assert metric.scale is not None
    texts = [str(node) for node in nodes]
    return Found(np.array(numbers), metric.scale, _step(texts), tuple(texts[:_SHOWN]))


def _by_paths(metric: MetricFile, parts: Sequence[Part]) -> Found:
    assert metric.formula is not None
    assert metric.scale is not None
    numbers: list[float] = []
    shown: list[str] = []
    for part in parts:
        root = tree(metric, part)
        found = {name: _only_at(root, path) for name, path in metric.paths.items()}
        numbers.append(calculated(metric.formula, found))
        shown.append(", ".join(f"{name} {number:g}" for name, number in found.items()))
    return Found(np.array(numbers), metric.scale, 0.0, tuple(shown[:_SHOWN]))


def _only_at(root: Any, path: str) -> float:
    nodes = values_at(root, path)
    if len(nodes) != 1:
        raise BrokenError(f"'{path}': expected one value, got {len(nodes)}")
    return plain_number(nodes[0])


def nodes_at(one: SourceFile, parts: Sequence[Part], *, may_be_empty: bool = False) -> list[Any]:
    """Return the values at a declaration's path, from all its files. Raises BrokenError if there
    are none, unless they `may_be_empty`."""
    path = one.json_path or one.yaml_path
    assert isinstance(path, str)
    return [
        node
        for part in parts
        for node in values_at(tree(one, part), path, may_be_empty=may_be_empty)
    ]


def tree(one: SourceFile, part: Part) -> Any:
    """Return the content of a JSON or YAML text. Raises BrokenError."""
    try:
        if one.json_path is not None:
            return parse_json(part.text)
        return parse_yaml(part.text, aliases=False)
    except YamlError as error:
        raise BrokenError(f"{part.name}: {error}; {part.end}") from error
    except ValueError as error:
        raise BrokenError(f"{part.name}: not JSON: {error}; {part.end}") from error


def plain_number(node: Any, thousands: str | None = None) -> float:
    """Return a number of JSON or YAML, given as a number or as text."""
    if isinstance(node, str):
        return number_of(node, thousands)
    if isinstance(node, bool) or not isinstance(node, int | float):
        raise BrokenError(f"expected a number there, got {_kind(node)}")
    return number_of(repr(node))


def calculated(formula: str, values: dict[str, float]) -> float:
    """Return the result of a formula over numbers. Raises NoValueError if it divides by zero, and
    UsageError if it is invalid."""
    try:
        number = evaluate(formula, {name: _as_whole(n) for name, n in values.items()}, "formula")
    except OverflowError as error:
        raise NoValueError(f"the formula '{formula}' has no finite value.") from error
    if isinstance(number, str):
        raise BrokenError(f"the formula '{formula}' gives the text {number[:40]!r}")
    try:
        return number_of(repr(float(number)))
    except OverflowError as error:
        raise NoValueError(f"the formula '{formula}' has no finite value.") from error


def of_groups(formula: str, match: Match, one: SourceFile) -> float:
    """Return the result of a formula over a match's groups."""
    used = sorted(names_in(formula, bare=True))
    return calculated(
        formula, {name: number_of(_group(match, name, one), one.thousands) for name in used}
    )


def _as_whole(number: float) -> float | int:
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _group(match: Match, name: str, one: SourceFile) -> str:
    if name not in match.groups:
        raise BrokenError(f"the pattern '{one.regex}' matches {match.text!r} without its '{name}'")
    return match.groups[name]


def _in_base(number: float, word: str, declared: Scale | None) -> tuple[float, Scale]:
    try:
        is_own = declared is not None and declared.unit.is_own and declared.unit == word.strip()
        printed = declared if declared and is_own else known_scale(word.strip())
    except ValueError as error:
        raise BrokenError(f"the program printed the {error}") from error
    if declared is not None and printed.unit is not declared.unit:
        raise BrokenError(f"expected a unit of '{declared.unit}', got '{word}'")
    return number * printed.factor, Scale(printed.unit, 1.0)


def _step(texts: Sequence[str]) -> float:
    """Return the finest step of printed numbers: a program may omit trailing zeros."""
    steps = [printed_step(text) for text in texts]
    return min(steps) if steps and all(steps) else 0.0


def _kind(node: Any) -> str:
    if isinstance(node, dict):
        return f"a mapping with the keys {', '.join(str(key)[:60] for key in list(node)[:20])}"
    if isinstance(node, list):
        return f"a list of {len(node)} ('[*]' names each)"
    return "nothing (null)" if node is None else repr(node)[:80]


def unit_of(metric: MetricFile, scale: Scale) -> Unit:
    """Return the unit of the result of `as`."""
    return {"share": Unit.FRACTION, "count": Unit.COUNT}.get(metric.as_, scale.unit)
