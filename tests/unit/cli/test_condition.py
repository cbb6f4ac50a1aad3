"""`labctl condition` as a user calls it, and what a plan shows of neighbours."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from labctl.base.paths import StatePaths, shipped_data
from labctl.run.planning.plan import plan_sweep
from labctl.run.planning.planned import SweepRequest
from labctl.study.conditions import load_condition
from labctl.study.load_study import Overrides
from labctl.workloads.registry import checkers
from tests.unit.cli.conftest import Labctl

PAGE = (shipped_data() / "docs/conditions.md").read_text()
SPIN = """\
title: Mine?
tunings: [pinned]
workloads:
  sysbench-cpu:
  spin:
    define:
      description: spins
      command: [/usr/bin/spin, "--for={{ duration }}"]
      trial: {kind: duration}
      primary: elapsed
conditions:
  mine:
    description: a program of my own, and one of labctl's
    neighbours:
      - {workload: spin, count: 1, run_s: 2}
      - {workload: cpu-hog, count: 1}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("description: mine\nneighbours:\n  - {workload: cpu-hog, count: 3, cpus: 0}\n")
    return path


def test_the_list_says_what_runs_beside_trials_and_whose_it_is(
    labctl: Labctl, tmp_path: Path, mine: Path
) -> None:
    lab = tmp_path / "lab"
    assert labctl("init", str(lab)).code == 0
    (lab / "benchmarks/conditions").mkdir(parents=True)
    (lab / "benchmarks/conditions/three.yaml").write_text(mine.read_text())
    said = labctl("--lab", str(lab), "condition", "list", "--json")
    rows = {row["name"]: row for row in json.loads(said.out)["conditions"]}
    assert {name: row["from"] for name, row in rows.items()} == {
        "neighbour": "labctl",
        "noisy-guests": "labctl",
        "quiet": "labctl",
        "three": "yours",
    }
    assert rows["quiet"]["neighbours"] == []
    assert rows["noisy-guests"]["neighbours"] == [
        "one cpu-hog per vCPU, everywhere, in each of 2 guests"
    ]
    assert rows["three"]["neighbours"] == ["3 x cpu-hog, on CPUs 0"]
    assert "one cpu-hog per" in labctl("condition", "list").out


def test_a_condition_is_shown_with_its_commands_and_as_whom_they_run(
    labctl: Labctl, mine: Path
) -> None:
    said = labctl("condition", "show", str(mine)).out
    assert "3 x cpu-hog, on CPUs 0\n  here: CPUs 0\n" in said
    assert "command (as uid 64917): /usr/bin/stress-ng --cpu=1" in said
    (one,) = json.loads(labctl("condition", "show", str(mine), "--json").out)["neighbours"]
    assert (one["program"], one["count"], one["here"]) == ("cpu-hog", 3, "CPUs 0")


def test_what_this_host_cannot_have_is_said_where_it_is_shown(labctl: Labctl, mine: Path) -> None:
    mine.write_text(mine.read_text().replace("cpus: 0", "cpus: 16000"))
    said = labctl("condition", "show", str(mine)).out
    assert "here: not possible: its neighbours want CPUs 16000" in said


def test_a_wrong_file_is_named_with_its_line(labctl: Labctl, mine: Path) -> None:
    assert labctl("condition", "validate", str(mine)).code == 0
    mine.write_text(mine.read_text().replace("cpu-hog", "cpu-hug"))
    said = labctl("condition", "validate", str(mine))
    assert said.code == 2
    assert f"{mine}:3: no workload 'cpu-hug'" in said.err


def test_a_plan_shows_the_commands_of_neighbours_that_labctl_does_not_bring(
    labctl: Labctl, tmp_path: Path
) -> None:
    study = tmp_path / "spin.yaml"
    study.write_text(SPIN)
    said = labctl("sweep", str(study), "--plan-only").out
    assert "condition 'mine', neighbour 1, spin, beside the trial, as uid 64917:" in said
    assert "command, repeated: /usr/bin/spin --for=2" in said
    assert "neighbour 2" not in said
    assert "1 x spin, everywhere; 1 x cpu-hog, everywhere" in " ".join(said.split())


def planned(study: Path, tmp_path: Path, **overrides: object) -> SweepRequest:
    return SweepRequest(
        study=str(study),
        places=StatePaths(tmp_path / "state"),
        results=tmp_path,
        overrides=Overrides(**overrides),  # type: ignore[arg-type]
        seed=1,
    )


def test_packages_and_files_of_neighbours_are_in_the_image_of_a_study(tmp_path: Path) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text(
        "title: Mine?\ntunings: [pinned]\nworkloads: [sysbench-cpu]\nconditions:\n  redis:\n"
        "    description: a server and its client\n"
        "    neighbours: [{workload: redis-get, count: 1}]\n  quiet:\n"
    )
    with_neighbours = plan_sweep(planned(study, tmp_path))
    alone = plan_sweep(planned(study, tmp_path, conditions=["quiet"]))
    assert with_neighbours.recipe.digest != alone.recipe.digest
    assert with_neighbours.in_the_tree == ["redis"]
    assert not alone.is_noisy


def test_the_page_s_examples_are_conditions(tmp_path: Path) -> None:
    found = []
    for text in re.findall(r"<!-- examples -->\n```yaml\n(.*?)```", PAGE, re.DOTALL):
        path = tmp_path / "example.yaml"
        path.write_text(text)
        (one,) = load_condition(str(path), checkers()).neighbours
        found.append((one.program, one.count, one.quota_percent, one.guests))
    assert found == [("hackbench", 2, 50, None), ("cpu-hog", None, None, 4)]
