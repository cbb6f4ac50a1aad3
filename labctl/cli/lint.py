"""Run `labctl lint` and `labctl schema`: check files, and print their JSON Schemas."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from labctl.base.errors import ExitCode, LabctlError, UsageError
from labctl.cli.parts.common import print_json

# Run `labctl schema`: print the JSON Schema of a kind of file, for editors.


FIRST_LINE = "# yaml-language-server: $schema="
"""Start of the line that tells editors a file's schema, relative to the file."""


def _study_schema() -> dict[str, Any]:
    from labctl.base.json import schema_of
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
    inline = _workload_schema()
    shared = inline.pop("$defs")
    del inline["$schema"]
    made["$defs"] |= {**shared, "DeclaredFile": {**inline, "title": "A workload of this file's"}}
    for holder in holders:
        define = made["$defs"][holder]["properties"]["define"]
        define["anyOf"] = [{"$ref": "#/$defs/DeclaredFile"}, {"type": "null"}]


def _or_empty(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _tuning_schema() -> dict[str, Any]:
    from labctl.base.json import schema_of
    from labctl.study.tunings import TuningFile

    return schema_of(TuningFile, "A tuning of labctl")


def _recipe_schema() -> dict[str, Any]:
    from labctl.base.json import schema_of
    from labctl.guest.recipe import RecipeFile

    made = schema_of(RecipeFile, "A guest image of labctl")
    # What a recipe extends has the keys that it leaves out.
    text = "The recipe whose keys it has where it has none of its own."
    made["properties"]["extends"] = {"type": "string", "description": text}
    made["anyOf"] = [{"required": ["extends"]}, {"required": made.pop("required")}]
    return made


def _policy_schema() -> dict[str, Any]:
    from labctl.analysis.gate.policy import Policy
    from labctl.base.json import schema_of

    return schema_of(Policy, "A gate's policy of labctl")


def _published_schema() -> dict[str, Any]:
    from labctl.base.json import schema_of
    from labctl.study.published_file import PublishedFile

    return schema_of(PublishedFile, "Published results that a study of labctl repeats")


def _condition_schema() -> dict[str, Any]:
    from labctl.base.json import schema_of
    from labctl.study.conditions import ConditionFile

    made = schema_of(ConditionFile, "A condition of labctl")
    _define_workloads(made, "NeighbourFile")
    return made


def _workload_schema() -> dict[str, Any]:
    from labctl.base.json import schema_of
    from labctl.workloads.workload_file import DeclaredFile

    return schema_of(DeclaredFile, "A workload of labctl")


KINDS: Mapping[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "study": (_study_schema, "benchmarks/*.yaml"),
    "tuning": (_tuning_schema, "domains/*.yaml"),
    "recipe": (_recipe_schema, "guest-images/*.yaml"),
    "workload": (_workload_schema, "benchmarks/workloads/*.yaml"),
    "condition": (_condition_schema, "benchmarks/conditions/*.yaml"),
    "policy": (_policy_schema, "what 'labctl gate --policy' reads"),
    "published": (_published_schema, "benchmarks/published/*.yaml"),
}
"""Kind of file to its schema, and where such files lie."""


@click.command("schema")
@click.argument("kind", required=False)
@click.option("--json", "as_json", is_flag=True, help="List the kinds as JSON.")
def schema(kind: str | None, as_json: bool) -> None:
    """Print the JSON Schema of a KIND of file, for editors.

    Without KIND, list them. 'labctl schema study > study.schema.json' beside a study, and
    '# yaml-language-server: $schema=study.schema.json' as its first line.
    """
    from labctl.base.errors import nearest
    from labctl.cli.parts.common import console, listing, print_json

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
        raise UsageError(f"no schema for '{kind}'", hint=nearest(kind, KINDS))
    print_json(KINDS[kind][0]())


# Run `labctl lint`: check files of any kind that labctl reads.


SCHEMA = 1

_FOLDERS = {
    "domains": "tuning",
    "benchmarks": "study",
    "benchmarks/workloads": "workload",
    "benchmarks/conditions": "condition",
    "benchmarks/published": "published",
    "guest-images": "recipe",
}
"""End of a folder's path to the kind of files that it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linted:
    """Hold what is wrong with a file, a text each, and notes that make it no less valid. `kind`:
    None where neither its folder nor its keys say it."""

    file: Path
    kind: str | None
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "file": str(self.file),
            "kind": self.kind,
            "valid": not self.problems,
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


@click.command("lint")
@click.argument(
    "files",
    metavar="FILE|FOLDER...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
)
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    help="Kind of the files (default: from their folder or keys).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(context: click.Context, files: Sequence[Path], kind: str | None, as_json: bool) -> None:
    """Check files: keys, values, names and references. Nothing is run.

    A file is a tuning, a study, a workload, a condition, an image recipe, a gate's policy or
    published results. Its folder (domains/, benchmarks/, …) decides the kind, elsewhere its keys.
    In a FOLDER, all files in such folders are checked.

    Exit code: 1 when a file is not valid.
    """
    linted = [_linted(path, kind) for given in files for path in _files_of(given)]
    if as_json:
        print_json({"schema": SCHEMA, "files": [one.to_json() for one in linted]})
    else:
        for one in linted:
            _show(one)
    if any(one.problems for one in linted):
        context.exit(ExitCode.FOUND)


def _show(one: Linted) -> None:
    from labctl.base.wording import printable

    what = f"{one.kind}, " if one.kind else ""
    click.echo(f"{printable(str(one.file))}: {what}{'NOT VALID' if one.problems else 'valid'}")
    for text in (*one.problems, *one.notes):
        for line in text.splitlines():
            click.echo(f"  {printable(line)}")


def _linted(path: Path, asked: str | None) -> Linted:
    kind = asked
    try:
        kind = kind or kind_of(path)
        problems, notes = _CHECKS[kind](path)
    except LabctlError as error:
        hint = [error.hint] if error.hint else []
        return Linted(file=path, kind=kind, problems=["\n".join([error.message, *hint])])
    return Linted(file=path, kind=kind, problems=problems, notes=notes)


def _files_of(given: Path) -> list[Path]:
    """Return the file, or those of a folder that lie where labctl looks for them."""
    if not given.is_dir():
        return [given]
    try:
        found = [path for path in sorted(given.rglob("*.yaml")) if _kind_by_folder(path)]
    except OSError as error:  # a folder below is gone meanwhile, as those of processes are
        raise UsageError(f"{given} cannot be read: {error}") from error
    if not found:
        raise UsageError(
            f"{given} has no folder of files that labctl knows",
            hint=f"Expected one of {', '.join(_FOLDERS)}. Or name the files.",
        )
    return found


def _kind_by_folder(path: Path) -> str | None:
    parts = Path(os.path.realpath(path)).parent.parts
    return _FOLDERS.get("/".join(parts[-2:])) or _FOLDERS.get(parts[-1])


def kind_of(path: Path) -> str:
    """Return the kind of a file by its folder, else by its keys. Raises UsageError when neither
    says it, and for a file that is not YAML."""
    from labctl.base.yaml import load_mapping

    if kind := _kind_by_folder(path):
        return kind
    keys = set(load_mapping(path))
    shared = {kind: len(keys & set(schema()["properties"])) for kind, (schema, _) in KINDS.items()}
    most = max(shared.values())
    likely = [kind for kind, count in shared.items() if count == most]
    if most == 0 or len(likely) > 1:
        raise UsageError(
            f"{path}: unknown kind of file",
            hint=f"Name it with --kind: {', '.join(likely if most else KINDS)}.",
        )
    return likely[0]


_Found = tuple[Sequence[str], Sequence[str]]
"""Problems and notes."""


def _as_path(path: Path) -> str:
    """Return the path in a form that is not taken for a name."""
    return f"{path.parent}/{path.name}"


def _tuning(path: Path) -> _Found:
    from labctl.cli.tuning import validated
    from labctl.study.tunings import tuning_in

    tuning = tuning_in(path)
    (result,) = validated({tuning.name: tuning})
    lacking = [f"not here: {text}" for text in result["lacking"]]
    return result["problems"], [*lacking, *result["warnings"]]


def _study(path: Path) -> _Found:
    from labctl.cli.study import facts_of

    facts_of(_as_path(path))
    return (), ()


def _workload(path: Path) -> _Found:
    from labctl.cli.workload import facts_of, found_workload

    facts_of(found_workload(_as_path(path)))
    return (), ()


def _condition(path: Path) -> _Found:
    from labctl.cli.condition import facts_of
    from labctl.study.conditions import load_condition
    from labctl.workloads.registry import checkers

    facts_of(load_condition(_as_path(path), checkers()))
    return (), ()


def _recipe(path: Path) -> _Found:
    from labctl.guest.recipe import recipe_in

    recipe_in(path)
    return (), ()


def _policy(path: Path) -> _Found:
    from labctl.analysis.gate.policy import load_policy

    load_policy(path)
    return (), ()


def _published(path: Path) -> _Found:
    from labctl.base.yaml import load
    from labctl.study.published_file import PublishedFile

    load(PublishedFile, path)
    return (), ()


_CHECKS: Mapping[str, Callable[[Path], _Found]] = {
    "tuning": _tuning,
    "study": _study,
    "workload": _workload,
    "condition": _condition,
    "recipe": _recipe,
    "policy": _policy,
    "published": _published,
}
"""Kind of file to its check, which raises a LabctlError or returns problems."""
