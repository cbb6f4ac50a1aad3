"""Install packages into a tree so that it stays an image: no machine-specific files, no
database."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from labctl.base.process import Deadline
from labctl.guest import chroot
from labctl.guest.recipe import Recipe
from labctl.guest.tree import folder_in, remove_file, write_file

_NO_CLUSTER = "etc/postgresql-common/createcluster.conf"
"""Configuration for postgresql-common's scripts: without a cluster no server starts, and no data
directory is in the image."""


def install(tree: Path, wanted: Sequence[str], recipe: Recipe, deadline: Deadline) -> None:
    """Install packages and their dependencies. Raises UsageError for an unknown one."""
    write_file(tree, _NO_CLUSTER, "create_main_cluster = false\n")
    # An image without manual pages lacks these folders, and Java's script then fails.
    for number in range(1, 9):
        folder_in(tree, f"usr/share/man/man{number}")
    chroot.install(tree, wanted, recipe.spec.exclude, deadline)
    if not (tree / "usr/share/postgresql-common").is_dir():
        shutil.rmtree(folder_in(tree, str(PurePosixPath(_NO_CLUSTER).parent)))
    # As in a new image: a package's script may have created this machine's.
    write_file(tree, "etc/machine-id", "")
    remove_file(tree, "var/lib/dbus/machine-id")


def counted(packages: Sequence[str]) -> str:
    """Return the number of packages, and their names."""
    many = f"{len(packages)} packages" if len(packages) > 1 else "1 package"
    return f"{many} ({', '.join(sorted(packages))})"
