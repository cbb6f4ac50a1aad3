"""Run `labctl schema`: print the JSON Schema of a kind of file, for editors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from labctl.base.errors import UsageError

FIRST_LINE = "# yaml-language-server: $schema="
"""Start of the line that tells editors a file's schema, relative to the file."""


def _study() -> dict[str, Any]:
    from labctl.base.jsonschema import schema_of
    from labctl.study.studyfile import StudyFile

    made = schema_of(StudyFile, "A study of labctl")
    # A list of programs, and a workload without a program, are filled in before the model looks.
    made["$defs"]["WorkloadFile"].pop("required", None)
    workloads = made["properties"]["workloads"]
    for values in (*workloads.get("patternProperties", {}).values(), workloads):
        if "$ref" in (values.get("additionalProperties") or {}):
            values["additionalProperties"] = _or_empty(values["additionalProperties"])
        elif "$ref" in values:
            values |= _or_empty({"$ref": values.pop("$ref")})
    text = workloads.pop("description")
    _define_workloads(made, "WorkloadFile", "NeighbourFile")
    names = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    made["properties"]["workloads"] = {"anyOf": [workloads, names], "description": text}
    return made


def _define_workloads(made: dict[str, Any], *holders: str) -> None:
    """Give `define` of these parts of a schema the keys of a workload."""
    inline = _workload()
    shared = inline.pop("$defs")
    del inline["$schema"]
    made["$defs"] |= {**shared, "DeclaredFile": {**inline, "title": "A workload of this file's"}}
    for holder in holders:
        define = made["$defs"][holder]["properties"]["define"]
        define["anyOf"] = [{"$ref": "#/$defs/DeclaredFile"}, {"type": "null"}]


def _or_empty(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _tuning() -> dict[str, Any]:
    from labctl.base.jsonschema import schema_of
    from labctl.study.tuningfile import TuningFile

    return schema_of(TuningFile, "A tuning of labctl")


def _recipe() -> dict[str, Any]:
    from labctl.base.jsonschema import schema_of
    from labctl.guest.recipe import RecipeFile

    made = schema_of(RecipeFile, "A guest image of labctl")
    # What a recipe extends has the keys that it leaves out.
    text = "The recipe whose keys it has where it has none of its own."
    made["properties"]["extends"] = {"type": "string", "description": text}
    made["anyOf"] = [{"required": ["extends"]}, {"required": made.pop("required")}]
    return made


def _policy() -> dict[str, Any]:
    from labctl.analysis.gate.policy import Policy
    from labctl.base.jsonschema import schema_of

    return schema_of(Policy, "A gate's policy of labctl")


def _published() -> dict[str, Any]:
    from labctl.base.jsonschema import schema_of
    from labctl.study.published_file import PublishedFile

    return schema_of(PublishedFile, "Published results that a study of labctl repeats")


def _condition() -> dict[str, Any]:
    from labctl.base.jsonschema import schema_of
    from labctl.study.conditionfile import ConditionFile

    made = schema_of(ConditionFile, "A condition of labctl")
    _define_workloads(made, "NeighbourFile")
    return made


def _workload() -> dict[str, Any]:
    from labctl.base.jsonschema import schema_of
    from labctl.workloads.workload_file import DeclaredFile

    return schema_of(DeclaredFile, "A workload of labctl")


KINDS: Mapping[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "study": (_study, "benchmarks/*.yaml"),
    "tuning": (_tuning, "domains/*.yaml"),
    "recipe": (_recipe, "guest-images/*.yaml"),
    "workload": (_workload, "benchmarks/workloads/*.yaml"),
    "condition": (_condition, "benchmarks/conditions/*.yaml"),
    "policy": (_policy, "what 'labctl gate --policy' reads"),
    "published": (_published, "benchmarks/published/*.yaml"),
}
"""Kind of file to its schema, and where such files lie."""


@click.command("schema")
@click.argument("kind", required=False)
@click.option("--json", "as_json", is_flag=True, help="List the kinds as JSON.")
def command(kind: str | None, as_json: bool) -> None:
    """Print the JSON Schema of a KIND of file, so that an editor knows its keys.

    Without KIND, list them. 'labctl schema study > study.schema.json' beside a study, and
    '# yaml-language-server: $schema=study.schema.json' as its first line.
    """
    from labctl.base.nearest import nearest
    from labctl.cli.common import console, listing, print_json

    if kind is None:
        rows = [{"name": name, "files": files} for name, (_, files) in KINDS.items()]
        if as_json:
            print_json({"schema": 1, "kinds": rows})
            return
        table = listing("kind", "files")
        for row in rows:
            table.add_row(row["name"], row["files"])
        console(listing=True).print(table)
        return
    if kind not in KINDS:
        raise UsageError(f"there is no schema of '{kind}'", hint=nearest(kind, KINDS))
    print_json(KINDS[kind][0]())
