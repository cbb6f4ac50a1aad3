"""What was made is kept as long as nothing that it was made of has changed, and no longer."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from labctl.store import kept_text as module
from labctl.store.kept_text import looked_at, show_kept


@pytest.fixture(autouse=True)
def _everything_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLED_NS", -3600 * 10**9)
    # Other tests write beside the code that this process has loaded.
    monkeypatch.setattr(module, "_loaded_code", list)


@pytest.fixture
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not beside the sources, whose folder counts as well."""
    return tmp_path_factory.mktemp("state") / "kept"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "source"
    path.parent.mkdir()
    path.write_text("one")
    return path


def kept_text(folder: Path, question: Sequence[str], make: Callable[[], str]) -> str:
    shown: list[str] = []
    show_kept(folder, question, make, shown.append)
    (text,) = shown
    return text


class Maker:
    """Makes a text by a function, and counts how often."""

    def __init__(self, made: Callable[[], object]) -> None:
        self.times = 0
        self._made = made

    def __call__(self) -> str:
        self.times += 1
        return f"{self._made()}"


def times_made(kept: Path, made: Callable[[], object], between: Callable[[], object]) -> int:
    """How often the text of one question was made: asked for, and again after `between`."""
    maker = Maker(made)
    assert kept_text(kept, ["what?"], maker) == kept_text(kept, ["what?"], maker)
    assert maker.times == 1, "it wasn't kept at all"
    between()
    kept_text(kept, ["what?"], maker)
    return maker.times


def nothing() -> None: ...


def test_a_text_is_made_once(kept: Path, source: Path) -> None:
    assert times_made(kept, source.read_text, nothing) == 1


def test_another_question_has_another_text(kept: Path, source: Path) -> None:
    assert kept_text(kept, ["a", "b"], lambda: "first") == "first"
    assert kept_text(kept, ["ab"], lambda: "second") == "second"
    assert kept_text(kept, ["a", "b"], lambda: "third") == "first"


def edited_in_place(path: Path) -> None:
    """The same size, and the times put back: only the kernel's own time of the change tells."""
    before = path.stat()
    path.write_text("two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.mark.parametrize(
    "change",
    [
        edited_in_place,
        Path.unlink,
        lambda path: path.rename(path.with_name("elsewhere")),
        lambda path: path.chmod(0o600),
    ],
)
def test_a_changed_file_makes_it_anew(
    kept: Path, source: Path, change: Callable[[Path], object]
) -> None:
    def made() -> str:
        try:
            return source.read_text()
        except FileNotFoundError:
            return "none"

    assert times_made(kept, made, lambda: change(source)) == 2


def test_a_file_that_was_missing_and_comes_makes_it_anew(kept: Path, source: Path) -> None:
    missing = source.with_name("missing")

    def made() -> bool:
        try:
            return bool(missing.read_text())
        except FileNotFoundError:
            return False

    assert times_made(kept, made, lambda: missing.write_text("here")) == 2


@pytest.mark.parametrize("listed", [os.listdir, os.scandir, lambda path: list(path.iterdir())])
def test_a_new_name_in_a_listed_folder_makes_it_anew(
    kept: Path, source: Path, listed: Callable[[Path], object]
) -> None:
    def made() -> str:
        listed(source.parent)
        return "listed"

    assert times_made(kept, made, source.with_name("new").touch) == 2


def test_a_file_that_was_only_looked_at_counts(
    kept: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)

    def made() -> int:
        looked_at(Path("source"))
        return source.stat().st_size

    assert times_made(kept, made, lambda: source.write_text("longer")) == 2


