from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.store.jsonfile import (
    canonical,
    folder_begun,
    put,
    read_json,
    replacing,
    sync,
    write_bytes,
    write_json,
    write_output,
)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"µ": [1, 0.1, None]})
    assert read_json(tmp_path / "a.json") == {"µ": [1, 0.1, None]}


def test_the_canonical_text_does_not_depend_on_the_order_of_keys() -> None:
    assert (
        canonical({"b": 1, "a": [1, 2]}) == canonical({"a": [1, 2], "b": 1}) == '{"a":[1,2],"b":1}'
    )


def test_a_file_can_be_private(tmp_path: Path) -> None:
    write_bytes(tmp_path / "secret", b"x", mode=0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_two_processes_that_write_one_file_at_once_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "cache.json", os.fsync
    other = "import sys, pathlib; from labctl.store.jsonfile import write_json as write; "
    other += "write(pathlib.Path(sys.argv[1]), 2)"

    def meanwhile(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            subprocess.run([sys.executable, "-c", other, str(path)], check=True)
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_json(path, 1)
    assert read_json(path) == 1
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, sys, signal
from pathlib import Path
from labctl.store.jsonfile import folder_begun, replacing
with replacing(Path(sys.argv[1])) as file, folder_begun(Path(sys.argv[1]).parent, "test") as made:
    (made / "half").write_bytes(b"x")
    file.write(b"half")
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
"""


def begun(path: Path) -> list[str]:
    return sorted(one.name for one in path.parent.iterdir() if one != path)


def test_what_a_killed_writer_left_goes_with_the_next_and_a_living_ones_stays(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.json"
    subprocess.run([sys.executable, "-c", KILLED, str(path), "SIGKILL"], check=False)
    assert len(begun(path)) == 2
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path), "SIGSTOP"]) as living:
        os.waitpid(living.pid, os.WUNTRACED)
        left = begun(path)
        assert len(left) == 2, "those of the killed one are gone"
        write_json(path, "new")
        with folder_begun(tmp_path, "test"):
            assert len(begun(path)) == 3
        assert begun(path) == left
        living.kill()
    write_json(path, "newer")
    with folder_begun(tmp_path, "test"):
        pass
    assert begun(path) == []


def test_a_full_disk_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_json(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HostError, match=r"cannot write .*a\.json: No space left") as caught:
        write_json(path, "new")
    assert "resume" in str(caught.value.hint)
    assert read_json(path) == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", [b"", b'{"a": ', b"\xff", b"nothing"])
def test_a_file_that_was_cut_off_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(BrokenError, match=r"a\.json cannot be read"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("text", ["[" * 1500, '{"a":' * 900 + "1" + "}" * 900, "9" * 5000])
def test_a_file_that_no_one_could_walk_through_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BrokenError, match=r"a\.json cannot be read: "):
        read_json(tmp_path / "a.json")


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to("/dev/zero")
    with pytest.raises(BrokenError, match="not a regular file"):
        read_json(tmp_path / "a.json")
    (tmp_path / "b.json").touch()
    os.truncate(tmp_path / "b.json", 1 << 40)  # a hole: it takes no space
    with pytest.raises(BrokenError, match="larger than 64 MiB"):
        read_json(tmp_path / "b.json")


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match=r"a\.json is missing"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize(("number", "is_full"), [(errno.ENOSPC, True), (errno.EACCES, False)])
def test_only_a_full_disk_asks_for_space(tmp_path: Path, number: int, is_full: bool) -> None:
    with pytest.raises(HostError) as caught, replacing(tmp_path / "x"):
        raise OSError(number, os.strerror(number))
    assert ("space" in str(caught.value.hint)) == is_full


def test_a_file_of_labctls_own_takes_the_place_of_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("text")
    (tmp_path / "a.json").symlink_to(precious)
    write_json(tmp_path / "a.json", 1)
    assert precious.read_text() == "text"
    assert not (tmp_path / "a.json").is_symlink()


def test_the_file_that_is_written_aside_has_a_name_that_nobody_can_guess(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        with replacing(tmp_path / "a") as file:
            names += [path.name for path in tmp_path.iterdir() if path.name != "a"]
            file.write(b"x")
    assert len(set(names)) == 2
    assert all(str(os.getpid()) not in name.split(".") for name in names)


def test_no_link_below_the_named_folder_is_followed(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    elsewhere.mkdir()
    (run / "trials").symlink_to(elsewhere)
    with pytest.raises(HostError, match="'trials' is a link"):
        write_bytes(run / "trials/0001/samples.json", b"x", below=run)
    assert list(elsewhere.iterdir()) == []


def test_what_the_user_named_is_written_through_when_it_is_no_regular_file(
    tmp_path: Path,
) -> None:
    device, pipe, link = tmp_path / "null", tmp_path / "pipe", tmp_path / "link"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mkfifo(pipe)
    (tmp_path / "target").write_text("old")
    link.symlink_to("target")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    for path in (device, pipe, link):
        write_output(path, b"page")
    reader.join(timeout=10)
    assert device.is_char_device()
    assert pipe.is_fifo()
    assert read == [b"page"]
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == b"page"


def test_a_link_of_another_user_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("target")
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(UsageError, match="belongs to another user"):
        write_output(link, b"page")
    assert (tmp_path / "target").read_text() == "old"


def test_a_folder_is_put_where_the_results_are_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to("disk")
    with folder_begun(tmp_path / "results", "import") as made:
        (made / "run").mkdir()
        (made / "run" / "run.json").write_text("{}")
        put(made / "run", tmp_path / "results" / "run")
    assert (tmp_path / "disk" / "run" / "run.json").is_file()
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["run"]


def test_a_link_to_a_file_is_not_synced(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(OSError, match="symbolic links"):
        sync(tmp_path / "link")
