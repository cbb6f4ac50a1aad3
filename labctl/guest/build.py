"""Build an image: a tree, a disk made of it, its kernel and initrd.

Nothing is booted. The work is done in a folder beside the images that is renamed when all of it
is there, so that half an image is never taken for one.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, HostError
from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths
from labctl.guest import add_layer, bootstrap, cloud, derive, images, inventory
from labctl.guest.disk import make_disk
from labctl.guest.fetch import Fetched, fetch
from labctl.guest.images import Image
from labctl.guest.recipe import Recipe
from labctl.guest.tree import folder_in, make_link, read_file, remove_file, write_file
from labctl.store.jsonfile import write_json

DEADLINE_S = 1800.0
"""Two minutes are usual; the rest is for slow mirrors. Downloading a cloud image is not in it."""

WORKING_MIB = 1536
"""Room for the tree and the compressed disk, beside the disk as it is before compression."""

CLOUD_MIB = 4096
"""Room for the cloud image's own disk, unpacked."""

FILE_SYSTEM_NAMESPACE = uuid.UUID("5c1d9a3e-7c07-4f35-9d4c-0d8a6a0f6a55")
"""UUIDs of root file systems are version 5 of the image's digest in this namespace."""


def build(recipe: Recipe, places: StatePaths, listener: Listener) -> Image:
    """Return the image of a recipe, built now; one that is already there is returned as it is.

    With a kernel of the user's own, or with a layer, it is made of the image below, which is built
    first.
    Raises HostError when the host lacks permission, space or a tool, BusyError while another
    build runs, ProcessError when a tool fails; nothing is left behind then.
    """
    if (built := images.find(recipe, places)) is not None:
        return built
    cloud.refuse_what_cannot_be_built(recipe)
    if os.geteuid() != 0:
        raise HostError(
            f"building the image '{recipe.name}' needs root: its files belong to root",
            hint="Run 'labctl image build' as root.",
        )
    with images.images_lock(places):
        images.remove_leftovers(places)
        return _built(recipe, places, listener)


def _built(recipe: Recipe, places: StatePaths, listener: Listener) -> Image:
    """Build as `build` does, for a caller that holds the lock."""
    if (built := images.find(recipe, places)) is not None:
        return built
    base = _built(recipe.below, places, listener) if recipe.below else None
    _check_space(recipe, base, places.images)
    official = recipe.spec.cloud_image if base is None else None
    fetched = fetch(official, places, listener) if official else None
    final = images.image_dir(recipe, places)
    working = final.with_name(f".building-{final.name}")
    started = time.monotonic()
    try:
        working.mkdir(mode=0o755)
        if base is None:
            manifest = _build_in(working, recipe, fetched, listener)
        elif recipe.kernel is not None:
            manifest = derive.derive_in(working, base, recipe, listener)
        else:
            manifest = add_layer.add_layer_in(working, base, recipe, places, listener)
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        took_s = round(time.monotonic() - started, 1)
        images.keep_private(working)
        write_json(working / images.MANIFEST, manifest | {"built_at": moment, "build_s": took_s})
        working.rename(final)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return Image.load(final)


def _check_space(recipe: Recipe, base: Image | None, folder: Path) -> None:
    needed_mib = recipe.spec.size_mib + WORKING_MIB
    if base is not None and recipe.layer:
        # A copy for the layer, and another one to build its files in.
        needed_mib += 2 * base.manifest["tree_bytes"] // 2**20
    if recipe.spec.cloud_image is not None and base is None:
        needed_mib += CLOUD_MIB
    free_mib = shutil.disk_usage(folder).free // 2**20
    if free_mib < needed_mib:
        raise HostError(
            f"building the image '{recipe.name}' takes {needed_mib} MiB, "
            f"and {folder} has {free_mib} MiB free",
            hint="Free some space ('labctl image list' shows old images), "
            "or give a folder on a larger disk with --state-dir.",
        )


def _build_in(
    folder: Path, recipe: Recipe, fetched: Fetched | None, listener: Listener
) -> dict[str, Any]:
    """Return everything of an image in a folder; returns its manifest."""
    deadline = Deadline.after(DEADLINE_S, f"building the image '{recipe.name}'")
    tree = folder / images.TREE
    root_uuid = str(uuid.uuid5(FILE_SYSTEM_NAMESPACE, recipe.digest))
    spec = recipe.spec
    if fetched is not None and spec.cloud_image is not None:
        cloud.make_tree(fetched.path, spec.cloud_image, tree, deadline, listener)
        # A cloud image's own would wait for partitions that this disk has not.
        write_file(tree, "etc/fstab", "")
        bootstrap.write_files(tree, recipe)
        cloud.add_packages(tree, recipe, deadline, listener)
    else:
        assert spec.suite is not None  # the recipe was checked
        assert spec.kernel is not None
        bootstrap.make_tree(tree, spec.suite, spec.kernel, recipe, deadline, listener)
    installed = inventory.installed_packages(tree, deadline)
    _configure(tree, recipe)
    _take_kernel(tree, folder)

    listener(Note(text="Making the disk"))
    make_disk(tree, folder / images.DISK, spec.size_mib, root_uuid, deadline)

    return {
        "schema": 1,
        "name": recipe.name,
        "digest": recipe.digest,
        "description": spec.description,
        "command_line": f"root=UUID={root_uuid} {spec.command_line}",
        "user": spec.user,
        "files": images.file_records(folder),
        "tree_bytes": inventory.tree_bytes(tree),
        "binaries": inventory.programs(tree, spec.binaries),
        "packages": installed,
        **({"cloud_image": fetched.to_json()} if fetched else {}),
    }


def _configure(tree: Path, recipe: Recipe) -> None:
    """Make the tree the guest's own, with nothing of the host's."""
    for name in (
        "etc/apt/apt.conf.d/99mmdebstrap",
        "etc/resolv.conf",
        "etc/hostname",
        "var/lib/dbus/machine-id",
    ):
        remove_file(tree, name)
    # Empty, not missing: machine-id(5), "First Boot Semantics", would run first-boot units.
    write_file(tree, "etc/machine-id", "")
    # The build's own sources are the host's business; the guest installs nothing.
    write_file(tree, "etc/apt/sources.list", "")
    for unit in recipe.spec.mask:
        make_link(tree, f"etc/systemd/system/{unit}", "/dev/null")
    for generator in recipe.spec.mask_generators:
        make_link(tree, f"etc/systemd/system-generators/{generator}", "/dev/null")
    tree.chmod(0o755)


def _take_kernel(tree: Path, folder: Path) -> None:
    kernels = sorted(folder_in(tree, "boot").glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise BrokenError(
            f"the image's packages brought {len(kernels)} kernels, not one",
            hint="Name one package with a kernel in the recipe, as 'kernel'.",
        )
    initrd = kernels[0].with_name(kernels[0].name.replace("vmlinuz-", "initrd.img-"))
    for source, name in ((kernels[0], images.KERNEL), (initrd, images.INITRD)):
        data = read_file(tree, f"boot/{source.name}")
        if data is None:
            raise BrokenError(
                f"the image has no file /boot/{source.name}",
                hint="Name a package in the recipe, as 'kernel', that brings kernel and initrd.",
            )
        # Contents only: the initrd is 0600 in the tree, and QEMU's user has to read it.
        (folder / name).write_bytes(data)
