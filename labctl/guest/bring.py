"""Bring a workload's own files into an image's tree: written, unpacked from wheels, and built."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError
from labctl.base.events import Listener, Note
from labctl.base.held import open_regular
from labctl.base.paths import StatePaths
from labctl.base.places_inside import BROUGHT, NOBODY, brought_folder
from labctl.base.wording import printable
from labctl.guest import chroot, inventory
from labctl.guest.layer import Brought, Build
from labctl.guest.packages import counted, install
from labctl.guest.recipe import Recipe
from labctl.guest.tree import copy_tree, empty_folder, folder_in, write_file
from labctl.guest.wheels import FOLDER, fetch_wheel, unpack

_LOG = ".labctl-build.log"
_BUILD = f'umask 022; exec >{_LOG} 2>&1; exec "$@"'
_LAST_LINES = 5
_LINE = 300
_NAMED = 20


def bring(
    tree: Path,
    one: Brought,
    recipe: Recipe,
    places: StatePaths,
    deadline: Deadline,
    listener: Listener,
) -> dict[str, str]:
    """Write a workload's files, and build them in a copy of the tree that is thrown away; return
    what is in its folder then, with hashes. Raises BrokenError for files that can't be built."""
    inside = brought_folder(one.workload).lstrip("/")
    empty_folder(tree, inside)
    folder = folder_in(tree, inside)
    for name, data in one.files.items():
        is_program = data.startswith((b"#!", b"\x7fELF"))
        write_file(tree, f"{inside}/{name}", data, mode=0o555 if is_program else 0o444)
    for wheel in one.wheels:
        archive = fetch_wheel(wheel, places, deadline, listener)
        unpack(wheel, archive, tree, f"{inside}/{FOLDER}/{wheel.name}")
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
        copy_tree(tree, scratch, deadline)
        if build.packages:
            listener(Note(text=f"Installing {counted(build.packages)} to build '{one.workload}'"))
            install(scratch, build.packages, recipe, deadline)
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
