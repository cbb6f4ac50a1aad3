"""Make the JSON Schema (2020-12) of a file's model, for editors."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from typing import Any

from pydantic import AliasChoices, BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

DIALECT = GenerateJsonSchema.schema_dialect
"""Draft that the schemas are of."""


def schema_of(model: type[BaseModel], title: str) -> dict[str, Any]:
    """Return the schema of the files that the model takes, each key with the text that stands
    below it in the model."""
    made = model.model_json_schema(schema_generator=_WithTexts)
    return {"$schema": DIALECT, **made, "title": title}


def texts_of(model: type[Any]) -> Mapping[str, str]:
    """Return by field the text that stands below it in the source; inherited ones included."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base.__module__.startswith("labctl."):
            found |= _texts_in(textwrap.dedent(inspect.getsource(base)))
    return found


def _texts_in(source: str) -> dict[str, str]:
    (body,) = ast.parse(source).body
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
