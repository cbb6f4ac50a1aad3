"""Editors know the keys of every file: its first line names a schema that it fits."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from labctl.base.yaml import load_mapping
from labctl.base.yamltext import parse_yaml
from labctl.cli.lint import FIRST_LINE, KINDS
from labctl.study.studyfile import StudyFile
from labctl.workloads.workload_file import DeclaredFile
from tests.unit.schema_check import misfits
from tools.schemas import FOLDER, texts

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for folder in ("benchmarks", "domains", "guest-images")
    for path in (ROOT / folder).rglob("*.yaml")
)
FOLDERS = {
    "benchmarks": "study",
    "benchmarks/published": "published",
    "benchmarks/workloads": "workload",
    "benchmarks/conditions": "condition",
    "domains": "tuning",
    "guest-images": "recipe",
}


@cache
def schema_of(kind: str) -> dict[str, Any]:
    return KINDS[kind][0]()


def refused(kind: str, text: str) -> list[str]:
    schema = schema_of(kind)
    return list(misfits(parse_yaml(text), schema, schema))


def test_the_files_of_the_schemas_are_those_that_the_models_make() -> None:
    found = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert found == texts(), "run: make docs"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_s_first_line_names_its_schema_and_it_fits(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith(FIRST_LINE)
    kind = FOLDERS[str(path.parent.relative_to(ROOT))]
    named = (path.parent / first.removeprefix(FIRST_LINE)).resolve()
    assert named == FOLDER / f"{kind}.json"
    schema = schema_of(kind)
    assert list(misfits(load_mapping(path), schema, schema)) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("study", "title: T\ntunings: all\nworkloads: [sysbench-cpu]\n"),
        ("study", "title: T\ntunings: [a]\nworkloads: {sysbench-cpu: }\n"),
        ("study", "title: T\ntunings: [a]\nworkloads: {w: {duration_s: 2}}\n"),
        ("study", "title: T\ntunings: [a]\nworkloads: [w]\nroles: {baseline: b, known_loss: h}\n"),
        (
            "study",
            "title: T\ntunings: [a]\n"
            "workloads: {w: {define: {description: d, command: [a], primary: elapsed}}}\n",
        ),
        ("workload", "description: d\ncommand: [a, {when: x, argv: [b]}]\nprimary: elapsed\n"),
        ("tuning", "description: d\nhost: {vm.swappiness: 10, x: '1', y: }\n"),
        ("tuning", "description: d\npin: {vcpus: {0: 2, 1: '2-3'}, emulator: 1}\n"),
        ("recipe", "extends: debian-13\npackages: [fio]\n"),
        ("policy", "undecided: fail\nrules: [{facts: all, like: r}]\n"),
        ("policy", "undecided: open\nrules: [{metric: m, within: 5 %, like: r}]\n"),
        ("policy", "undecided: open\nrules: [{metric: m, below: 5}]\n"),
    ],
)
def test_what_labctl_takes_a_schema_takes(kind: str, text: str) -> None:
    assert refused(kind, text) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("study", "title: T\ntunings: [a]\nworkload: [w]\nworkloads: [w]\n"),
        ("study", "title: T\ntunings: [a]\nworkloads: {w: {duration_s: '2'}}\n"),
        (
            "study",
            "title: T\ntunings: [a]\nworkloads: {w: {define: {description: d, comand: [a]}}}\n",
        ),
        ("workload", "description: d\ncommand: [seq, 5]\nprimary: elapsed\n"),
        ("tuning", "description: d\nkvm: {poll_control: 1}\n"),
        ("recipe", "packages: [fio]\n"),
        ("policy", "undecided: maybe\nrules: [{facts: all, like: r}]\n"),
    ],
)
def test_what_labctl_refuses_for_its_keys_or_types_a_schema_refuses(kind: str, text: str) -> None:
    assert refused(kind, text)


def test_keys_have_the_texts_that_stand_below_them_in_the_models() -> None:
    title = KINDS["study"][0]()["properties"]["title"]
    assert title["description"] == "The question that the study asks; it heads the report."


def test_a_model_of_a_study_has_no_namesake_in_its_workloads() -> None:
    study = StudyFile.model_json_schema()["$defs"]
    workload = DeclaredFile.model_json_schema()["$defs"]
    assert not study.keys() & workload.keys()
