"""Derive an image with the user's own kernel from another image's tree and disk.

The tree is made of hard links to the other's files, so both sides of a run still have the same
bits; the disk is made anew only where the kernel has modules or a configuration to add.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.errors import UsageError
from labctl.base.events import Listener, Note, Warned
from labctl.guest import images, inventory
from labctl.guest.disk import fitting_mib, make_disk
from labctl.guest.images import Image
from labctl.guest.kernels import GivenKernel, release_of
from labctl.guest.recipe import Recipe
from labctl.guest.tree import folder_in, read_file, write_file

_DEADLINE_S = 600.0

_WITHOUT_INITRD = "/dev/vda"
"""The root's name, to a kernel that has no initrd to find it by its UUID."""


def derive_in(folder: Path, base: Image, recipe: Recipe, listener: Listener) -> dict[str, Any]:
    """Return everything of the recipe's image in a folder, made of `base`; returns its manifest."""
    kernel = recipe.kernel
    assert kernel is not None
    deadline = Deadline.after(_DEADLINE_S, f"putting {kernel.file} into the image")
    tree = folder / images.TREE
    copy = ["cp", "--archive", "--link", str(base.tree.resolve()), str(tree)]
    process.run(copy, deadline=deadline)
    tree.chmod(0o755)  # the root folder of the disk that is made of it
    is_changed = _add_modules(tree, kernel, deadline, listener)
    is_changed |= _add_config(tree, kernel)
    root = base.command_line.split()[0].removeprefix("root=UUID=")
    if is_changed:
        listener(Note(text=f"Making a disk with the modules of {kernel.release}"))
        size_mib = recipe.spec.size_mib
        if recipe.layer:
            size_mib = fitting_mib(inventory.tree_bytes(tree), size_mib)
        make_disk(tree, folder / images.DISK, size_mib, root, deadline)
    else:
        os.link(base.disk.resolve(), folder / images.DISK)
    _copy(kernel.file, folder / images.KERNEL)
    initrd = kernel.initrd
    if initrd is None and base.initrd is not None and release_of(base.kernel) == kernel.release:
        initrd = base.initrd
    if initrd is not None:
        _copy(initrd, folder / images.INITRD)
    return {
        **base.manifest,
        "digest": recipe.digest,
        "command_line": _command_line(base.command_line, has_initrd=initrd is not None),
        "files": images.file_records(folder),
        "kernel": kernel.to_json(),
        "made_of": base.dir.name,
    }


def _add_modules(tree: Path, kernel: GivenKernel, deadline: Deadline, listener: Listener) -> bool:
    # /lib is a link to usr/lib in every present distribution.
    folder = folder_in(tree, "lib/modules")
    target = folder / kernel.release
    if kernel.modules is None:
        if not target.is_dir():
            text = (
                f"no modules of {kernel.release} found, neither beside {kernel.file} nor in "
                "/lib/modules: the guest has what is built into the kernel and in its initrd"
            )
            listener(Warned(text=text))
        return False
    shutil.rmtree(target, ignore_errors=True)
    process.run(["cp", "--archive", str(kernel.modules.resolve()), str(target)], deadline=deadline)
    for link in ("build", "source"):
        (target / link).unlink(missing_ok=True)
    # A package that was only unpacked has no index of its modules yet.
    if not (target / "modules.dep").is_file():
        depmod = ["chroot", str(tree), "depmod", kernel.release]
        process.run(depmod, deadline=deadline, hint="The recipe needs the package 'kmod'.")
    return True


def _add_config(tree: Path, kernel: GivenKernel) -> bool:
    """Return where the guest's facts find it: only with it can two kernels be called the same."""
    if kernel.config is None:
        return False
    name = f"boot/config-{kernel.release}"
    config = kernel.config.read_bytes()
    if read_file(tree, name) == config:
        return False
    # Not in place: the file may be one of the other image's.
    write_file(tree, name, config)
    return True


def _command_line(line: str, *, has_initrd: bool) -> str:
    """Add what another machine's initrd may need: it would wait for that machine's swap."""
    root, *rest = line.split()
    if not has_initrd:
        root = f"root={_WITHOUT_INITRD}"
    return " ".join([root, *rest, "noresume"])


def _copy(source: Path, target: Path) -> None:
    try:
        # Contents only: initrds are 0600, and QEMU's user has to read them.
        shutil.copyfile(source, target)
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error
