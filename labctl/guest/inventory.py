"""List the contents of an image's tree: its packages, programs, brought files and size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labctl.base import process
from labctl.base.errors import BrokenError
from labctl.base.process import Deadline
from labctl.guest import images


def programs(tree: Path, wanted: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return path and SHA-256 of each program that a recipe names. Raises BrokenError if the tree
    lacks one."""
    found: dict[str, dict[str, str]] = {}
    for program, name in wanted.items():
        path = tree / name.lstrip("/")
        if path.is_symlink() or not path.is_file():
            raise BrokenError(
                f"the image has no file {name} for '{program}'",
                hint="Set 'binaries' in the recipe to the file itself, not to a link.",
            )
        found[program] = {"path": name, "sha256": images.file_sha256(path)}
    return found


def contents(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file and folder directly below a folder, by name."""
    return {path.name: images.content_sha256(path) for path in sorted(folder.iterdir())}


def installed_packages(tree: Path, deadline: Deadline) -> dict[str, str]:
    """Return the version of each package. Raises ProcessError if dpkg's database cannot be read."""
    listed = process.run(
        ["dpkg-query", f"--admindir={tree}/var/lib/dpkg", "-W", "-f", "${Package} ${Version}\n"],
        deadline=deadline,
    )
    return dict(sorted(line.split() for line in listed.stdout.splitlines()))


def tree_bytes(tree: Path) -> int:
    """Return the bytes used on disk, hard links counted once."""
    sizes: dict[tuple[int, int], int] = {}
    for folder, _, names in os.walk(tree):
        for name in names:
            status: Any = os.lstat(os.path.join(folder, name))
            sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())
