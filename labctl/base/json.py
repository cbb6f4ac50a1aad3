"""Parse JSON within limits, and make JSON Schemas (2020-12) of models."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import orjson
from pydantic import AliasChoices, BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Parse JSON from guests, tools and files to plain values, within limits.


MOST_BYTES: Final = 64 << 20
"""Limit for one text. The plan of 100,000 trials has some 10 MiB."""
MOST_DEEP: Final = 64
"""Levels of lists and objects: walking through them never exhausts the stack."""
MOST_GROUPS: Final = 2_000_000
"""Lists and objects together, of which an empty one takes 64 bytes of memory."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ALL_BUT_BRACKETS_AND_QUOTES = bytes(set(_ALL_BUT_BRACKETS) - set(b'"'))

_CONTROLS = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]"
)


def without_controls(data: bytes) -> bytes:
    """Return JSON text (UTF-8) with the control characters escaped that JSON lets stand: U+007F to
    U+009F, of which terminals take some for the begin of a sequence, and those by which a text
    is read in another direction."""
    if data.isascii() and b"\x7f" not in data:
        return data  # a tenth of the time of looking
    return _CONTROLS.sub(lambda found: b"\\u%04x" % ord(found.group().decode()), data)


def fields_of(record: DataclassInstance, *, without: Collection[str] = ()) -> dict[str, object]:
    """Return a record's fields by name, in their order, for a JSON object that has these keys."""
    return {key: value for key, value in asdict(record).items() if key not in without}


def parse_json(text: str | bytes) -> Any:
    """Return the value of a text; numbers that aren't any (NaN) are taken, as some tools write
    them.

    Raises ValueError for what is no JSON, and for what is beyond a limit, which it names.
    """
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    check_size(len(data))
    _check_groups(data)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # Python's own knows NaN, and says where it can't go on.
        value = json.loads(data.decode())
    if b"\\ud" in data.lower():
        _check_pairs(value)
    return value


def _check_pairs(value: Any) -> None:
    """Raise ValueError for half of a surrogate pair, which no file or stream can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair in a text") from error


def check_size(size: int) -> None:
    """Raise ValueError for more bytes than a text may have."""
    if size > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES >> 20} MiB, the limit for JSON")


def _check_groups(data: bytes) -> None:
    """Raise ValueError for too many lists and objects, or too many in each other."""
    left = _brackets(data)
    groups = left.count(b"[") + left.count(b"{")
    if groups <= MOST_DEEP:
        return
    if groups > MOST_GROUPS:
        raise ValueError(f"more than {MOST_GROUPS} lists and objects")
    for _ in range(MOST_DEEP):
        if not left:
            return
        left = left.replace(b"[]", b"").replace(b"{}", b"")
    if left:
        raise ValueError(f"nested deeper than {MOST_DEEP} levels")


def _brackets(data: bytes) -> bytes:
    """Return the brackets of a text that stand outside of its strings."""
    if b"\\" in data:
        return _STRING.sub(b"", data).translate(None, _ALL_BUT_BRACKETS)
    # Quotes side by side have no bracket between them, so without them each bracket is still inside
    # a string or outside. It takes a quarter of the time of splitting at every quote.
    left = data.translate(None, _ALL_BUT_BRACKETS_AND_QUOTES).replace(b'""', b"")
    return b"".join(left.split(b'"')[::2])


# Make the JSON Schema (2020-12) of a file's model, for editors.


DIALECT = GenerateJsonSchema.schema_dialect
"""Draft that the schemas are of."""


def schema_of(model: type[BaseModel], title: str) -> dict[str, Any]:
    """Return the schema of the files that the model takes, each key with the text that stands
    below it in the model."""
    made = model.model_json_schema(schema_generator=_WithTexts)
    return {"$schema": DIALECT, **made, "title": title}


def texts_of(model: type[Any]) -> Mapping[str, str]:
    """Return by field the text that stands below it in the source; inherited ones included, and
    those of the record that a model is made from."""
    if record := getattr(model, "record", None):
        return _texts_in(record)
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base.__module__.startswith("labctl."):
            found |= _texts_in(base)
    return found


def _texts_in(made: type[Any]) -> dict[str, str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(made))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for key, text in zip(body.body, body.body[1:], strict=False):
        match key, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as said)),
            ):
                found[name] = " ".join(said.split())
    return found


class _WithTexts(GenerateJsonSchema):
    """Add to each key its text, and to each model the other names that a key goes by."""

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        found = super().model_schema(schema)
        model = schema["cls"]
        texts = texts_of(model)
        found.pop("title", None)
        properties = found.get("properties", {})
        for name, field in model.model_fields.items():
            alias = field.validation_alias
            names = alias.choices if isinstance(alias, AliasChoices) else [alias or name]
            key = next((one for one in names if one in properties), None)
            if key is None:
                continue
            properties[key].pop("title", None)
            if name in texts:
                properties[key]["description"] = texts[name]
            for other in names:
                properties.setdefault(str(other), properties[key])
        return found
