from __future__ import annotations

import os
from pathlib import Path

import pytest

from labctl.base.trust import held, held_in_tree, open_regular


def path_of(descriptor: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


def test_a_folder_below_a_root_is_held(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    with held(tmp_path, "a/b") as folder:
        assert path_of(folder) == tmp_path / "a/b"


def test_folders_that_are_missing_are_made_on_demand(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), held(tmp_path, "a/b"):
        pytest.fail("no such folder")
    with held(tmp_path, "a/b", make=True):
        assert (tmp_path / "a/b").is_dir()


@pytest.mark.parametrize("below", ["link", "link/deeper"])
def test_a_link_below_the_root_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "elsewhere/deeper").mkdir(parents=True)
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a link"), held(root, below, make=True):
        pytest.fail("the link was followed")


def test_no_name_leads_above_the_root(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is outside its folder"), held(tmp_path, "../x"):
        pytest.fail("the root was left")


@pytest.mark.parametrize(
    ("target", "leads_to"),
    [("/usr/lib", "usr/lib"), ("usr/lib", "usr/lib"), ("../../usr/lib", "usr/lib"), ("/", ".")],
)
def test_a_trees_links_are_read_as_its_guest_reads_them(
    tmp_path: Path, target: str, leads_to: str
) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "lib").symlink_to(target)
    with held_in_tree(tmp_path, "lib") as folder:
        assert path_of(folder) == tmp_path / leads_to


def test_links_that_lead_to_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("/a")
    with pytest.raises(OSError, match="Too many levels"), held_in_tree(tmp_path, "a/x"):
        pytest.fail("no end was found")


def test_only_a_regular_file_is_opened_and_no_pipe_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    os.close(open_regular(tmp_path / "file"))
    for name in ("link", "pipe", "."):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(tmp_path / name)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "l").symlink_to("/a/b")
    before = len(os.listdir("/proc/self/fd"))
    with held(tmp_path, "a/b"), held_in_tree(tmp_path, "l/../b"):
        pass
    for below in ("l", "none/x"):
        with pytest.raises(OSError, match="link|No such"), held(tmp_path, below):
            pytest.fail("it was opened")
    assert len(os.listdir("/proc/self/fd")) == before
