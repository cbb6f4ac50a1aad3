"""Runs are found by name, path, number and age."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.store.run_folder import RunFolder
from labctl.store.run_places import all_runs, find_run, runs_by_age
from tests.unit.records import write_plan, write_run_json
from tests.unit.synthetic import synthetic_run, write_run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path, "2026-01-02-pinning")
    write_run_json(folder, {"name": folder.name})
    write_plan(folder, {"schema": 1, "trials": []})
    return folder


def test_a_run_is_found_by_name_and_by_path(run: RunFolder) -> None:
    results = run.path.parent
    assert find_run(results, run.name).path == run.path
    assert find_run(results / "none", str(run.path)).path == run.path


def test_an_unknown_run_is_refused_with_the_nearest_name(run: RunFolder) -> None:
    with pytest.raises(UsageError) as caught:
        find_run(run.path.parent, "2026-01-02-pining")
    assert f"Did you mean '{run.name}'?" in str(caught.value.hint)


def test_runs_are_listed_by_name_and_other_folders_left_out(run: RunFolder) -> None:
    results = run.path.parent
    earlier = RunFolder.create(results, "2025-12-31-pinning")
    write_run_json(earlier, {})
    (results / "notes").mkdir()
    assert [folder.name for folder in all_runs(results)] == [earlier.name, run.name]


def test_a_folder_of_trials_without_a_record_is_named(run: RunFolder) -> None:
    (run.path / "run.json").unlink()
    with pytest.raises(UsageError, match=r"has trials but no run\.json"):
        find_run(run.path.parent, run.name)


def begun(results: Path, name: str, at: str | None) -> None:
    folder = write_run(results / name, synthetic_run(blocks=1, primary_only=True))
    folder.write_run(folder.read_run().but(started_at=at))


def test_the_newest_run_is_the_one_that_began_last_whatever_its_name(tmp_path: Path) -> None:
    begun(tmp_path, "zebra", "2026-01-01T10:00:00+00:00")
    begun(tmp_path, "20260301T100000Z-pinning", "2026-03-01T10:00:00+00:00")
    begun(tmp_path, "early", "2026-03-01T10:30:00+02:00")
    begun(tmp_path, "imported", None)
    names = ["imported", "zebra", "early", "20260301T100000Z-pinning"]
    assert [folder.name for folder in runs_by_age(tmp_path)] == names
    assert find_run(tmp_path, "latest").name == names[-1]
    assert [find_run(tmp_path, str(n)).name for n in (1, 2, 3, 4)] == names


def test_a_run_of_that_name_goes_before_a_number(tmp_path: Path) -> None:
    begun(tmp_path, "7", "2026-01-01T10:00:00+00:00")
    begun(tmp_path, "latest", "2025-01-01T10:00:00+00:00")
    assert find_run(tmp_path, "7").name == "7"
    assert find_run(tmp_path, "latest").name == "latest"
    assert find_run(tmp_path, "2").name == "7"


@pytest.mark.parametrize("name", ["0", "3", "999999999"])
def test_a_number_that_no_run_has_is_refused(tmp_path: Path, name: str) -> None:
    begun(tmp_path, "a", "2026-01-01T10:00:00+00:00")
    begun(tmp_path, "b", "not a time")
    with pytest.raises(UsageError, match="numbered from 1 to 2"):
        find_run(tmp_path, name)


def test_where_there_is_no_run_latest_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run in") as caught:
        find_run(tmp_path, "latest")
    assert "labctl sweep" in str(caught.value.hint)
