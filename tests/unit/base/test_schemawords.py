"""What a value must be, in words, from the schema of its model."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from labctl.base.yaml import below, needed


class Inner(BaseModel):
    priority: Annotated[int, Field(ge=1, le=99)]
    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    cpus: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    policy: Literal["fifo", "rr"] = "fifo"
    large: Annotated[int, Field(le=2**24)] = 0


class Outer(BaseModel):
    one: Inner
    many: dict[str, Inner] = {}
    names: list[Annotated[str, Field(pattern="^a$")]] = []
    said: Annotated[str, Field(min_length=1)] = "x"
    is_on: bool = False


SCHEMA = Outer.model_json_schema()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (("one", "priority"), "a whole number from 1 to 99"),
        (("one", "share"), "a number above 0 and below 1"),
        (("one", "cpus"), "a whole number from 1, or 'auto'"),
        (("one", "policy"), "'fifo' or 'rr'"),
        (("one", "large"), "a whole number to 16777216"),
        (("many", "x", "priority"), "a whole number from 1 to 99"),
        (("many",), "a mapping ('key: value' lines, indented)"),
        (("one",), "a mapping ('key: value' lines, indented)"),
        (("names",), "a list"),
        (("names", 3), "a name (letters, digits, '+', '.', '_' and '-')"),
        (("said",), "a text that is not empty"),
        (("is_on",), "true or false"),
        (("one", "cpus", "literal['auto']"), "a whole number from 1, or 'auto'"),
    ],
)
def test_the_schema_says_what_is_needed(keys: tuple[str | int, ...], words: str) -> None:
    assert needed(below(SCHEMA, keys, SCHEMA["$defs"])) == words


def test_a_schema_without_a_type_says_nothing() -> None:
    assert needed([{}]) == ""
