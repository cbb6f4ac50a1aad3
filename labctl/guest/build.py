"""Building an image from Debian packages: a tree, a disk made of it, its kernel and initrd.

Nothing is loop-mounted and nothing is booted. The work is done in a folder beside the images that
is renamed when all of it is there, so that half an image is never taken for one.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, HostError
from labctl.base.events import Listener, Note
from labctl.base.places import StatePlaces
from labctl.guest import apt, images
from labctl.guest.images import Image
from labctl.guest.recipe import Recipe
from labctl.store.jsonfile import write_json

DEADLINE_S = 1800.0
"""Two minutes are usual; the rest is for slow mirrors."""

WORKING_MIB = 1536
"""Room for the tree and the compressed disk, beside the disk as it is before compression."""

FILE_SYSTEM_NAMESPACE = uuid.UUID("5c1d9a3e-7c07-4f35-9d4c-0d8a6a0f6a55")
"""UUIDs of root file systems are version 5 of the image's digest in this namespace."""


def build(recipe: Recipe, places: StatePlaces, listener: Listener) -> Image:
    """The image of a recipe, built now; one that is already there is returned as it is.

    Raises HostError when the host lacks permission, space or a tool, BusyError while another
    build runs, ProcessError when a tool fails; nothing is left behind then.
    """
    if (built := images.find(recipe, places)) is not None:
        return built
    if os.geteuid() != 0:
        raise HostError(
            f"building the image '{recipe.name}' needs root: its files belong to root",
            hint="Run 'labctl image build' as root.",
        )
    with images.images_lock(places):
        images.remove_leftovers(places)
        if (built := images.find(recipe, places)) is not None:
            return built
        _check_space(recipe, places.images)
        final = images.image_dir(recipe, places)
        working = final.with_name(f".building-{final.name}")
        try:
            working.mkdir(mode=0o755)
            _build_in(working, recipe, listener)
            working.rename(final)
        finally:
            shutil.rmtree(working, ignore_errors=True)
        return Image.load(final)


def _check_space(recipe: Recipe, folder: Path) -> None:
    needed_mib = recipe.spec.size_mib + WORKING_MIB
    free_mib = shutil.disk_usage(folder).free // 2**20
    if free_mib < needed_mib:
        raise HostError(
            f"building the image '{recipe.name}' takes {needed_mib} MiB, "
            f"and {folder} has {free_mib} MiB free",
            hint="Free some space ('labctl image list' shows old images), "
            "or give a folder on a larger disk with --state-dir.",
        )


def _build_in(folder: Path, recipe: Recipe, listener: Listener) -> None:
    started = time.monotonic()
    deadline = Deadline.after(DEADLINE_S, f"building the image '{recipe.name}'")
    tree = folder / images.TREE
    root_uuid = str(uuid.uuid5(FILE_SYSTEM_NAMESPACE, recipe.digest))

    listener(Note(text=f"Installing {len(recipe.spec.packages) + 1} packages and what they need"))
    _install(tree, recipe, deadline)
    packages = _installed_packages(tree, deadline)
    _configure(tree, recipe)
    _take_kernel(tree, folder)

    listener(Note(text="Making the disk"))
    _make_disk(tree, folder, recipe.spec.size_mib, root_uuid, deadline)

    manifest = {
        "schema": 1,
        "name": recipe.name,
        "digest": recipe.digest,
        "description": recipe.spec.description,
        "built_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "build_s": round(time.monotonic() - started, 1),
        "command_line": f"root=UUID={root_uuid} {recipe.spec.command_line}",
        "user": recipe.spec.user,
        "files": {
            name: {
                "bytes": (folder / name).stat().st_size,
                "sha256": images.file_sha256(folder / name),
            }
            for name in (images.DISK, images.KERNEL, images.INITRD)
        },
        "tree_bytes": _tree_bytes(tree),
        "binaries": _binaries(tree, recipe.spec.binaries),
        "packages": packages,
    }
    write_json(folder / images.MANIFEST, manifest)


