from __future__ import annotations

from pathlib import Path

import pytest

from labctl.guest import tree as trees


@pytest.fixture
def host(tmp_path: Path) -> Path:
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "precious").write_text("the host's")
    return folder


@pytest.fixture
def tree(tmp_path: Path, host: Path) -> Path:
    """A tree whose /etc and one of whose files lead onto the host by absolute links."""
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "etc").symlink_to(host)
    (folder / "boot").mkdir()
    (folder / "boot/config").symlink_to(host / "precious")
    return folder


def test_an_absolute_link_of_a_tree_stays_in_the_tree(tree: Path, host: Path) -> None:
    trees.write_file(tree, "etc/machine-id", "")
    trees.make_link(tree, "etc/systemd/system/x.service", "/dev/null")
    trees.empty_folder(tree, "etc/lists")
    trees.remove_file(tree, "etc/precious")
    assert sorted(path.name for path in host.iterdir()) == ["precious"]
    inside = tree / str(host).lstrip("/")
    assert (inside / "machine-id").read_text() == ""
    assert (inside / "systemd/system/x.service").is_symlink()


def test_a_file_that_is_a_link_is_replaced_and_never_read(tree: Path, host: Path) -> None:
    assert trees.read_file(tree, "boot/config") is None
    trees.write_file(tree, "boot/config", "CONFIG_HZ=1000\n")
    assert trees.read_file(tree, "boot/config") == b"CONFIG_HZ=1000\n"
    assert (host / "precious").read_text() == "the host's"


def test_a_folder_of_a_tree_is_shown_where_it_lies(tree: Path) -> None:
    (tree / "usr").mkdir()
    (tree / "lib").symlink_to("usr/lib")
    assert trees.folder_in(tree, "lib/modules") == tree / "usr/lib/modules"


def test_what_is_not_there_can_be_removed(tree: Path) -> None:
    trees.remove_file(tree, "none/such")
    assert trees.read_file(tree, "none/such") is None
