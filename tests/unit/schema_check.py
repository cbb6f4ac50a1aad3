"""Hold a value against the part of JSON Schema (2020-12) that pydantic makes of models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
KNOWN = {
    *("$ref", "$defs", "$schema", "title", "description", "default", "type", "anyOf", "oneOf"),
    *("enum", "const", "properties", "patternProperties", "additionalProperties", "required"),
    *("items", "minItems", "maxItems", "minLength", "maxLength", "minProperties"),
    *("maxProperties", "propertyNames", "pattern", "minimum", "maximum", "exclusiveMinimum"),
    *("exclusiveMaximum", "discriminator", "format"),
}


def misfits(value: Any, schema: Any, root: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """What of the value the schema refuses."""
    if isinstance(schema, bool):
        if not schema:
            yield f"{at}: not allowed"
        return
    if unknown := set(schema) - KNOWN:
        raise AssertionError(f"a keyword that this checker doesn't know: {unknown}")
    if "$ref" in schema:
        yield from misfits(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices and not any(not list(misfits(value, one, root, at)) for one in choices):
        yield f"{at}: {value!r} fits none of {len(choices)}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    kind = schema.get("type")
    if kind is not None:
        is_bool = isinstance(value, bool) and kind != "boolean"
        if is_bool or not isinstance(value, TYPES[kind]):
            yield f"{at}: {value!r} is no {kind}"
            return
    if isinstance(value, dict):
        yield from _of_mapping(value, schema, root, at)
    elif isinstance(value, list):
        yield from _of_size(len(value), schema, "Items", at)
        for number, one in enumerate(value):
            yield from misfits(one, schema.get("items", True), root, f"{at}[{number}]")
    elif isinstance(value, str):
        yield from _of_size(len(value), schema, "Length", at)
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{at}: {value!r} does not match {schema['pattern']}"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        too_low = value < schema.get("minimum", value)
        too_high = value > schema.get("maximum", value)
        at_low = "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]
        at_high = "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]
        if too_low or too_high or at_low or at_high:
            yield f"{at}: {value!r} is beyond its bounds"


def _of_size(size: int, schema: Mapping[str, Any], what: str, at: str) -> Iterator[str]:
    if not schema.get(f"min{what}", 0) <= size <= schema.get(f"max{what}", size):
        yield f"{at}: has {size} {what}"


def _of_mapping(
    value: Mapping[Any, Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    yield from _of_size(len(value), schema, "Properties", at)
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{at}: lacks '{key}'"
    named = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    for key, one in value.items():
        place = f"{at}.{key}"
        if "propertyNames" in schema:
            yield from misfits(str(key), schema["propertyNames"], root, place)
        if key in named:
            yield from misfits(one, named[key], root, place)
            continue
        matching = [inner for pattern, inner in patterns.items() if re.search(pattern, str(key))]
        for inner in matching or [schema.get("additionalProperties", True)]:
            yield from misfits(one, inner, root, place)
