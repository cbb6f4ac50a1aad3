"""Add a layer to an image: packages and files for a study's workloads, on a copy of its tree.

Copied, not linked: packages' scripts change files in place (/etc/passwd, logs, dpkg's lists), and
the base's own tree must stay what its digest says.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, UsageError
from labctl.base.events import Listener, Note
from labctl.base.places_inside import brought_folder
from labctl.base.process import ProcessError
from labctl.base.yamlfile import nearest
from labctl.guest import chroot, images
from labctl.guest.disk import make_disk
from labctl.guest.images import Image
from labctl.guest.layer import Brought, Build, Layer
from labctl.guest.recipe import Recipe
from labctl.guest.tree import empty_folder, folder_in, make_link, write_file

_DEADLINE_S = 1800.0
_NAMESPACE = uuid.UUID("1f7ac7a4-6a0e-4c63-8f7d-3f4f4f0c9a55")
"""UUIDs of root file systems are version 5 of the image's digest in this namespace."""
_UNITS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
_STARTED = (".service", ".socket", ".timer", ".path")
_NO_CLUSTER = "etc/postgresql-common/createcluster.conf"
"""Read by postgresql-common's scripts: without a cluster no server starts, and no data directory
is in the image."""
_MISSING = re.compile(r"Unable to locate package (\S+)|Package '?(\S+?)'? has no installation cand")
_SPARE_MIB = 256
_LAST_LINES = 5


def add_layer_in(folder: Path, base: Image, recipe: Recipe, listener: Listener) -> dict[str, Any]:
    """Make everything of the layered image in a folder; return its manifest. Raises UsageError for
    a package that there is none of, BrokenError for files that can't be built."""
    layer = recipe.layer
    assert layer is not None
    deadline = Deadline.after(_DEADLINE_S, f"adding {layer.says} to the image '{base.name}'")
    tree = folder / images.TREE
    listener(Note(text=f"Adding to the image '{base.name}': {layer.says}"))
    _copy(base.tree, tree, deadline)
    tree.chmod(0o755)  # the root folder of the disk that is made of it
    units = _units(tree)
    packages = dict(base.manifest["packages"])
    if layer.packages:
        write_file(tree, _NO_CLUSTER, "create_main_cluster = false\n")
        _install(tree, layer.packages, recipe, deadline)
        packages = chroot.installed_packages(tree, deadline)
    masked = sorted(_units(tree) - units)
    for unit in masked:
        make_link(tree, f"etc/systemd/system/{unit}", "/dev/null")
    for one in layer.brought:
        _bring(tree, one, recipe, deadline, listener)
    size_mib = max(recipe.spec.size_mib, _mib(tree) + _SPARE_MIB)
    root = str(uuid.uuid5(_NAMESPACE, recipe.digest))
    make_disk(tree, folder / images.DISK, size_mib, root, deadline)
    for name in (images.KERNEL, images.INITRD):
        if (base.dir / name).exists():
            shutil.copyfile(base.dir / name, folder / name)
    before = base.manifest["packages"]
    return {
        **base.manifest,
        "digest": recipe.digest,
        "command_line": _command_line(base.command_line, root),
        "files": images.file_records(folder),
        "packages": packages,
        "made_of": base.dir.name,
        "layer": {
            **layer.to_json(),
            "added": {n: v for n, v in packages.items() if before.get(n) != v},
            "masked": masked,
        },
    }


def _install(tree: Path, wanted: Sequence[str], recipe: Recipe, deadline: Deadline) -> None:
    try:
        chroot.install(tree, wanted, recipe.spec.exclude, deadline)
    except ProcessError as error:
        found = _MISSING.search(error.completed.stdout + error.completed.stderr)
        if found is None:
            raise
        name = found[1] or found[2]
        raise UsageError(
            f"no package '{name}' for the image '{recipe.name}'",
            hint=nearest(name, chroot.names_like(tree, name, deadline)),
        ) from error


def _bring(
    tree: Path, one: Brought, recipe: Recipe, deadline: Deadline, listener: Listener
) -> None:
    """Write a workload's files, and build them in a copy of the tree that is thrown away."""
    inside = brought_folder(one.workload).lstrip("/")
    empty_folder(tree, inside)
    for name, data in one.files.items():
        write_file(tree, f"{inside}/{name}", data, mode=0o755 if data[:2] == b"#!" else 0o644)
    if one.build is None:
        return
    listener(Note(text=f"Building the files of '{one.workload}'"))
    scratch = tree.with_name(f"build-{one.workload}")
    try:
        _copy(tree, scratch, deadline)
        if one.build.packages:
            _install(scratch, one.build.packages, recipe, deadline)
        for argv in one.build.argv:
            _build_step(scratch, one, argv, deadline)
        _take_outputs(folder_in(scratch, inside), folder_in(tree, inside), one, one.build)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _build_step(scratch: Path, one: Brought, argv: Sequence[str], deadline: Deadline) -> None:
    folder = brought_folder(one.workload)
    command = chroot.in_tree(scratch, ["env", "-C", folder, *argv], network=False)
    done = process.run(command, deadline=deadline, check=False)
    if done.returncode:
        said = f"{done.stdout}\n{done.stderr}".strip().splitlines()[-_LAST_LINES:]
        raise BrokenError(
            f"workload '{one.workload}': build: {argv[0]} ended with status {done.returncode}: "
            f"{'; '.join(said) or 'it printed nothing'}"
        )


def _take_outputs(source: Path, target: Path, one: Brought, build: Build) -> None:
    for pattern in build.outputs:
        found = sorted(source.glob(pattern))
        if not found:
            raise BrokenError(
                f"workload '{one.workload}': build: it made no '{pattern}'",
                hint=f"There are: {', '.join(sorted(p.name for p in source.iterdir()))}.",
            )
        for path in found:
            copied = target / path.relative_to(source)
            if path.is_symlink() or not path.resolve().is_relative_to(source.resolve()):
                raise BrokenError(f"workload '{one.workload}': build: '{path.name}' is a link")
            if path.is_dir():
                shutil.copytree(path, copied, symlinks=True, dirs_exist_ok=True)
            else:
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copied, follow_symlinks=False)


def _copy(source: Path, target: Path, deadline: Deadline) -> None:
    copy = ["cp", "--archive", "--reflink=auto", str(source.resolve()), str(target)]
    process.run(copy, deadline=deadline)


def _units(tree: Path) -> set[str]:
    """Return the units that a tree has and that systemd may start by itself."""
    return {
        path.name
        for name in _UNITS
        for path in _folder(tree, name)
        if path.suffix in _STARTED and "@" not in path.name
    }


def _folder(tree: Path, name: str) -> Iterator[Path]:
    folder = folder_in(tree, name)
    return folder.iterdir() if folder.is_dir() else iter(())


def _mib(tree: Path) -> int:
    total = sum(p.lstat().st_blocks * 512 for p in tree.rglob("*") if not p.is_symlink())
    return int(total / 2**20 * 1.1)


def _command_line(line: str, root: str) -> str:
    _, *rest = line.split()
    return " ".join([f"root=UUID={root}", *rest])


def refuse_what_cannot_be_layered(recipe: Recipe, layer: Layer) -> None:
    """Raise UsageError for an image whose packages labctl can't add to."""
    cloud = recipe.spec.cloud_image
    if layer.packages and cloud is not None and cloud.packages_by != "apt":
        raise UsageError(
            f"the image '{recipe.name}' gets no packages: {layer.says} can't be added",
            hint="Choose an image of Debian or Ubuntu.",
        )
