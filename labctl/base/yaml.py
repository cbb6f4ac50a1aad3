"""Load YAML files that people write: an error names file, line, key, allowed values and remedy."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import date
from functools import cache, reduce
from itertools import islice
from operator import or_
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from labctl.base.errors import UsageError, nearest
from labctl.base.quantities import KINDS, Kind
from labctl.base.yamltext import (
    MOST_BYTES,
    YamlError,
    YamlList,
    YamlMapping,
    check_size,
    parse_yaml,
)

# Describe in words the valid values of a file, from the JSON Schema of the file's model.


Schema = Mapping[str, Any]

_BOUNDS = (
    ("minimum", "from"),
    ("exclusiveMinimum", "above"),
    ("maximum", "to"),
    ("exclusiveMaximum", "and below"),
)


def resolved(schema: Schema, defs: Schema) -> Schema:
    """Return the schema behind a reference; any other one unchanged."""
    return defs[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def branches(schema: Schema, defs: Schema) -> list[Schema]:
    """Return the alternatives of a schema, without null."""
    found = resolved(schema, defs)
    if "anyOf" in found:
        return [one for part in found["anyOf"] for one in branches(part, defs)]
    return [] if found.get("type") == "null" else [found]


def below(schema: Schema, keys: Iterable[str | int], defs: Schema) -> list[Schema]:
    """Return the alternatives of the value at `keys`; [] if the schema has no such place. Keys of
    pydantic's own, such as a union's branch, are skipped."""
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
    """Return what one of the alternatives accepts: 'a whole number from 1 to 99, or 'auto''; "" if
    the schema does not say."""
    return ", or ".join(dict.fromkeys(filter(None, map(_one, schemas))))


def _kind(schema: Schema) -> Kind | None:
    """Return the kind of quantity that the schema accepts."""
    return next((kind for kind in KINDS if schema.get("pattern") == kind.pattern), None)


def quantity_name(schema: Schema) -> str | None:
    """Return "time" for the schema of a text such as '10s'; None for another one."""
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
            return "a text that is not empty"
        case "string":
            return "a text (in quotes if it looks like a number)"
        case _:
            return ""


Model = TypeVar("Model", bound="FileModel")

_OF_KEYS = ("extra_forbidden", "missing")
"""Pydantic's errors about a key, not about a value in the file."""

_OF_TYPES = frozenset(
    {
        *("bool_type", "dict_type", "float_type", "int_type", "list_type", "string_type"),
        *("enum", "literal_error", "int_from_float", "string_pattern_mismatch"),
        *("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"),
        *("model_type", "model_attributes_type", "string_too_short"),
    }
)
"""Pydantic's errors that the model's schema describes better."""

_MOST_TOLD = 20
"""Maximum mistakes of one file in one message."""

_MOST_SHOWN = 100
"""Maximum characters of a wrong value in a message."""


class FileModel(BaseModel):
    """Model a YAML file strictly: unknown keys are errors, values are not converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    record: ClassVar[type[Any] | None] = None
    """Record whose fields its keys give, if `keys_of` made the model from one."""


def keys_of(record: type[Any], *, omit: Container[str] = (), **given: Any) -> type[FileModel]:
    """Return the model of a mapping in a file that gives a dataclass's fields, each of its type or
    null, and each of which may be absent.

    A dataclass in it is a mapping of its own keys, a tuple a list, and an entry of a mapping may be
    null. `omit`: fields that have no key. `given`: keys that are written otherwise, as
    `pydantic.create_model` takes them.
    """
    hints = get_type_hints(record, include_extras=True)
    keys = {
        own.name: (_written(hints[own.name]) | None, None)
        for own in fields(record)
        if own.name not in omit
    }
    made = create_model(f"{record.__name__}File", __base__=FileModel, **{**keys, **given})
    made.record = record
    return made


def _written(hint: Any) -> Any:
    """Return the type of a key for a field's type."""
    if isinstance(hint, type) and is_dataclass(hint):
        return keys_of(hint)
    parts = get_args(hint)
    match get_origin(hint):
        case origin if origin is Union or origin is UnionType:
            return reduce(or_, map(_written, parts))
        case origin if origin is Annotated:
            return Annotated[_written(parts[0]), *parts[1:]]
        case origin if origin is tuple:
            return GenericAlias(list, (parts[0],))
        case origin if origin is Mapping:
            return GenericAlias(dict, (parts[0], _written(parts[1]) | None))
    return hint


