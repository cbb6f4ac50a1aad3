"""`labctl study list` and `show`: what each study compares, without a look at this host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labctl.study.study import study_names
from tests.unit.cli.conftest import Labctl


def test_the_list_is_that_of_a_sweep_without_a_study(labctl: Labctl) -> None:
    said, sweep = labctl("study", "list"), labctl("sweep")
    assert (said.code, sweep.code) == (0, 2)
    assert said.out == sweep.out
    listed = json.loads(labctl("study", "list", "--json").out)["studies"]
    assert [one["name"] for one in listed] == study_names()


@pytest.mark.parametrize("name", study_names())
def test_every_study_is_shown_with_its_size(labctl: Labctl, name: str) -> None:
    said = labctl("study", "show", name, "--json")
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    assert found["name"] == name
    assert found["question"]
    assert found["size"]["trials"] > 0
    assert found["quick"] is None or found["quick"]["expected_s"] < found["size"]["expected_s"]


def test_what_a_study_compares_is_shown_for_people(labctl: Labctl) -> None:
    said = " ".join(labctl("study", "show", "pinning").out.split())
    for words in (
        "pinning: What does pinning do on this host?",
        "baseline (baseline)",
        "pinned+fifo",
        "Conditions: quiet, neighbour",
        "cyclictest 30 open-loop mean latency 10 %",
        "labctl sweep pinning: 17 arms, 5 workloads, 2 conditions, 20 blocks: at most 3400 trials",
        "labctl sweep pinning --quick: 8 arms",
    ):
        assert words in said


def test_factors_are_shown_with_their_levels_and_not_as_cells(labctl: Labctl) -> None:
    said = labctl("study", "show", "cloud-gaming").out
    assert "Factor scheduler: other, fifo" in said
    assert "[scheduler=" not in said


def test_a_study_of_ones_own_is_shown_by_its_path_and_a_wrong_one_is_refused(
    labctl: Labctl, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "title: Mine?\nroles: {baseline: baseline}\ntunings: [baseline, pinned]\n"
        "workloads: [sysbench-cpu]\n"
    )
    found = json.loads(labctl("study", "show", str(file), "--json").out)
    assert (found["quick"], found["file"]) == (None, str(file))
    file.write_text(file.read_text() + "colour: blue\n")
    said = labctl("study", "show", str(file))
    assert said.code == 2
    assert "mine.yaml:5: unknown key 'colour'" in said.err
    assert "Did you mean 'pinning'?" in labctl("study", "show", "pining").err


def test_a_new_study_is_written_to_the_lab_folder_and_can_be_swept(
    labctl: Labctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = tmp_path / "lab"
    assert labctl("init", str(lab)).code == 0
    monkeypatch.chdir(lab)
    words = ("study", "new", "cache", "--tuning", "pinned", "--workload", "redis-get")
    said = labctl(*words)
    assert (said.code, said.err) == (0, "")
    assert "labctl sweep cache --plan-only" in said.out
    found = json.loads(labctl("study", "show", "cache", "--json").out)
    assert found["question"] == "What does 'pinned' do in redis-get?"
    assert "exists already" in labctl(*words).err
    assert "no tuning 'pined'" in labctl("study", "new", "other", "--tuning", "pined").err
    assert not (lab / "benchmarks" / "other.yaml").exists()
    assert "is not a name" in labctl("study", "new", "../x").err


def test_a_new_study_without_a_lab_folder_is_refused(
    labctl: Labctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = labctl("study", "new", "cache")
    assert said.code == 2
    assert "labctl init" in said.err
