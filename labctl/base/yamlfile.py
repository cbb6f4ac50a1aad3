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
        lines = [_explain(model, mapping, path, detail) for detail in error.errors()]
        raise UsageError("\n".join(lines)) from error


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


def _explain(model: type[FileModel], mapping: CommentedMap, path: Path, detail: Any) -> str:
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
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{place}: '{key}' is {found!r}: {message[:1].lower()}{message[1:]}."


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
