"""`labctl lint`: files of every kind, by their folder or by their keys."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from labctl.cli.lint import _CHECKS, KINDS, kind_of
from tests.unit.cli.conftest import Labctl

ROOT = Path(__file__).parents[3]
POLICY = "undecided: open\nrules:\n  - {metric: iops, against: baseline, within: 5 %}\n"
ONE_OF_EACH = {
    "tuning": "domains/vcpupin.yaml",
    "study": "benchmarks/pinning.yaml",
    "workload": "benchmarks/workloads/hackbench.yaml",
    "condition": "benchmarks/conditions/neighbour.yaml",
    "recipe": "guest-images/debian-13-stock.yaml",
    "published": "benchmarks/published/scheduler-matrix.yaml",
}


def test_every_kind_that_has_a_schema_can_be_checked() -> None:
    assert set(_CHECKS) == set(KINDS) == {*ONE_OF_EACH, "policy"}


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_the_folder_says_the_kind(kind: str, labctl: Labctl) -> None:
    file = ROOT / ONE_OF_EACH[kind]
    said = labctl("lint", str(file))
    assert (said.code, said.out.splitlines()[0]) == (0, f"{file}: {kind}, valid")


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_elsewhere_the_keys_say_the_kind(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    shutil.copy(ROOT / ONE_OF_EACH[kind], file)
    assert kind_of(file) == kind


def test_a_policy_is_known_by_its_rules_and_a_tuning_of_any_folder_is_checked(
    labctl: Labctl, tmp_path: Path
) -> None:
    policy, tuning = tmp_path / "release.yaml", tmp_path / "mine.yaml"
    policy.write_text(POLICY)
    tuning.write_text("description: Mine.\nextends: vcpupin\nneeds: [nothing]\nrisks: [none]\n")
    said = labctl("lint", str(policy), str(tuning), "--json")
    found = json.loads(said.out)["files"]
    assert [(one["kind"], one["valid"]) for one in found] == [("policy", True), ("tuning", True)]
    assert said.code == 0


def test_what_is_wrong_is_told_with_file_line_and_key_and_the_others_are_checked_too(
    labctl: Labctl, tmp_path: Path
) -> None:
    wrong, right = tmp_path / "domains" / "mine.yaml", ROOT / ONE_OF_EACH["condition"]
    wrong.parent.mkdir()
    wrong.write_text("description: Mine.\nextends: vcpupinn\n")
    said = labctl("lint", str(wrong), str(right))
    assert said.code == 1
    lines = said.out.splitlines()
    assert lines[0] == f"{wrong}: tuning, NOT VALID"
    assert lines[1].startswith(f"  {wrong}:2: 'extends' is 'vcpupinn'")
    assert "Did you mean 'vcpupin'?" in lines[2]
    assert lines[-1] == f"{right}: condition, valid"
    assert said.err == ""


def test_a_file_that_is_not_yaml_is_not_valid(labctl: Labctl, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("a: [")
    said = labctl("lint", str(file), "--json")
    (found,) = json.loads(said.out)["files"]
    assert (said.code, found["kind"], found["valid"]) == (1, None, False)


def test_a_file_of_no_kind_is_not_valid_until_its_kind_is_named(
    labctl: Labctl, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("colour: blue\n")
    said = labctl("lint", str(file))
    assert said.code == 1
    assert "unknown kind of file" in said.out
    assert "--kind: study, tuning" in said.out
    said = labctl("lint", str(file), "--kind", "condition")
    assert said.code == 1
    assert "'colour'" in said.out


@pytest.mark.parametrize("words", [(), ("nosuch.yaml",), ("--kind", "x", "y")])
def test_wrong_usage_is_exit_code_2(labctl: Labctl, words: tuple[str, ...]) -> None:
    assert labctl("lint", *words).code == 2


def test_of_a_folder_the_files_in_known_folders_are_checked(labctl: Labctl, tmp_path: Path) -> None:
    assert labctl("lint", str(tmp_path)).code == 2
    for name in ("domains/a.yaml", "benchmarks/conditions/b.yaml", "other/c.yaml"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text("colour: blue\n")
    found = json.loads(labctl("lint", str(tmp_path), "--json").out)["files"]
    assert [(Path(one["file"]).name, one["kind"]) for one in found] == [
        ("b.yaml", "condition"),
        ("a.yaml", "tuning"),
    ]
