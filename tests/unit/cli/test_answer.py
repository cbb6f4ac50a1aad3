"""The answer of a run as a user meets it: one record everywhere, and no file is believed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.answer.grade import evidence
from labctl.analysis.answer.json import NAME, write_answer
from labctl.analysis.judge import judge
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.store.run_places import fresh_runs
from tests.unit.analysis.alter import with_run
from tests.unit.cli.conftest import Labctl
from tests.unit.synthetic import one_tuning_run, write_run

POLICY = "undecided: open\nrules:\n  - {tuning: pinned, grade: %s}\n"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run 'one', and 'again', which measured its advice once more."""
    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setenv("LABCTL_RESULTS", str(folder))
    first = write_run(folder / "one", one_tuning_run(1))
    verify(folder, "again", one_tuning_run(2), first.load())
    return folder


def verify(results: Path, name: str, run: LoadedRun, first: LoadedRun) -> None:
    verifies = {"run": first.name, "tuning": "pinned", "evidence": evidence(first)}
    write_run(results / name, replace(with_run(run, verifies=verifies), name=name))


def decision(labctl: Labctl, run: str = "one") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(labctl("report", run, "--json").out)["decision"]
    return found


def test_report_advice_gate_and_page_have_the_same_answer(
    labctl: Labctl, results: Path, tmp_path: Path
) -> None:
    found = decision(labctl)
    assert found["grade"] == "confirmed"
    assert [one["run"] for one in found["tunings"][0]["fresh"]] == ["again"]
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY % "confirmed")
    gate = labctl("gate", "one", "--policy", str(policy), "--json")
    assert (gate.code, json.loads(gate.out)["decision"]) == (0, found)
    assert json.loads(labctl("advise", "one", "--json").out)["decision"] == found
    page = tmp_path / "page.html"
    labctl("report", "one", "--html", str(page))
    for text in (labctl("report", "one").out, labctl("advise", "one").out, page.read_text()):
        plain = text.replace("&#39;", "'")
        assert "Roll out 'pinned'." in plain
        assert "Confirmed. Fresh run again shows it again." in " ".join(plain.split())


def test_without_the_fresh_run_the_confirmation_is_gone(labctl: Labctl, results: Path) -> None:
    shutil.rmtree(results / "again")
    assert decision(labctl)["grade"] == "candidate"


def test_a_changed_answer_changes_nothing(labctl: Labctl, results: Path) -> None:
    shutil.rmtree(results / "again")
    folder = RunFolder(results / "one")
    write_answer(folder, judge(folder.load()).decision)
    written = json.loads((folder.path / NAME).read_text())
    assert written == decision(labctl)
    (folder.path / NAME).write_text(json.dumps({**written, "grade": "confirmed"}))
    assert decision(labctl)["grade"] == "candidate"


def test_a_run_whose_trials_were_changed_is_no_longer_confirmed(
    labctl: Labctl, results: Path
) -> None:
    samples = results / "one" / "trials" / "0001" / "samples.json"
    content = json.loads(samples.read_text())
    content["samples"][0]["value"] *= 1.01
    samples.write_text(json.dumps(content))
    found = decision(labctl)
    assert found["grade"] == "candidate"
    assert "it names a different state of run one" in found["sure"]


def test_where_nothing_can_be_written_the_answer_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    write_answer(RunFolder(tmp_path / "file"), judge(one_tuning_run(1)).decision)


def test_a_folder_that_is_no_run_is_passed_over(results: Path) -> None:
    (results / "broken").mkdir()
    (results / "broken" / "run.json").write_text('{"verifies":')
    (results / "link").mkdir()
    (results / "link" / "run.json").symlink_to("/etc/passwd")
    assert [run.name for run in fresh_runs(RunFolder(results / "one"))] == ["again"]
    assert fresh_runs(RunFolder(results / "again")) == []


def test_a_fresh_run_in_an_archive_counts_unless_that_is_damaged(
    labctl: Labctl, results: Path
) -> None:
    labctl("run", "export", "again", "--out", str(results / "packed.tar.xz"))
    shutil.rmtree(results / "again")
    assert [run.name for run in fresh_runs(RunFolder(results / "one"))] == ["packed"]
    whole = (results / "packed.tar.xz").read_bytes()
    (results / "packed.tar.xz").write_bytes(whole[: len(whole) // 4])
    assert fresh_runs(RunFolder(results / "one")) == []


def test_a_fresh_run_in_another_folder_of_runs_counts_as_well(
    labctl: Labctl, results: Path, tmp_path: Path
) -> None:
    shutil.move(results / "one", tmp_path / "one")
    assert decision(labctl, str(tmp_path / "one"))["grade"] == "confirmed"


@pytest.mark.parametrize(
    ("pinned", "grade", "status"),
    [(1.5, "candidate", 0), (1.5, "confirmed", 2), (0.7, "candidate", 1)],
)
def test_a_gate_asks_for_a_grade(
    labctl: Labctl, results: Path, tmp_path: Path, pinned: float, grade: str, status: int
) -> None:
    write_run(results / "two", one_tuning_run(3, pinned))
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY % grade)
    result = labctl("gate", "two", "--policy", str(policy))
    assert result.code == status
    assert "The run's answer: " in result.out