def _install(tree: Path, recipe: Recipe, deadline: Deadline) -> None:
    spec = recipe.spec
    options = [f"--aptopt={option}" for option in apt.host_options(deadline)]
    options += [f"--dpkgopt=path-exclude={pattern}" for pattern in spec.exclude]
    # Before the kernel's package makes its initrd, which follows these files.
    staged = tree.with_name("files")
    staged.mkdir(exist_ok=True)
    for name, text in spec.files.items():
        _write(staged, name, text)
    mmdebstrap = [
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        f"--include={','.join([spec.kernel, *spec.packages])}",
        "--aptopt=APT::Install-Recommends false",
        # What is unpacked twice after a crash is thrown away anyway.
        "--dpkgopt=force-unsafe-io",
        *options,
        f"--essential-hook=sync-in '{staged}' /",
        spec.suite,
        str(tree),
    ]
    sources = apt.host_sources(spec.suite)
    process.run(
        [*mmdebstrap, "-"] if sources else mmdebstrap,
        stdin="\n".join(sources) + "\n" if sources else None,
        deadline=deadline,
        hint="Try 'apt-get update': the image is made from the package sources of this host.",
    )
    shutil.rmtree(staged, ignore_errors=True)


def _configure(tree: Path, recipe: Recipe) -> None:
    """Everything that makes the tree the guest's own and nothing of the host's."""
    for name in (
        "etc/apt/apt.conf.d/99mmdebstrap",
        "etc/resolv.conf",
        "etc/hostname",
        "var/lib/dbus/machine-id",
    ):
        (tree / name).unlink(missing_ok=True)
    # Empty, not missing: machine-id(5), "First Boot Semantics", would run first-boot units.
    _write(tree, "etc/machine-id", "")
    # The build's own sources are the host's business; the guest installs nothing.
    _write(tree, "etc/apt/sources.list", "")
    for unit in recipe.spec.mask:
        _mask(tree / "etc/systemd/system" / unit)
    for generator in recipe.spec.mask_generators:
        _mask(tree / "etc/systemd/system-generators" / generator)
    tree.chmod(0o755)


def _mask(link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to("/dev/null")


def _write(root: Path, name: str, text: str) -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _take_kernel(tree: Path, folder: Path) -> None:
    kernels = sorted((tree / "boot").glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise BrokenError(
            f"the image's packages brought {len(kernels)} kernels, not one",
            hint="Name one package with a kernel in the recipe, as 'kernel'.",
        )
    initrd = kernels[0].with_name(kernels[0].name.replace("vmlinuz-", "initrd.img-"))
    for source, name in ((kernels[0], images.KERNEL), (initrd, images.INITRD)):
        # Contents only: the initrd is 0600 in the tree, and QEMU's user has to read it.
        shutil.copyfile(source, folder / name)


def _make_disk(tree: Path, folder: Path, size_mib: int, root_uuid: str, deadline: Deadline) -> None:
    raw = folder / "disk.raw"
    # Tables and journal initialized now: the guest's kernel would do it beside the workload
    # (ext4lazyinit), and each restore would find it elsewhere.
    options = "lazy_itable_init=0,lazy_journal_init=0"
    make = ["mke2fs", "-q", "-t", "ext4", "-L", "labctl-root", "-U", root_uuid, "-E", options]
    process.run(
        [*make, "-d", str(tree), str(raw), f"{size_mib}M"],
        deadline=deadline,
        hint="If the files do not fit, raise 'size_mib' in the recipe.",
    )
    convert = ["qemu-img", "convert", "-O", "qcow2", "-c", "-o", "compression_type=zstd", "-W"]
    process.run([*convert, str(raw), str(folder / images.DISK)], deadline=deadline)
    raw.unlink()


def _installed_packages(tree: Path, deadline: Deadline) -> dict[str, str]:
    """Package to version. Raises ProcessError when dpkg's database can't be read."""
    listed = process.run(
        ["dpkg-query", f"--admindir={tree}/var/lib/dpkg", "-W", "-f", "${Package} ${Version}\n"],
        deadline=deadline,
    )
    return dict(sorted(line.split() for line in listed.stdout.splitlines()))


def _binaries(tree: Path, wanted: Mapping[str, str]) -> dict[str, dict[str, str]]:
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


def _tree_bytes(tree: Path) -> int:
    """Bytes on the disk, hard links counted once."""
    sizes: dict[tuple[int, int], int] = {}
    for folder, _, names in os.walk(tree):
        for name in names:
            status: Any = os.lstat(os.path.join(folder, name))
            sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())
