"""Make tables of the keys of a file, from its models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from labctl.base.json import texts_of
from labctl.base.yaml import FileModel, number, quantity_name


def sections(parts: Iterable[tuple[str, type[FileModel]]]) -> Iterator[str]:
    """Yield a section with a table for each title and model, as Markdown."""
    for title, model in parts:
        yield f"## {title}\n\n{table(model)}"


def table(model: type[FileModel]) -> str:
    """Return the keys of a model, each with what it takes, its default and its text."""
    rows = "\n".join(_rows(model))
    return f"| key | takes | default | |\n|---|---|---|---|\n{rows}\n"


def _rows(model: type[FileModel]) -> Iterator[str]:
    schema = model.model_json_schema()
    texts = texts_of(model)
    for key, field in model.model_fields.items():
        written = field.alias or key
        name = f"**`{written}`**" if field.is_required() else f"`{written}`"
        takes = _takes(schema["properties"][written], schema.get("$defs", {}))
        is_empty = field.is_required() or field.default in (None, "", [], {})
        shown = "" if is_empty else f"`{_as_yaml(field.default)}`"
        yield f"| {name} | {takes} | {shown} | {texts[key]} |"


def _as_yaml(value: object) -> str:
    if isinstance(value, FileModel):
        return f"{{{', '.join(f'{key}: {_as_yaml(given)}' for key, given in value)}}}"
    # Of a mapping to nothing, the names alone are what one writes.
    if isinstance(value, list | dict):
        return f"[{', '.join(map(_as_yaml, value))}]"
    return str(value)


def _takes(schema: Mapping[str, Any] | bool, defs: Mapping[str, Any]) -> str:
    if isinstance(schema, bool):
        return "anything"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _takes(defs[name], defs) if "enum" in defs[name] else "see below"
    if "anyOf" in schema:
        parts = [_takes(part, defs) for part in schema["anyOf"] if part.get("type") != "null"]
        return ", ".join(dict.fromkeys(parts))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    match schema["type"]:
        case "array":
            return f"list of: {_takes(schema['items'], defs)}"
        case "object":
            named = schema.get("patternProperties") or {"": schema["additionalProperties"]}
            (below,) = named.values()
            return f"by name: {_takes(below, defs)}"
        case "boolean":
            return "true or false"
        case "string":
            if kind := quantity_name(schema):
                return f"or a {kind} with its unit"
            return "text" if "pattern" not in schema else "a name"
        case kind:
            return number("whole number" if kind == "integer" else "number", schema)
