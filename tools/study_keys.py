"""Print docs/studies.md: every key of a study's file, from its models (`make docs`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from labctl.base.jsonschema import texts_of
from labctl.base.schemawords import number
from labctl.base.yamlfile import FileModel
from labctl.study import conditionfile, factorfile, studyfile, tuningfile

_PARTS = (
    ("A study", studyfile.StudyFile),
    ("`roles`", studyfile.RolesFile),
    ("`workloads.NAME`", studyfile.WorkloadFile),
    ("`conditions.NAME`", conditionfile.ConditionFile),
    ("`conditions.NAME.neighbours`", conditionfile.NeighbourFile),
    ("`factors.NAME`", factorfile.FactorFile),
    ("`factors.NAME.levels.LEVEL`", factorfile.LevelFile),
    ("`stop`", studyfile.StopFile),
    ("`guest`", studyfile.GuestFile),
    ("`limits`", studyfile.LimitsFile),
    ("`expects`", studyfile.ExpectsFile),
    ("`quick`", studyfile.QuickFile),
    ("`requires.NAME`", tuningfile.RequiresFile),
)

_HEAD = """\
# The keys of a study

This page is for anyone who writes a study, in `benchmarks/` of a lab folder or of labctl. \
Afterwards you know each key, what it takes and what it is when you leave it out; \
`labctl sweep FILE --plan-only` then shows what the study would do here.

<!-- Written by 'make docs' from labctl/study/studyfile.py: change the texts there instead. -->

An editor with a YAML language server completes and checks keys where a file's first line is \
`# yaml-language-server: $schema=PATH`; `labctl schema study` prints that schema \
(`labctl schema` lists the other kinds of file).

A key in **bold** must be there. A key that isn't here is refused, with the nearest that is. This \
is a whole study; `benchmarks/pinning.yaml` is one that says more:

    title: Does pinning help the database host?
    tunings: [pinned, pinned+fifo]
    workloads: [sysbench-cpu, cyclictest]

[Factors](factors.md) vary what a study has beside its tunings. \
[How labctl judges](method.md) says what `no_worse_than`, `stop` and `looks` do to the verdicts.
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for title, model in _PARTS:
        parts.append(f"## {title}\n\n{table(model)}")
    return "\n".join(parts)


def table(model: type[FileModel]) -> str:
    """Return the keys of a model, each with what it takes and means, as a table of Markdown."""
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
        return f"[{', '.join(_as_yaml(one) for one in value)}]"
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
            return "text" if "pattern" not in schema else "a name"
        case kind:
            return number("whole number" if kind == "integer" else "number", schema)


if __name__ == "__main__":
    sys.stdout.write(page())
