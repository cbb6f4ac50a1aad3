"""Add a layer to an image: packages and files for a study's workloads, on a copy of its tree.

Copied, not linked: packages' scripts change files in place (/etc/passwd, logs, dpkg's lists), and
the base's own tree must stay what its digest says.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, UsageError
from labctl.base.events import Listener, Note
from labctl.base.held import open_regular
from labctl.base.places_inside import BROUGHT, NOBODY, brought_folder
from labctl.base.wording import printable
from labctl.guest import chroot, images, inventory
from labctl.guest.disk import fitting_mib, make_disk
from labctl.guest.images import Image
from labctl.guest.layer import Brought, Build, Layer
from labctl.guest.recipe import Recipe
from labctl.guest.starters import mask_added, starters
from labctl.guest.tree import empty_folder, folder_in, remove_file, write_file

_DEADLINE_S = 1800.0
_NAMESPACE = uuid.UUID("1f7ac7a4-6a0e-4c63-8f7d-3f4f4f0c9a55")
"""UUIDs of root file systems are version 5 of the image's digest in this namespace."""
_NO_CLUSTER = "etc/postgresql-common/createcluster.conf"
"""Read by postgresql-common's scripts: without a cluster no server starts, and no data directory
is in the image."""
_LOG = ".labctl-build.log"
_BUILD = f'umask 022; exec >{_LOG} 2>&1; exec "$@"'
_LAST_LINES = 5
_LINE = 300
_NAMED = 20


def add_layer_in(folder: Path, base: Image, recipe: Recipe, listener: Listener) -> dict[str, Any]:
    """Make everything of the layered image in a folder; return its manifest. Raises UsageError for
    a package that there is none of, BrokenError for files that can't be built."""
    layer = recipe.layer
    assert layer is not None
    deadline = Deadline.after(_DEADLINE_S, f"adding {layer.says} to the image '{base.name}'")
    tree = folder / images.TREE
    listener(Note(text=f"Copying the files of the image '{base.name}'"))
    _copy(base.tree, tree, deadline)
    tree.chmod(0o755)  # the root folder of the disk that is made of it
    before = starters(tree)
    packages = dict(base.manifest["packages"])
    if layer.packages:
        listener(Note(text=f"Installing {_counted(layer.packages)} and what they need"))
        _install(tree, layer.packages, recipe, deadline)
        packages = inventory.installed_packages(tree, deadline)
    masked = mask_added(tree, before)
    contents = {
        one.workload: _bring(tree, one, recipe, deadline, listener) for one in layer.brought
    }
    listener(Note(text="Making the disk"))
    tree_bytes = inventory.tree_bytes(tree)
    root = str(uuid.uuid5(_NAMESPACE, recipe.digest))
    size_mib = fitting_mib(tree_bytes, recipe.spec.size_mib)
    make_disk(tree, folder / images.DISK, size_mib, root, deadline)
    for file in filter(None, (base.kernel, base.initrd)):
        os.link(file.resolve(), folder / file.name)
    was = base.manifest["packages"]
    return {
        **base.manifest,
        "digest": recipe.digest,
        "command_line": _command_line(base.command_line, root),
        "files": images.file_records(folder),
        "tree_bytes": tree_bytes,
        # What a layer needs may be newer than what the base has.
        "binaries": inventory.programs(tree, recipe.spec.binaries),
        "packages": packages,
        "made_of": base.dir.name,
        "layer": {
            **layer.to_json(),
            "added": {name: v for name, v in packages.items() if was.get(name) != v},
            "masked": masked,
            "contents": contents,
        },
    }


def refuse_what_cannot_be_layered(recipe: Recipe, layer: Layer) -> None:
    """Raise UsageError for an image whose packages labctl can't add to, and for files that would
    not lie in their workload's folder."""
    cloud = recipe.spec.cloud_image
    if layer.packages and cloud is not None and cloud.packages_by != "apt":
        raise UsageError(
            f"the image '{recipe.name}' gets no packages: {layer.says} can't be added",
            hint="Choose an image of Debian or Ubuntu.",
        )
    for one in layer.brought:
        for name in (one.workload, *one.files, *(one.build.outputs if one.build else ())):
            path = PurePosixPath(name)
            if path.is_absolute() or not path.parts or ".." in path.parts:
                raise UsageError(
                    f"workload '{one.workload}': '{name}' does not lie in the workload's folder",
                    hint="Give a path relative to it, without '..'.",
                )


def _install(tree: Path, wanted: Sequence[str], recipe: Recipe, deadline: Deadline) -> None:
    write_file(tree, _NO_CLUSTER, "create_main_cluster = false\n")
    # An image without manual pages lacks them, and Java's script ends in an error then.
    for number in range(1, 9):
        folder_in(tree, f"usr/share/man/man{number}")
    chroot.install(tree, wanted, recipe.spec.exclude, deadline)
    if not (tree / "usr/share/postgresql-common").is_dir():
        shutil.rmtree(folder_in(tree, str(PurePosixPath(_NO_CLUSTER).parent)))
    # As a new image has them: a package's script may have made this machine's.
    write_file(tree, "etc/machine-id", "")
    remove_file(tree, "var/lib/dbus/machine-id")