def load_mapping(path: Path) -> YamlMapping:
    """Return the mapping in a YAML file, with the line of every key.

    Raises UsageError if it cannot be read, is not YAML, is beyond its limits, or is not a
    mapping.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        check_size(len(data))
        loaded = parse_yaml(data.decode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text ({error.reason})") from error
    except YamlError as error:
        place = f"{path}:{error.line}" if error.line else str(path)
        raise UsageError(f"{place}: {error.problem}") from error
    if not isinstance(loaded, YamlMapping):
        raise UsageError(f"{path}: has no mapping", hint="Write 'key: value' lines at top level.")
    return loaded


def validate(model: type[Model], mapping: YamlMapping, path: Path) -> Model:
    """Return the model's value of a mapping read from `path`; raises UsageError naming line and
    key."""
    try:
        return model.model_validate(mapping)
    except ValidationError as error:
        raise UsageError("\n".join(_told(model, mapping, path, error))) from error


def load(model: type[Model], path: Path) -> Model:
    return validate(model, load_mapping(path), path)


def line_of(mapping: Any, keys: Iterable[str | int]) -> int | None:
    """Return the line (from 1) of the innermost of `keys` that is in the file."""
    line: int | None = None
    node = mapping
    for key in keys:
        if isinstance(node, YamlMapping) and key in node:
            line = node.lines.get(key, line)  # an extended recipe's is in another file
            node = node[key]
        elif isinstance(node, YamlList) and isinstance(key, int) and key < len(node):
            line = node.lines[key]
            node = node[key]
        # A key that is not in the file (a union's branch in pydantic's location): stay at this
        # line.
    return line


class Placing:
    """Put file and line before errors about a file that was read."""

    path: Path
    mapping: Mapping[str, Any]

    @contextmanager
    def _placed(self, *keys: str | int, among: Iterable[str] = ()) -> Iterator[None]:
        """Put file and line before the message about the value at `keys`; `among`: the keys below
        it that the sentence may quote."""
        try:
            yield
        except UsageError as error:
            below = [key for key in among if f"'{key}'" in error.message]
            place = self._place(*keys, *below[:1])
            raise UsageError(f"{place}: {error.message}", hint=error.hint) from error

    def _fail(self, said: str, *keys: str | int, hint: str | None = None) -> None:
        raise UsageError(f"{self._place(*keys)}: {said}", hint=hint)

    def _place(self, *keys: str | int) -> str:
        line = line_of(self.mapping, keys)
        return f"{self.path}:{line}" if line else str(self.path)


def _told(
    model: type[FileModel], mapping: YamlMapping, path: Path, error: ValidationError
) -> list[str]:
    """Return a line for each wrong value, even if it fails several branches of a union."""
    by_place: dict[tuple[str | int, ...], list[Any]] = {}
    for detail in error.errors():
        keys = detail["loc"]
        found = keys if detail["type"] in _OF_KEYS else keys[: len(_in_file(mapping, keys))]
        by_place.setdefault(found, []).append(detail | {"loc": found})
    told = [
        _explain(model, mapping, path, found) for found in islice(by_place.values(), _MOST_TOLD)
    ]
    more = len(by_place) - len(told)
    return [*told, *([f"{path}: and {more} more errors."] if more else [])]


def _in_file(mapping: Any, keys: Iterable[str | int]) -> list[str | int]:
    """Return the keys that lead to a value of the file, without pydantic's own (a union's
    branch)."""
    found: list[str | int] = []
    node = mapping
    for key in keys:
        # Mappings from a command line are plain ones.
        is_there = isinstance(node, dict) and key in node
        if not is_there and not (
            isinstance(node, list) and isinstance(key, int) and key < len(node)
        ):
            break
        found.append(key)
        node = node[key]
    return found


def _explain(model: type[FileModel], mapping: YamlMapping, path: Path, details: list[Any]) -> str:
    detail = details[0]
    location: tuple[str | int, ...] = detail["loc"]
    line = line_of(mapping, location)
    place = f"{path}:{line}" if line else str(path)
    key = _short(".".join(str(part) for part in location))
    if detail["type"] == "extra_forbidden":
        allowed = _allowed_keys(model, location[:-1])
        remedy = f" {nearest(str(location[-1]), allowed)}" if allowed else ""
        return f"{place}: unknown key '{key}'.{remedy}"
    if detail["type"] == "missing":
        wanted = _wanted(model, location)
        return f"{place}: key '{key}' is missing{f': {wanted} is needed' if wanted else ''}."
    found = detail.get("input")
    if isinstance(found, date):
        return f"{place}: '{key}' is a date to YAML: put it in quotes."
    shown = f"{place}: '{key}'"
    if not (isinstance(found, dict) and detail["type"] == "value_error"):
        shown += f" is {_short(_as_written(found))}"
    own = [one for one in details if one["type"] not in _OF_TYPES]
    if not own and (wanted := _wanted(model, location)):
        return f"{shown}: {wanted} is needed."
    # A model's own message covers the other branches of a union as well.
    details = own or details
    said = (str(one["msg"]).removeprefix("Value error, ") for one in details)
    said = (message.removeprefix("Input should be ") for message in said)
    messages = dict.fromkeys(f"{message[:1].lower()}{message[1:]}" for message in said)
    told = f"{shown}: {', or '.join(messages)}"
    return told if told.endswith(("?", ".")) else f"{told}."


def _wanted(model: type[FileModel], location: tuple[str | int, ...]) -> str:
    """Return the valid values at a place: 'a whole number from 1 to 99'; "" if the schema does not
    say."""
    schema = _schema_of(model)
    return needed(below(schema, location, schema.get("$defs", {})))


@cache
def _schema_of(model: type[FileModel]) -> Schema:
    """Return the model's JSON Schema, which takes pydantic up to 0.1 s."""
    return model.model_json_schema()


def _as_written(value: Any) -> str:
    """Return a value in YAML notation."""
    if isinstance(value, YamlMapping):
        return "a mapping"
    if isinstance(value, YamlList):
        return f"the list [{', '.join(_as_written(one) for one in value)}]"
    if value is None:
        return "empty"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _allowed_keys(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Return the keys that the model at `location` knows; [] if they are unknown."""
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
