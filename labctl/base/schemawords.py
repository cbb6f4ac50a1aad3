"""Say in words what a value of a file must be, from the JSON Schema of the file's model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from labctl.base.quantities import KINDS, Kind

Schema = Mapping[str, Any]

_BOUNDS = (
    ("minimum", "from"),
    ("exclusiveMinimum", "above"),
    ("maximum", "to"),
    ("exclusiveMaximum", "and below"),
)


def resolved(schema: Schema, defs: Schema) -> Schema:
    """Return the schema that a reference names; another one as it is."""
    return defs[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def branches(schema: Schema, defs: Schema) -> list[Schema]:
    """Return the alternatives of a schema, without null."""
    found = resolved(schema, defs)
    if "anyOf" in found:
        return [one for part in found["anyOf"] for one in branches(part, defs)]
    return [] if found.get("type") == "null" else [found]


def below(schema: Schema, keys: Iterable[str | int], defs: Schema) -> list[Schema]:
    """Return the alternatives of what stands at `keys`; [] where the schema has no such place. A
    key that is pydantic's own, as a union's branch, is passed over."""
    here = branches(schema, defs)
    for key in keys:
        inside = [one for part in here for one in _inside(part, key, defs)]
        here = inside or here
    return here


def _inside(schema: Schema, key: str | int, defs: Schema) -> list[Schema]:
    if isinstance(key, int):
        return branches(schema["items"], defs) if "items" in schema else []
    if key in schema.get("properties", {}):
        return branches(schema["properties"][key], defs)
    if named := schema.get("patternProperties"):
        return [one for part in named.values() for one in branches(part, defs)]
    rest = schema.get("additionalProperties")
    return branches(rest, defs) if isinstance(rest, Mapping) else []


def number(kind: str, schema: Schema) -> str:
    """Return 'whole number from 1 to 99': `kind` with the schema's bounds."""
    bounds = [f"{words} {_plain(schema[key])}" for key, words in _BOUNDS if key in schema]
    return " ".join([kind, *bounds])


def _plain(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def needed(schemas: Iterable[Schema]) -> str:
    """Return what fits one of the alternatives: 'a whole number from 1 to 99, or 'auto''; "" where
    a schema doesn't say."""
    return ", or ".join(dict.fromkeys(filter(None, map(_one, schemas))))


def _kind(schema: Schema) -> Kind | None:
    """Return the kind of quantity whose texts fit the schema."""
    return next((kind for kind in KINDS if schema.get("pattern") == kind.pattern), None)


def quantity_name(schema: Schema) -> str | None:
    """Return "time" of the schema of a text such as '10s'; None of another one."""
    kind = _kind(schema)
    return None if kind is None else kind.name


def _one(schema: Schema) -> str:
    if "const" in schema:
        return f"'{schema['const']}'"
    if "enum" in schema:
        *most, last = (f"'{value}'" for value in schema["enum"])
        return f"{', '.join(most)} or {last}" if most else last
    match schema.get("type"):
        case "integer":
            return f"a {number('whole number', schema)}"
        case "number":
            return f"a {number('number', schema)}"
        case "boolean":
            return "true or false"
        case "array":
            return "a list"
        case "object":
            return "a mapping ('key: value' lines, indented)"
        case "string" if kind := _kind(schema):
            return f"a {kind.name} with its unit ({kind.examples})"
        case "string" if "pattern" in schema:
            return "a name (letters, digits, '+', '.', '_' and '-')"
        case "string" if schema.get("minLength"):
            return "a text that isn't empty"
        case "string":
            return "a text (in quotes, where it looks like a number)"
        case _:
            return ""
