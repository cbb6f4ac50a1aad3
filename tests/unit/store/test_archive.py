"""Archives: what `pack` writes is read as the folder is, and nothing else is read at all."""

from __future__ import annotations

import io
import lzma
import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.run.commands.export import run_files
from labctl.store import archive
from labctl.store.archive import RunArchive, pack
from labctl.store.run_folder import RunFolder
from labctl.store.run_places import all_runs, find_run, find_run_to_change
from tests.unit.synthetic import synthetic_run, write_run

Member = tuple[str | tarfile.TarInfo, bytes]
RUN: Member = ("r/run.json", b'{"schema": 1}')


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    tunings = ("baseline", "control", "pinned")
    return write_run(
        tmp_path_factory.mktemp("made") / "r1", synthetic_run(blocks=2, tunings=tunings)
    )


@pytest.fixture
def run(made: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(made.path, tmp_path / "folders" / "r1")))


@pytest.fixture(scope="module")
def whole(made: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return packed(made, tmp_path_factory.mktemp("whole") / "r1.tar.xz").read_bytes()


def packed(run: RunFolder, target: Path) -> Path:
    with target.open("wb") as file:
        pack(run_files(run.path), file, run.name)
    return target


def content(folder: RunFolder) -> Any:
    run = folder.load()
    trials = [(trial.record, list(trial.readings)) for trial in run.trials]
    return run.name, run.run, run.plan, trials, run.problems


def stream(members: Iterable[Member]) -> bytes:
    made = io.BytesIO()
    for what, data in members:
        entry = tarfile.TarInfo(what) if isinstance(what, str) else what
        entry.size = entry.size or len(data)
        made.write(entry.tobuf(tarfile.USTAR_FORMAT, "latin-1", "strict"))
        made.write(data + bytes(-len(data) % 512))
    return made.getvalue()


def written(path: Path, first: Iterable[Member], second: Iterable[Member] = ()) -> RunArchive:
    parts = (stream(first), stream(second) + bytes(1024))
    path.write_bytes(b"".join(map(lzma.compress, parts)))
    return RunArchive(path)


def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "inside"
    folder.mkdir()
    return folder


def read_and_unpacked(made: RunArchive, folder: Path) -> None:
    assert made.read_by_reports
    made.unpack(folder)


def entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def sized(name: str, size: int) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size = size
    return made


def test_an_archive_is_read_as_the_folder_that_it_was_made_of(
    run: RunFolder, tmp_path: Path
) -> None:
    there = find_run(tmp_path, str(packed(run, tmp_path / "r1.tar.xz")))
    assert content(there) == content(run)
    with there.unpacked() as copy:
        assert content(copy) == content(run)
        names = run_files(run.path)
        assert {n: p.read_bytes() for n, p in run_files(copy.path).items()} == {
            name: path.read_bytes() for name, path in names.items()
        }
        assert copy.path.parent.stat().st_mode & 0o777 == 0o700
    assert not copy.path.exists()


def test_a_trial_that_was_cut_off_is_named_in_an_archive_too(
    run: RunFolder, tmp_path: Path
) -> None:
    run.write_run(run.read_run().but(status="interrupted"))
    (run.trial(2).path / "trial.json").unlink()
    (run.trial(2).path / "samples.json").unlink()
    there = find_run(tmp_path, str(packed(run, tmp_path / "r1.tar.xz")))
    said = [text.replace(f"{there.path}", f"{run.path}") for text in there.load().problems]
    assert said == list(run.load().problems)
    assert any("interrupted" in text for text in said)


def test_the_same_files_give_the_same_bytes(run: RunFolder, tmp_path: Path) -> None:
    once = packed(run, tmp_path / "1.tar.xz").read_bytes()
    for path in run.path.rglob("*"):
        os.utime(path, (7, 7))
    run.path.joinpath("run.json").chmod(0o600)
    assert packed(run, tmp_path / "2.tar.xz").read_bytes() == once


def test_a_name_that_would_not_be_read_again_is_not_packed(run: RunFolder, tmp_path: Path) -> None:
    (run.path / "a\nb").touch()
    with pytest.raises(UsageError, match="its name has unprintable characters"):
        packed(run, tmp_path / "r1.tar.xz")


def test_any_tar_unpacks_an_archive_into_a_run(run: RunFolder, tmp_path: Path) -> None:
    shutil.unpack_archive(packed(run, tmp_path / "r1.tar.xz"), tmp_path / "there")
    assert content(RunFolder(tmp_path / "there" / "r1")) == content(run)


def test_a_run_is_found_by_its_name_where_its_archive_lies(run: RunFolder, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    packed(run, results / "r1.tar.xz")
    for name in ("r1", "r1.tar.xz", f"{results}/r1", f"{results}/r1.tar.xz"):
        assert find_run(results, name).name == "r1"
    assert [found.name for found in all_runs(results)] == ["r1"]
    shutil.copytree(run.path, results / "r1")
    assert find_run(results, "r1").archive is None, "the folder may hold more"
    assert [found.archive for found in all_runs(results)] == [None]


def test_nothing_is_changed_in_an_archive(run: RunFolder, tmp_path: Path) -> None:
    path = packed(run, tmp_path / "r1.tar.xz")
    with pytest.raises(
        UsageError, match=r"r1\.tar\.xz is an archive.* cannot be resumed"
    ) as caught:
        find_run_to_change(tmp_path, str(path), "resumed")
    assert f"labctl run import {path}" in str(caught.value.hint)


OUTSIDE = ("r/../../x", "../x", "/etc/x", "r//x", "r/./x", "r/a\nb", "r/\x1b[2J", "x", "r/")


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    bad = written(tmp_path / "a.tar.xz", [RUN], [(name, b"evil")])
    with pytest.raises(BrokenError, match="a.tar.xz is not an archive from"):
        bad.unpack(inside(tmp_path))
    assert {path.name for path in tmp_path.rglob("*")} == {"a.tar.xz", "inside", "run.json"}


KINDS = (
    (tarfile.SYMTYPE, "/etc/passwd"),
    (tarfile.LNKTYPE, "r/run.json"),
    (tarfile.CHRTYPE, ""),
    (tarfile.BLKTYPE, ""),
    (tarfile.FIFOTYPE, ""),
    (tarfile.DIRTYPE, ""),
    (tarfile.CONTTYPE, ""),
    (tarfile.GNUTYPE_SPARSE, ""),
    (tarfile.GNUTYPE_LONGNAME, ""),
    (tarfile.XHDTYPE, ""),
)


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_only_regular_files_are_taken(tmp_path: Path, kind: bytes, target: str) -> None:
    bad = written(tmp_path / "a.tar.xz", [RUN], [(entry("r/trials/0001/x", kind, target), b"")])
    with pytest.raises(BrokenError, match="'r/trials/0001/x' is not a regular file"):
        bad.unpack(tmp_path)


RAW: Member = ("r/trials/0001/stdout.txt", b"")
SAMPLES: Member = ("r/trials/0001/samples.json", b"{}")


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ([RUN, RUN], [], "'run.json' is out of order"),
        ([RUN, ("r/plan.json", b"{}")], [], "'plan.json' is out of order"),
        ([RUN], [RAW, RAW], "'trials/0001/stdout.txt' is out of order"),
        ([RUN], [SAMPLES], "'trials/0001/samples.json' is out of order"),
        ([RUN, RAW], [], "'trials/0001/stdout.txt' is out of order"),
        ([RUN, ("s/trials/0001/trial.json", b"")], [], "is not below 'r'"),
        ([RUN], [("r/trials/1", b""), ("r/trials/1/x", b"")], "conflicts with another file"),
        ([RUN], [("r/trials/\xff", b"")], "can't decode byte 0xff"),
        ([("r/plan.json", b"{}")], [], "it holds no run.json"),
    ],
)
def test_what_pack_does_not_write_is_refused_and_named(
    tmp_path: Path, first: list[Member], second: list[Member], why: str
) -> None:
    bad = written(tmp_path / "a.tar.xz", first, second)
    with pytest.raises(BrokenError) as caught:
        read_and_unpacked(bad, inside(tmp_path))
    assert why in caught.value.message
    assert "unpack it with tar" in str(caught.value.hint)