def _bring(
    tree: Path, one: Brought, recipe: Recipe, deadline: Deadline, listener: Listener
) -> dict[str, str]:
    """Write a workload's files, and build them in a copy of the tree that is thrown away; return
    what is in its folder then, with hashes."""
    inside = brought_folder(one.workload).lstrip("/")
    empty_folder(tree, inside)
    folder = folder_in(tree, inside)
    for name, data in one.files.items():
        write_file(tree, f"{inside}/{name}", data, mode=0o555 if data[:2] == b"#!" else 0o444)
    # Whatever labctl's umask is, a program without privilege reads them.
    for path in (folder_in(tree, BROUGHT).parent, folder_in(tree, BROUGHT), folder):
        path.chmod(0o755)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    if one.build is not None:
        _build(tree, one, one.build, recipe, deadline, listener)
    return inventory.contents(folder)


def _build(
    tree: Path, one: Brought, build: Build, recipe: Recipe, deadline: Deadline, listener: Listener
) -> None:
    inside = brought_folder(one.workload).lstrip("/")
    scratch = tree.with_name("build")
    try:
        _copy(tree, scratch, deadline)
        if build.packages:
            listener(Note(text=f"Installing {_counted(build.packages)} to build '{one.workload}'"))
            _install(scratch, build.packages, recipe, deadline)
        listener(Note(text=f"Building the files of '{one.workload}'"))
        folder = folder_in(scratch, inside)
        for change in (["chmod", "-R", "u+w"], ["chown", "-R", f"{NOBODY}:{NOBODY}"]):
            process.run([*change, str(folder)], deadline=deadline)
        for argv in build.argv:
            _build_step(scratch, one, argv, deadline)
        _take_outputs(folder, folder_in(tree, inside), one, build, deadline)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _build_step(scratch: Path, one: Brought, argv: Sequence[str], deadline: Deadline) -> None:
    folder = brought_folder(one.workload)
    command = chroot.in_tree_alone(scratch, folder, ["sh", "-c", _BUILD, "sh", *argv])
    done = process.run(command, deadline=deadline, check=False)
    log = folder_in(scratch, folder) / _LOG
    said = (_end_of(log) + done.stderr).strip().splitlines()[-_LAST_LINES:]
    with suppress(OSError):
        log.unlink()
    if done.returncode:
        raise BrokenError(
            f"workload '{one.workload}': build: {argv[0]} ended with status {done.returncode}: "
            f"{'; '.join(line[:_LINE] for line in said) or 'it printed nothing'}"
        )


def _end_of(log: Path) -> str:
    """Return the last of what a build printed, however much that was; a terminal takes no orders
    from it."""
    try:
        with open(open_regular(log), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_LINES * _LINE))
            end = file.read(_LAST_LINES * _LINE).decode(errors="replace")
    except OSError:
        return ""
    return printable(end)


def _take_outputs(
    source: Path, target: Path, one: Brought, build: Build, deadline: Deadline
) -> None:
    """Copy what a build made. It belongs to root then, so no bit may hand on its rights."""
    for path in _made(source, one, build):
        copied = target / path.relative_to(source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        try:
            if path.is_dir():
                shutil.copytree(path, copied, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy2(path, copied)
        except OSError as error:
            raise BrokenError(
                f"workload '{one.workload}': build: '{path.name}' can't be copied: "
                f"{str(error)[:_LINE]}"
            ) from error
    process.run(["chmod", "-R", "ug-s,o-t", str(target)], deadline=deadline)


def _made(source: Path, one: Brought, build: Build) -> list[Path]:
    """Return the files and folders that a build's outputs name, none below another."""
    found: set[Path] = set()
    for pattern in build.outputs:
        matches = set(source.glob(pattern))
        if not matches:
            there = ", ".join(sorted(path.name for path in source.iterdir())[:_NAMED])
            raise BrokenError(
                f"workload '{one.workload}': build: it made no '{pattern}'",
                hint=f"Its folder has: {there or 'nothing'}.",
            )
        found |= matches
    for path in sorted(found):
        if path.is_symlink() or not path.resolve().is_relative_to(source.resolve()):
            raise BrokenError(
                f"workload '{one.workload}': build: '{path.name}' is a link, not a file or "
                "folder of its own"
            )
    return sorted(path for path in found if found.isdisjoint(path.parents))


def _copy(source: Path, target: Path, deadline: Deadline) -> None:
    copy = ["cp", "--archive", "--reflink=auto", str(source.resolve()), str(target)]
    process.run(copy, deadline=deadline)


def _command_line(line: str, root: str) -> str:
    _, *rest = line.split()
    return " ".join([f"root=UUID={root}", *rest])


def _counted(packages: Sequence[str]) -> str:
    many = f"{len(packages)} packages" if len(packages) > 1 else "1 package"
    return f"{many} ({', '.join(sorted(packages))})"
