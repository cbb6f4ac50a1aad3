"""YAML files that people write: every error names file, line, key, what is allowed, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from labctl.base.errors import UsageError

Model = TypeVar("Model", bound="FileModel")

_OF_KEYS = ("extra_forbidden", "missing")
"""Pydantic's errors that are of a key, not of a value that the file has."""

_MANY = 30
"""More choices than an error should list."""


class FileModel(BaseModel):
    """Base of the models of YAML files: unknown keys are errors, values are not converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def load_mapping(path: Path) -> CommentedMap:
    """The mapping that a YAML file holds, with the position of every key.

    Raises UsageError when it can't be read, is no YAML, or is no mapping.
    """
    yaml = YAML(typ="rt")
    yaml.allow_duplicate_keys = False
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text ({error.reason})") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UsageError(f"{place}: not valid YAML: {error.problem}") from error
    except YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(loaded, CommentedMap):
        raise UsageError(f"{path}: holds no mapping", hint="Write 'key: value' lines at top level.")
    return loaded


def validate(model: type[Model], mapping: CommentedMap, path: Path) -> Model:
    """The model's value of a mapping read from `path`; raises UsageError naming line and key."""
    try:
        return model.model_validate(plain(mapping))
    except ValidationError as error:
        raise UsageError("\n".join(_told(model, mapping, path, error))) from error


def load(model: type[Model], path: Path) -> Model:
    return validate(model, load_mapping(path), path)


def line_of(mapping: Any, keys: Iterable[str | int]) -> int | None:
    """The line (from 1) of the innermost of `keys` that is in the file."""
    line: int | None = None
    node = mapping
    for key in keys:
        if isinstance(node, CommentedMap) and key in node:
            line = node.lc.key(key)[0] + 1
            node = node[key]
        elif isinstance(node, CommentedSeq) and isinstance(key, int) and key < len(node):
            line = node.lc.item(key)[0] + 1
            node = node[key]
        # A key that isn't in the file (a union's branch in pydantic's location): stay where we are.
    return line


def nearest(name: str, allowed: Iterable[str]) -> str:
    """'Did you mean …?' and what is allowed, as one remedy; of many choices the nearest."""
    choices = sorted(allowed)
    close = difflib.get_close_matches(name, choices, n=1)
    question = f"Did you mean '{close[0]}'? " if close else ""
    if len(choices) > _MANY:
        near = sorted(difflib.get_close_matches(name, choices, n=_MANY // 2, cutoff=0.3))
        return f"{question}Allowed, among {len(choices)}: {', '.join(near or choices[:_MANY])}."
    return f"{question}Allowed: {', '.join(choices) or 'nothing'}."


def plain(node: Any) -> Any:
    """The same data in plain dicts, lists and scalars."""
    if isinstance(node, CommentedMap):
        return {plain(key): plain(value) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        return [plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _told(
    model: type[FileModel], mapping: CommentedMap, path: Path, error: ValidationError
) -> list[str]:
    """A line for each value that is wrong, however many branches of a union it fits none of."""
    by_place: dict[tuple[str | int, ...], list[Any]] = {}
    for detail in error.errors():
        keys = detail["loc"]
        found = keys if detail["type"] in _OF_KEYS else keys[: len(_in_file(mapping, keys))]
        by_place.setdefault(found, []).append(detail | {"loc": found})
    return [_explain(model, mapping, path, details) for details in by_place.values()]


def _in_file(mapping: Any, keys: Iterable[str | int]) -> list[str | int]:
    """Those that lead to a value of the file; pydantic's own (a union's branch) do not."""
    found: list[str | int] = []
    node = mapping
    for key in keys:
        is_there = isinstance(node, CommentedMap) and key in node
        if not is_there and not (
            isinstance(node, CommentedSeq) and isinstance(key, int) and key < len(node)
        ):
            break
        found.append(key)
        node = node[key]
    return found


def _explain(model: type[FileModel], mapping: CommentedMap, path: Path, details: list[Any]) -> str:
    detail = details[0]
    location: tuple[str | int, ...] = detail["loc"]
    line = line_of(mapping, location)
    place = f"{path}:{line}" if line else str(path)
    key = ".".join(str(part) for part in location)
    if detail["type"] == "extra_forbidden":
        allowed = _allowed_keys(model, location[:-1])
        remedy = f" {nearest(str(location[-1]), allowed)}" if allowed else ""
        return f"{place}: unknown key '{key}'.{remedy}"
    if detail["type"] == "missing":
        return f"{place}: key '{key}' is missing."
    found = detail.get("input")
    said = (str(one["msg"]).removeprefix("Value error, ") for one in details)
    said = (message.removeprefix("Input should be ") for message in said)
    messages = dict.fromkeys(f"{message[:1].lower()}{message[1:]}" for message in said)
    return f"{place}: '{key}' is {found!r}: {', or '.join(messages)}."


def _allowed_keys(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """The keys that the model at `location` knows; [] where that can't be told."""
    current: type[BaseModel] | None = model
    for part in location:
        if current is None:
            return []
        field = current.model_fields.get(str(part))
        if field is None:
            continue  # an index, a mapping's key, or a union's branch
        current = _model_inside(field.annotation)
    if current is None:
        return []
    return [field.alias or name for name, field in current.model_fields.items()]


def _model_inside(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _model_inside(argument)) is not None:
            return found
    return None