def test_a_file_that_stands_for_much_more_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    zeros = (sized("r/trials/0001/zeros", 200 << 20), bytes(1 << 20))
    bad = written(tmp_path / "a.tar.xz", [RUN], [zeros])
    with pytest.raises(
        BrokenError, match=r"zeros' it would unpack to more than .* files or 64 MiB"
    ):
        bad.unpack(inside(tmp_path))
    assert not list(tmp_path.glob("inside/trials/*/zeros"))


def test_more_files_than_any_run_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_FILES", 5)
    bad = written(tmp_path / "a.tar.xz", [RUN], [(f"r/trials/{n}", b"") for n in range(5)])
    with pytest.raises(BrokenError, match="would unpack to more than 5 files"):
        _ = bad.names


def test_what_reports_read_is_held_in_memory_only_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_READ_BYTES", 1 << 20)
    bad = written(tmp_path / "a.tar.xz", [("r/plan.json", bytes(2 << 20)), RUN])
    with pytest.raises(BrokenError, match="the files that reports read are larger than 1 MiB"):
        _ = bad.read_by_reports


def test_decoding_takes_no_more_memory_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_DECODER_BYTES", 1 << 20)
    with pytest.raises(BrokenError, match="Memory usage limit"):
        _ = written(tmp_path / "a.tar.xz", [RUN]).names


@pytest.mark.parametrize("at", range(40, 2000, 97))
def test_a_damaged_or_cut_file_is_named_and_never_half_read(
    whole: bytes, tmp_path: Path, at: int
) -> None:
    path, place = tmp_path / "r1.tar.xz", at * len(whole) // 2000
    damaged = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    for bad in (damaged, whole[:place], whole + b"x"):
        path.write_bytes(bad)
        with pytest.raises(BrokenError, match="r1.tar.xz is not an archive from"):
            _ = RunArchive(path).names


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar.xz")
    with pytest.raises(BrokenError, match="is not a regular file"):
        _ = RunArchive(tmp_path / "a.tar.xz").read_by_reports
