"""`labctl run verify`, from its argv to its exit code."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from labctl.store.archive import folder_digest, pack
from labctl.store.run_folder import RunFolder
from tests.unit.records import write_plan, write_run_json
from tests.unit.store.test_fitting_plan import planned, ran

from .conftest import Labctl


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("LABCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path / "results"))
    folder = RunFolder.create(tmp_path / "results", "r1")
    write_run_json(folder, {"status": "done"})
    tunings = {"baseline": {"kind": "guest"}}
    write_plan(folder, {"schema": 1, "tunings": tunings, "trials": [planned(1, 1)]})
    ran(folder, planned(1, 1))
    return folder


def test_a_whole_run_ends_with_0(run: RunFolder, labctl: Labctl) -> None:
    said = labctl("run", "verify", run.name)
    assert (said.code, said.out) == (0, "1 trial of r1 checked.\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--study-digest", "a" * 64, "--seed", "7"), 0, ""),
        (
            ("--study-digest", "b" * 64),
            1,
            "measured another study: expected digest bbbbbbbbbbbb…, got aaaaaaaaaaaa…",
        ),
        (("--seed", "8"), 1, "measured with another seed: expected 8, got 7"),
    ],
)
def test_a_run_of_another_study_or_seed_is_refused(
    run: RunFolder, labctl: Labctl, words: tuple[str, ...], code: int, said: str
) -> None:
    (run.path / "plan.json").unlink()
    plan = {"schema": 1, "study_digest": "a" * 64, "seed": 7, "trials": [planned(1, 1)]}
    write_plan(run, plan)
    done = labctl("run", "verify", run.name, *words)
    assert done.code == code, done.err
    assert said in done.err


def test_a_changed_raw_file_ends_with_1_and_is_named(run: RunFolder, labctl: Labctl) -> None:
    run.trial(1).write_raw("stdout.txt", "better\n")
    said = labctl("run", "verify", run.name)
    assert said.code == 1
    assert "stdout.txt" in said.out
    told = labctl("run", "verify", run.name, "--json")
    assert told.code == 1
    difference = {"trial": "0001", "file": "stdout.txt", "what": "was changed"}
    assert json.loads(told.out)["differences"] == [difference]


def test_an_archive_is_checked_as_its_folder_is_and_nothing_is_unpacked(
    run: RunFolder, labctl: Labctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("something is unpacked")

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    whole = folder_digest(run.path)
    run.trial(1).write_raw("stdout.txt", "better\n")
    files = {str(path.relative_to(run.path)): path for path in run.path.rglob("*.*")}
    packed = tmp_path / "packed.tar.xz"
    with packed.open("wb") as target:
        pack(files, target, "r1")
    by_folder, by_archive = (
        labctl("run", "verify", str(one), "--json") for one in (run.path, packed)
    )
    found = [json.loads(said.out) for said in (by_folder, by_archive)]
    assert by_folder.code == by_archive.code == 1
    assert found[0]["differences"] == found[1]["differences"] != []
    assert labctl("run", "verify", str(packed), "--digest", folder_digest(run.path)).code == 1
    refusal = labctl("run", "verify", str(packed), "--digest", whole)
    assert refusal.code == 1
    assert "packed differs from the run on its host: expected the" in refusal.err
