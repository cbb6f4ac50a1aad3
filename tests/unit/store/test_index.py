"""The index of a run: quick, and never another answer than the files'."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.store import index
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.store.samples import Sample
from tests.unit.records import write_run_json
from tests.unit.synthetic import synthetic_run, write_run


@pytest.fixture(autouse=True)
def any_size_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_SMALLEST_BYTES", 0)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all files had been written long ago: a ctime can't be set."""
    monkeypatch.setattr(index, "_SETTLED_NS", -(10**12))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = synthetic_run(blocks=2, repeated=[("pinned", "sysbench-cpu", 1)])
    return write_run(tmp_path / "results" / "example", made)


def all_of(run: LoadedRun) -> tuple[object, ...]:
    return (
        run.name,
        run.run,
        run.plan,
        run.problems,
        [(trial.record, list(trial.readings), trial.folder) for trial in run.trials],
    )


def from_json(run: RunFolder) -> tuple[object, ...]:
    (run.path / index.NAME).unlink(missing_ok=True)
    return all_of(run.load())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The runs whose trials were read from JSON."""
    found: list[Path] = []
    real = RunFolder._read_trials

    def seen(self: RunFolder, problems: list[str]) -> list[index.AttemptRow]:
        found.append(self.path)
        return real(self, problems)

    monkeypatch.setattr(RunFolder, "_read_trials", seen)
    return found


@pytest.mark.usefixtures("settled")
def test_the_second_load_reads_no_trial_and_says_the_same(
    run: RunFolder, reads: list[Path]
) -> None:
    first = all_of(run.load())
    assert all_of(run.load()) == first
    assert reads == [run.path]


@pytest.mark.usefixtures("settled")
def test_values_survive_to_the_last_bit_and_a_nan_as_one(run: RunFolder) -> None:
    samples = run.trial(3).path / "samples.json"
    data = json.loads(samples.read_text())
    data["samples"][0]["value"] = float("nan")
    data["samples"][1]["value"] = 5e-324
    data["samples"][2]["value"] = -0.0
    samples.write_text(json.dumps(data))
    run.load()
    (trial,) = [t for t in run.load().trials if t.record.number == 3]
    values = [r.value for r in trial.readings if isinstance(r, Sample)]
    assert list(map(repr, values[:3])) == ["nan", "5e-324", "-0.0"]


def edit_a_value(run: RunFolder) -> None:
    """Same size, same mtime."""
    samples = run.trial(2).path / "samples.json"
    before = samples.stat()
    text = samples.read_text()
    at = text.index('"value": ') + len('"value": ')
    digit = "1" if text[at] != "1" else "2"
    samples.write_text(text[:at] + digit + text[at + 1 :])
    os.utime(samples, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert samples.stat().st_size == before.st_size
    assert samples.stat().st_mtime_ns == before.st_mtime_ns


def cut_off(run: RunFolder) -> None:
    samples = run.trial(2).path / "samples.json"
    samples.write_text(samples.read_text()[:50])


def another_attempt(run: RunFolder) -> None:
    shutil.copytree(run.trial(2).path, run.trial(2, 2).path)


def one_less(run: RunFolder) -> None:
    shutil.rmtree(run.trial(2).path)


def no_samples(run: RunFolder) -> None:
    (run.trial(2).path / "samples.json").unlink()


def another_trials_file(run: RunFolder) -> None:
    os.replace(run.trial(3).path / "trial.json", run.trial(2).path / "trial.json")


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "change", [edit_a_value, cut_off, another_attempt, one_less, no_samples, another_trials_file]
)
def test_whatever_changes_in_the_trials_is_in_the_next_load(
    run: RunFolder, change: Callable[[RunFolder], None]
) -> None:
    before = all_of(run.load())
    time.sleep(0.02)  # a tick of the file system's clock
    change(run)
    after = all_of(run.load())
    assert after != before
    assert after == from_json(run)


@pytest.mark.usefixtures("settled")
def test_plan_and_record_are_read_each_time(run: RunFolder) -> None:
    run.load()
    record = run.read_run().to_json()
    write_run_json(run, {**record, "title": "another"})
    assert run.load().run.to_json()["title"] == "another"


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "content",
    [
        lambda whole: b"",
        lambda whole: b"PAR1",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: b"\0" * len(whole),
        lambda whole: whole[:40] + b"\xff" * 64 + whole[104:],
        lambda whole: whole.replace(b"labctl.index", b"labctl.other"),
    ],
    ids=["empty", "magic", "cut", "zeros", "flipped", "foreign"],
)
def test_an_index_that_is_none_is_left_aside_and_made_anew(
    run: RunFolder, reads: list[Path], content: Callable[[bytes], bytes]
) -> None:
    first = all_of(run.load())
    path = run.path / index.NAME
    whole = path.read_bytes()
    path.write_bytes(content(whole))
    assert all_of(run.load()) == first
    assert path.read_bytes() == whole
    assert len(reads) == 2


@pytest.mark.usefixtures("settled")
def test_an_index_of_another_labctl_is_none(
    run: RunFolder, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.load()
    monkeypatch.setattr(index, "__version__", "99")
    run.load()
    assert len(reads) == 2


@pytest.mark.usefixtures("settled")
def test_an_index_that_came_along_with_a_copy_is_none(
    run: RunFolder, reads: list[Path], tmp_path: Path
) -> None:
    run.load()
    copy = RunFolder(Path(shutil.copytree(run.path, tmp_path / "copy" / "example")))
    copy.load()
    assert reads == [run.path, copy.path]


@pytest.mark.usefixtures("settled")
def test_a_folder_that_cannot_be_written_to_has_no_index_and_the_same_report(
    run: RunFolder,
) -> None:
    wanted = from_json(run)
    (run.path / index.NAME).unlink()
    in_its_way = run.path / index.NAME
    in_its_way.mkdir()  # root may write to any folder, but not over this
    assert all_of(run.load()) == wanted
    assert in_its_way.is_dir()
    assert {path.name for path in run.path.iterdir()} >= {"plan.json", "run.json", "trials"}
    assert not list(run.path.glob(".*"))


def test_files_that_have_only_just_changed_get_no_index(run: RunFolder) -> None:
    run.load()
    assert not (run.path / index.NAME).exists()


@pytest.mark.usefixtures("settled")
def test_a_run_that_is_running_or_broken_gets_none(run: RunFolder) -> None:
    record = run.read_run().to_json()
    write_run_json(run, {**record, "status": "running"})
    run.load()
    assert not (run.path / index.NAME).exists()
    write_run_json(run, record)
    cut_off(run)
    run.load()
    assert not (run.path / index.NAME).exists()


@pytest.mark.usefixtures("settled")
def test_a_small_run_gets_none(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_SMALLEST_BYTES", 4_000_000)
    run.load()
    assert not (run.path / index.NAME).exists()
