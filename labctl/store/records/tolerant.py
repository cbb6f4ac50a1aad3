"""Read a record from JSON that may be old, cut off or edited by hand.

Values of a wrong type are left out and named, so that a reader of the rest need not check again.
Keys that this labctl does not know stay.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, core_schema

LARGEST = 2**63
"""Limit on numbers: JSON's whole numbers are unlimited, and floats are not."""

T = TypeVar("T")


class _Plain:
    """Give a plain type one error, whose message is the type's name in a sentence."""

    def __init__(self, schema: Callable[[], CoreSchema], words: str) -> None:
        self._schema = schema
        self._words = words

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.custom_error_schema(
            self._schema(), custom_error_type="unfit", custom_error_message=self._words
        )


def _whole() -> CoreSchema:
    return core_schema.int_schema(strict=True, ge=-LARGEST, le=LARGEST)


def _number() -> CoreSchema:
    either: list[CoreSchema | tuple[CoreSchema, str]]
    either = [_whole(), core_schema.float_schema(strict=True)]
    return core_schema.union_schema(either, mode="left_to_right")


Text = Annotated[str, _Plain(lambda: core_schema.str_schema(strict=True), "a text")]
Whole = Annotated[int, _Plain(_whole, "a whole number")]
"""Whole number; JSON's true is not 1."""
Number = Annotated[float, _Plain(_number, "a number")]
"""Any number; a whole one stays whole, so that it is written as it was read."""
Flag = Annotated[bool, _Plain(lambda: core_schema.bool_schema(strict=True), "true or false")]

_WORDS = {
    "string_type": "a text",
    "string_unicode": "a text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "dataclass_type": "an object",
    "mapping_type": "an object",
}
"""Names in sentences for the type that pydantic expected."""


class Record(BaseModel):
    """Model a JSON object with known keys. null stands for a missing key, except in a required
    field."""

    # A record inside another is built as a part of that one.
    model_config = ConfigDict(
        frozen=True, extra="allow", ser_json_inf_nan="constants", defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if not isinstance(data, dict) or None not in data.values():
            return data
        fields = cls.model_fields
        return {
            key: value
            for key, value in data.items()
            if value is not None
            or (field := fields.get(key)) is None
            or field.default is None
            or field.is_required()
        }

    @classmethod
    def made(cls, content: Mapping[str, Any]) -> Self:
        """Return the record of this labctl's own data. Raises ValueError for a key that is not a
        field, or an invalid value."""
        cls.check_keys(content)
        return cls.model_validate(content)

    @classmethod
    def check_keys(cls, keys: Iterable[str]) -> None:
        """Raise ValueError for a key that is not a field: only another labctl may have written
        it."""
        if unknown := [key for key in keys if key not in cls.model_fields]:
            raise ValueError(f"{cls.__name__} has no {', '.join(map(repr, unknown))}")

    def to_json(self) -> dict[str, Any]:
        """Return the content of a file: the keys that were read or given, and no defaults."""
        return self.model_dump(mode="json", exclude_unset=True)


_LONGEST = 40
_GONE = object()


def as_far_as_whole(kind: type[T], data: Any) -> tuple[T | None, list[str]]:
    """Return `data` as a record without its invalid parts, and a sentence's end for each of these,
    such as "'tunings.pinned.kind' is 5 where a text belongs".

    An object without a required key is left out completely; None if that is all of it.
    """
    validator = adapter(kind)
    document: _Document | None = None
    problems: list[str] = []
    while document is None or document.value is not _GONE:
        try:
            return validator.validate_python(document.value if document else data), problems
        except ValidationError as error:
            document = document or _Document(copy.deepcopy(data))
            problems += document.without(error.errors(include_url=False))
    return None, problems


def known_keys(kind: type[Any]) -> set[str]:
    """Return every possible key of a record of this kind, including nested ones."""
    schema = TypeAdapter(kind).json_schema()
    objects = [schema, *schema.get("$defs", {}).values()]
    return {key for one in objects for key in one.get("properties", {})}


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
"""Adapters by type, each made once: making one takes longer than reading most files."""


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return the validator of a type."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


class _Document:
    """Hold a JSON document, and remove its invalid parts."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._numbers: dict[int, list[int]] = {}
        """Original indices of a list's items after some were removed, by the list's id."""
        self._taken: set[tuple[int, int | str]] = set()

    def without(self, errors: Sequence[ErrorDetails]) -> list[str]:
        """Remove what the errors name; return a sentence's end for each that is not a consequence
        of another."""
        sentences = []
        unfit: list[tuple[Any, int | str] | None] = []
        incomplete = set()
        for error in sorted(errors, key=lambda error: error["type"] == "missing"):
            path = [step for step in error["loc"] if step != "[key]"]
            lacking = path.pop() if error["type"] == "missing" else None
            holder, place, value = self._at(path)
            unfit.append(holder)
            if lacking is None:
                words = _words(error)
                sentences.append(f"'{place}': expected {words}, got {_shown(value)}")
            elif (id(value), lacking) not in self._taken and id(value) not in incomplete:
                incomplete.add(id(value))
                sentences.append(f"'{place}' has no '{lacking}'")
        self._take_out(unfit)
        return sentences

    def _at(self, path: Sequence[int | str]) -> tuple[tuple[Any, int | str] | None, str, Any]:
        """Return the container of the value at a path and its key there, the place in words, and
        the value."""
        holder, place, value = None, "", self.value
        for step in path:
            if isinstance(step, int):
                numbers = self._numbers.get(id(value))
                place += f"[{numbers[step] if numbers else step}]"
            else:
                place += f".{step}" if place else step
            holder, value = (value, step), value[step]
        return holder, place or "the file", value

    def _take_out(self, unfit: Iterable[tuple[Any, int | str] | None]) -> None:
        lists: dict[int, tuple[list[Any], set[int]]] = {}
        for holder in unfit:
            if holder is None:
                self.value = _GONE
                return
            within, key = holder
            self._taken.add((id(within), key))
            if isinstance(key, int):
                lists.setdefault(id(within), (within, set()))[1].add(key)
            else:
                within.pop(key, None)
        for within, items in lists.values():
            numbers = self._numbers.get(id(within)) or range(len(within))
            kept = [at for at in range(len(within)) if at not in items]
            self._numbers[id(within)] = [numbers[at] for at in kept]
            within[:] = [within[at] for at in kept]


def _words(error: ErrorDetails) -> str:
    if error["type"] == "enum":
        return str(error["ctx"]["expected"])
    return _WORDS.get(error["type"], error["msg"])


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