def test_where_the_present_folder_is_gone_a_text_is_made(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    def made() -> str:
        looked_at("relative")
        return "text"

    assert kept_text(kept, [], made) == "text"
    assert not kept.exists()


def test_a_link_that_leads_elsewhere_makes_it_anew(
    kept: Path, source: Path, tmp_path: Path
) -> None:
    other = source.with_name("other")
    other.write_text("one")
    link = tmp_path / "link"
    link.symlink_to(source)

    def turned() -> None:
        link.unlink()
        link.symlink_to(other)

    assert times_made(kept, link.read_text, turned) == 2


def test_another_environment_or_folder_has_its_own_text(
    kept: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert times_made(kept, lambda: 1, lambda: monkeypatch.setenv("COLUMNS", "132")) == 2
    monkeypatch.setenv("COLUMNS", "133")
    assert times_made(kept, lambda: 1, lambda: monkeypatch.chdir(source.parent)) == 2


def test_other_groups_have_their_own_text(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may read other files."""
    groups = [*os.getgroups(), 4242]
    changed = lambda: monkeypatch.setattr(os, "getgroups", lambda: groups)  # noqa: E731
    assert times_made(kept, lambda: 1, changed) == 2


@pytest.mark.parametrize("name", ["OLDPWD", "SSH_CONNECTION", "TMUX_PANE"])
def test_what_each_session_has_of_its_own_is_no_other_environment(
    kept: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert times_made(kept, lambda: 1, lambda: monkeypatch.setenv(name, "another")) == 1


def test_changed_code_makes_it_anew(
    kept: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_loaded_code", lambda: [str(source)])
    assert times_made(kept, lambda: 1, lambda: source.write_text("two")) == 2


def test_the_code_is_that_of_every_loaded_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    code = set(module._loaded_code())
    assert {module.__file__, json.__file__} <= code
    assert {os.path.dirname(json.__file__), *sys.path[:-1]} <= code


def started(_: Path) -> None:
    subprocess.run(["true"], check=True)


def written(path: Path) -> None:
    path.with_name("written").write_text("x")


def removed(path: Path) -> None:
    path.unlink(missing_ok=True)


def locked(path: Path) -> None:
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def read_of_the_kernel(_: Path) -> None:
    Path("/proc/self/status").read_text()


def read_of_a_device(_: Path) -> None:
    with open("/dev/zero", "rb") as file:
        file.read(1)


def read_below_a_held_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    os.close(os.open(path.name, os.O_RDONLY, dir_fd=folder))
    os.close(folder)


@pytest.mark.parametrize(
    "does",
    [
        started,
        written,
        removed,
        locked,
        read_of_the_kernel,
        read_of_a_device,
        read_below_a_held_folder,
    ],
)
def test_what_files_cannot_vouch_for_is_never_kept(
    kept: Path, source: Path, does: Callable[[Path], None]
) -> None:
    maker = Maker(lambda: does(source))
    kept_text(kept, [], maker)
    source.write_text("one")
    kept_text(kept, [], maker)
    assert maker.times == 2


def test_what_changed_a_moment_ago_is_not_kept(
    kept: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one tick of the file system's clock it might change again, and look the same."""
    monkeypatch.setattr(module, "SETTLED_NS", 2 * 10**9)
    maker = Maker(source.read_text)
    source.write_text("one")
    kept_text(kept, [], maker)
    kept_text(kept, [], maker)
    assert maker.times == 2


def test_what_changes_while_it_is_made_is_not_kept(
    kept: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLED_NS", 0)
    monkeypatch.setattr(module, "_BEGAN_NS", time.time_ns() - 100 * 10**9)
    maker = Maker(source.read_text)
    kept_text(kept, [], maker)
    kept_text(kept, [], maker)
    assert maker.times == 2


def test_a_failure_is_not_kept_and_ends_the_watch(kept: Path, source: Path) -> None:
    def fails() -> str:
        raise ValueError(source.read_text())

    for _ in range(2):
        with pytest.raises(ValueError, match="one"):
            kept_text(kept, [], fails)
    assert module._watch is None
    assert not kept.exists()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"text": "wrong"}',
        b'{"text": "wrong", "sources": {"/": 7}}',
        b'{"text": "wrong", "sources": {"/": ["a"]}}',
        b'{"text": "wrong", "sources": []}',
        b'{"text": "wrong", "sources": {"a\\u0000b": null}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_made_anew(kept: Path, source: Path, damage: bytes) -> None:
    def damaged() -> None:
        (file,) = kept.glob("*.json")
        file.write_bytes(damage)

    assert times_made(kept, source.read_text, damaged) == 2
    again = Maker(source.read_text)
    assert kept_text(kept, ["what?"], again) == "one"
    assert again.times == 0


def test_a_file_that_others_may_write_is_not_believed(kept: Path, source: Path) -> None:
    def opened() -> None:
        (file,) = kept.glob("*.json")
        file.chmod(0o666)

    assert times_made(kept, source.read_text, opened) == 2


def test_only_its_owner_reads_what_is_kept(kept: Path, source: Path) -> None:
    kept_text(kept, [], source.read_text)
    (file,) = kept.glob("*.json")
    assert kept.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600


def test_folders_on_the_way_are_no_groups_whatever_the_umask(
    kept: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o002)
    try:
        assert times_made(kept / "cache" / "reports", source.read_text, nothing) == 1
    finally:
        os.umask(before)
    assert kept.stat().st_mode & 0o777 == 0o755


def test_nothing_is_made_in_another_users_folder(
    kept: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert kept_text(kept, [], source.read_text) == "one"
    assert not kept.exists()


def test_no_file_goes_where_a_link_leads(kept: Path, source: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    victim.chmod(0o777)
    for number in range(module._MOST_KEPT + 5):
        (victim / f"{number}.json").touch()
    kept.symlink_to(victim)
    kept_text(kept, [], source.read_text)
    victim.chmod(0o700)
    kept_text(kept, ["once more"], source.read_text)
    assert len(list(victim.glob("?*.json"))) == module._MOST_KEPT + 5 + 1


def test_bytecode_that_python_makes_meanwhile_is_not_held_against_it(
    kept: Path, source: Path
) -> None:
    def made() -> str:
        cache = source.parent / "__pycache__"
        cache.mkdir(exist_ok=True)
        (cache / "m.cpython-311.pyc.140").write_bytes(b"")
        (cache / "m.cpython-311.pyc.140").replace(cache / "m.cpython-311.pyc")
        return "text"

    assert times_made(kept, made, nothing) == 1


def test_the_oldest_go_first(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 3)
    for number in range(5):
        kept_text(kept, [str(number)], lambda: "text")
    again = [Maker(lambda: "text") for _ in range(5)]
    for number in reversed(range(5)):
        kept_text(kept, [str(number)], again[number])
    assert [maker.times for maker in again] == [1, 1, 0, 0, 0]


def test_a_text_without_measure_is_not_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    kept_text(kept, [], lambda: "x" * 1001)
    assert not kept.exists()


def test_a_folder_that_cannot_be_made_keeps_nothing(source: Path) -> None:
    assert kept_text(source / "below a file", [], lambda: "text") == "text"
