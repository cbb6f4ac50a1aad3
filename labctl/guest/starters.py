"""Find what makes a guest do something by itself, and mask what a layer added of it.

A native run has the same files and starts none of it, so a service, a timer or a kernel setting
that a package brings would be in the guest only.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePath

from labctl.base.held import held_in_tree
from labctl.guest.tree import make_link

_UNITS = "etc/systemd/system"
_STARTED = (".service", ".socket", ".timer", ".path", ".mount", ".automount", ".swap")
_PLACES = {
    _UNITS: ("usr/lib/systemd/system", "usr/local/lib/systemd/system"),
    "etc/systemd/system-generators": (
        "usr/lib/systemd/system-generators",
        "usr/local/lib/systemd/system-generators",
    ),
    "etc/sysctl.d": ("usr/lib/sysctl.d", "usr/local/lib/sysctl.d"),
    "etc/modules-load.d": ("usr/lib/modules-load.d", "usr/local/lib/modules-load.d"),
}
"""Folders whose files systemd takes by name, each with those that it takes precedence over:
systemd.unit(5), systemd.generator(7), sysctl.d(5), modules-load.d(5). A link to /dev/null in it
stands for none."""
_SCRIPTS = "etc/init.d"
"""systemd-sysv-generator(8) makes a service of each."""


def starters(tree: Path) -> frozenset[str]:
    """Return the names below /etc that a link to /dev/null would mask, one for each unit (templates
    too, which stand for their instances), generator and file of kernel settings."""
    found = {f"{_UNITS}/{path.name}.service" for path in _files(tree, _SCRIPTS)}
    for own, others in _PLACES.items():
        for path in (path for name in (own, *others) for path in _files(tree, name)):
            if own != _UNITS or path.suffix in _STARTED:
                found.add(f"{own}/{path.name}")
    return frozenset(found)


def mask_added(tree: Path, before: frozenset[str]) -> list[str]:
    """Mask what a tree has beyond what it had `before`; return the names of units as systemd has
    them, of other files below /etc."""
    added = sorted(starters(tree) - before)
    for name in added:
        make_link(tree, name, "/dev/null")
    return [name.removeprefix(f"{_UNITS}/").removeprefix("etc/") for name in added]


def _files(tree: Path, name: str) -> list[PurePath]:
    try:
        with held_in_tree(tree, name) as folder, os.scandir(folder) as found:
            return [PurePath(one.name) for one in found if not one.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
