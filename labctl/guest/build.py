"""Build an image: a tree, a disk made from it, its kernel and initrd.

Nothing is booted. The work is done in a folder beside the images that is renamed when it is
complete, so that a partial image is never used.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from labctl.base import process
from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.events import Listener, Note, Warned
from labctl.base.json import parse_json
from labctl.base.paths import StatePaths
from labctl.base.process import Deadline
from labctl.guest import apt, chroot, images, layers
from labctl.guest.fetch import Fetched, fetch
from labctl.guest.images import Image
from labctl.guest.kernels import GivenKernel, release_of
from labctl.guest.layer import Layer
from labctl.guest.recipe import CloudImage, Recipe
from labctl.guest.tree import (
    fitting_mib,
    folder_in,
    make_disk,
    make_link,
    read_file,
    remove_file,
    write_file,
)
from labctl.store.jsonfile import sync, write_json

# Make an image's tree from a Debian suite's packages, with mmdebstrap.


def bootstrapped_tree(
    tree: Path, suite: str, kernel: str, recipe: Recipe, deadline: Deadline, listener: Listener
) -> None:
    """Install a kernel's package and the recipe's packages into a new folder, with their
    dependencies."""
    spec = recipe.spec
    listener(Note(text=f"Installing {len(spec.packages) + 1} packages and what they need"))
    options = [f"--aptopt={option}" for option in apt.host_options(deadline)]
    options += [f"--dpkgopt=path-exclude={pattern}" for pattern in spec.exclude]
    # Before the kernel's package makes its initrd, which depends on these files.
    staged = tree.with_name("files")
    staged.mkdir(exist_ok=True)
    write_files(staged, recipe)
    mmdebstrap = [
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        f"--include={','.join([kernel, *spec.packages])}",
        "--aptopt=APT::Install-Recommends false",
        # The tree is discarded after a crash anyway.
        "--dpkgopt=force-unsafe-io",
        *options,
        f"--essential-hook=sync-in '{staged}' /",
        suite,
        str(tree),
    ]
    sources = apt.sources_of(suite)
    with apt.refusing():
        process.run(
            [*mmdebstrap, "-"] if sources else mmdebstrap,
            stdin="\n".join(sources) + "\n" if sources else None,
            deadline=deadline,
            hint="Try 'apt-get update': the image is built from the package sources of this host.",
        )
    shutil.rmtree(staged, ignore_errors=True)


def write_files(root: Path, recipe: Recipe) -> None:
    """Write the recipe's own files below `root`."""
    for name, text in recipe.spec.files.items():
        write_file(root, name, text)


# Unpack a cloud image into a tree: its root file system as files, plus the recipe's packages.
#
# The root is mounted read-only through a loop device, in a mount namespace that ends with the copy:
# nothing else sees it and nothing needs undoing. `debugfs rdump` needs no mount, but loses hard
# links, set-user-ID bits and file capabilities.


_COPY = 'mkdir "$3"; mount -o "$1" "$2" "$3"; cp -a "$3/." "$4"'
"""Script that copies a partition ($2), mounted at $3, to a folder $4."""


@dataclass(frozen=True, slots=True)
class Partition:
    start_bytes: int
    size_bytes: int


def refuse_what_cannot_be_built(recipe: Recipe) -> None:
    """Raise UsageError for an image that labctl can download and verify, but not build from."""
    cloud = recipe.spec.cloud_image
    if cloud is not None and cloud.packages_by != "apt":
        raise UsageError(
            f"no guest image can be built of '{recipe.name}': it uses {cloud.packages_by}, "
            "but labctl installs packages only with apt",
            hint=f"'labctl image fetch {recipe.name}' downloads and verifies it, for a VM of "
            "your own. For sweeps, use a recipe of Debian or Ubuntu.",
        )


def tree_of_cloud_image(
    file: Path, cloud: CloudImage, tree: Path, deadline: Deadline, listener: Listener
) -> None:
    """Copy the root file system of a verified cloud image, with its /boot, into a new folder.

    Raises BrokenError if it has no root on ext4.
    """
    listener(Note(text="Copying the files of the cloud image"))
    raw = tree.with_name("cloud.raw")
    _check_is_whole(file, cloud, deadline)
    convert = ["qemu-img", "convert", "-f", cloud.format, "-O", "raw"]
    process.run([*convert, str(file), str(raw)], deadline=deadline)
    try:
        roots, boots = [], []
        for number, partition in enumerate(_ext4_partitions(raw, deadline)):
            copied = tree.with_name(f"partition-{number}")
            copied.mkdir()
            _copy_partition(raw, partition, copied, deadline)
            shutil.rmtree(copied / "lost+found", ignore_errors=True)
            if (copied / "etc/os-release").is_symlink() or (copied / "etc/os-release").exists():
                roots.append(copied)
            elif any(copied.glob("vmlinuz-*")):
                boots.append(copied)
        if len(roots) != 1:
            raise BrokenError(
                f"{file} has {len(roots)} root file systems on ext4, not one",
                hint="labctl supports cloud images of Debian and Ubuntu with ext4.",
            )
        roots[0].rename(tree)
        for boot in boots:
            # Ubuntu's, a partition of its own.
            shutil.rmtree(tree / "boot")
            boot.rename(tree / "boot")
    finally:
        raw.unlink()


def add_packages(tree: Path, recipe: Recipe, deadline: Deadline, listener: Listener) -> None:
    """Install the recipe's packages with the tree's own apt, chrooted into it.

    They come from the host's sources if these are of the same release, else from the image's. No
    service is started, and nothing of the host stays in the tree.
    """
    packages = recipe.spec.packages
    listener(Note(text=f"Installing {len(packages)} packages and what they need"))
    if not (tree / "usr/bin/apt-get").exists():
        raise BrokenError(
            "the cloud image has no apt", hint="labctl supports cloud images of Debian and Ubuntu."
        )
    chroot.install(tree, packages, recipe.spec.exclude, deadline)


def _check_is_whole(file: Path, cloud: CloudImage, deadline: Deadline) -> None:
    """Refuse an image that names other files, because these have no signature."""
    info = ["qemu-img", "info", "-f", cloud.format, "--output=json", str(file)]
    told = parse_json(process.run(info, deadline=deadline).stdout)
    data_file = told.get("format-specific", {}).get("data", {}).get("data-file")
    if other := told.get("backing-filename") or data_file:
        raise BrokenError(f"{file} is not a complete image: it refers to '{other}'")


def _ext4_partitions(raw: Path, deadline: Deadline) -> list[Partition]:
    """Return the ext4 partitions; raises BrokenError if the file has no partition table."""
    partx = ["partx", "--raw", "--noheadings", "--bytes", "--output", "START,SIZE"]
    listed = process.run([*partx, str(raw)], deadline=deadline, check=False)
    partitions = partitions_of(listed.stdout) if listed.returncode == 0 else []
    if not partitions:
        raise BrokenError(f"{raw.name} has no partitions, so it is not the disk of a cloud image")
    found = []
    for partition in partitions:
        probe = ["blkid", "--probe", "--output", "value", "--match-tag", "TYPE"]
        offset = ["--offset", str(partition.start_bytes)]
        told = process.run([*probe, *offset, str(raw)], deadline=deadline, check=False)
        if told.stdout.strip() == "ext4":
            found.append(partition)
    return found


def partitions_of(listing: str) -> list[Partition]:
    """Parse partx's lines of start (in sectors of 512 bytes) and size (in bytes)."""
    return [
        Partition(int(start) * 512, int(size))
        for line in listing.splitlines()
        if len(words := line.split()) == 2 and all(word.isdecimal() for word in words)
        for start, size in [words]
    ]


def _copy_partition(raw: Path, partition: Partition, target: Path, deadline: Deadline) -> None:
    # Without its journal: a clean root has an empty one, and the file must not be written to.
    where = f"offset={partition.start_bytes},sizelimit={partition.size_bytes}"
    mount_point = target.with_name(f"{target.name}.mounted")
    namespace = ["unshare", "--mount", "--propagation", "private"]
    arguments = [f"ro,noload,loop,{where}", str(raw), str(mount_point), str(target)]
    try:
        process.run(
            [*namespace, "sh", "-euc", _COPY, "sh", *arguments],
            deadline=deadline,
            hint="The kernel needs loop devices (modprobe loop) and ext4 to read a cloud image.",
        )
    finally:
        if mount_point.exists():
            mount_point.rmdir()


# Derive an image with the user's own kernel from another image's tree and disk.
#
# The tree consists of hard links to the other's files, so both sides of a run still have the same
# bits. The disk is rebuilt only if the kernel adds modules or a configuration.


_DEADLINE_S = 600.0

_WITHOUT_INITRD = "/dev/vda"
"""Root device for a kernel without an initrd that could find it by its UUID."""


def derive_in(folder: Path, base: Image, recipe: Recipe, listener: Listener) -> dict[str, object]:
    """Build the recipe's image in a folder, from `base`; return its manifest."""
    kernel = recipe.kernel
    assert kernel is not None
    deadline = Deadline.after(_DEADLINE_S, f"putting {kernel.file} into the image")
    tree = folder / images.TREE
    copy = ["cp", "--archive", "--link", str(base.tree.resolve()), str(tree)]
    process.run(copy, deadline=deadline)
    tree.chmod(0o755)  # the root folder of the disk made from it
    is_changed = _add_modules(tree, kernel, deadline, listener)
    is_changed |= _add_config(tree, kernel)
    root = base.command_line.split()[0].removeprefix("root=UUID=")
    if is_changed:
        listener(Note(text=f"Making a disk with the modules of {kernel.release}"))
        size_mib = recipe.spec.size_mib
        if recipe.layer:
            size_mib = fitting_mib(images.tree_bytes(tree), size_mib)
        make_disk(tree, folder / images.DISK, size_mib, root, deadline)
    else:
        os.link(base.disk.resolve(), folder / images.DISK)
    _copy_file(kernel.file, folder / images.KERNEL)
    initrd = kernel.initrd
    if initrd is None and base.initrd is not None and release_of(base.kernel) == kernel.release:
        initrd = base.initrd
    if initrd is not None:
        _copy_file(initrd, folder / images.INITRD)
    return {
        **base.manifest,
        "digest": recipe.digest,
        "command_line": _command_line(base.command_line, has_initrd=initrd is not None),
        "files": images.file_records(folder),
        "kernel": kernel.to_json(),
        "made_of": base.dir.name,
    }


def _add_modules(tree: Path, kernel: GivenKernel, deadline: Deadline, listener: Listener) -> bool:
    # /lib is a link to usr/lib in every current distribution.
    folder = folder_in(tree, "lib/modules")
    target = folder / kernel.release
    if kernel.modules is None:
        if not target.is_dir():
            text = (
                f"no modules of {kernel.release} found, neither beside {kernel.file} nor in "
                "/lib/modules: the guest has only the drivers in the kernel and its initrd"
            )
            listener(Warned(text=text))
        return False
    shutil.rmtree(target, ignore_errors=True)
    process.run(["cp", "--archive", str(kernel.modules.resolve()), str(target)], deadline=deadline)
    for link in ("build", "source"):
        (target / link).unlink(missing_ok=True)
    # A package that was only unpacked has no module index yet.
    if not (target / "modules.dep").is_file():
        depmod = ["chroot", str(tree), "depmod", kernel.release]
        process.run(depmod, deadline=deadline, hint="The recipe needs the package 'kmod'.")
    return True


def _add_config(tree: Path, kernel: GivenKernel) -> bool:
    """Put the configuration where the guest's facts find it: two kernels count as the same only
    with it."""
    if kernel.config is None:
        return False
    name = f"boot/config-{kernel.release}"
    config = kernel.config.read_bytes()
    if read_file(tree, name) == config:
        return False
    # Not in place: the file may belong to the other image.
    write_file(tree, name, config)
    return True


def _command_line(line: str, *, has_initrd: bool) -> str:
    """Add what another machine's initrd may need: it would wait for that machine's swap."""
    root, *rest = line.split()
    if not has_initrd:
        root = f"root={_WITHOUT_INITRD}"
    return " ".join([root, *rest, "noresume"])


def _copy_file(source: Path, target: Path) -> None:
    try:
        # Contents only: initrds are 0600, and QEMU's user has to read them.
        shutil.copyfile(source, target)
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error


DEADLINE_S = 1800.0
"""Two minutes are usual; the rest is for slow mirrors. Downloading a cloud image is not
included."""

WORKING_MIB = 1536
"""Space for the tree and the compressed disk, beside the uncompressed disk."""

CLOUD_MIB = 4096
"""Space for the cloud image's own disk, unpacked."""

FILE_SYSTEM_NAMESPACE = uuid.UUID("5c1d9a3e-7c07-4f35-9d4c-0d8a6a0f6a55")
"""UUIDs of root file systems are version 5 of the image's digest in this namespace."""


def build(recipe: Recipe, places: StatePaths, listener: Listener) -> Image:
    """Return the image of a recipe, built now; an existing one is returned unchanged.

    With a kernel of the user's own, or with a layer, it is made from the base image, which is built
    first. Raises HostError if the host lacks permission, space or a tool, BusyError while another
    build runs, ProcessError if a tool fails; nothing is left behind then.
    """
    if (built := images.find(recipe, places)) is not None:
        return built
    refuse_what_cannot_be_built(recipe)
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
            manifest = derive_in(working, base, recipe, listener)
        else:
            manifest = layers.add_layer_in(working, base, recipe, places, listener)
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        took_s = round(time.monotonic() - started, 1)
        images.keep_private(working)
        write_json(working / images.MANIFEST, manifest | {"built_at": moment, "build_s": took_s})
        # Thousands of files: one call for all of them. An image whose files a loss of power has
        # emptied would look as if it were built.
        os.sync()
        working.rename(final)
        sync(final.parent)
    except OSError as error:
        raise HostError(
            f"cannot write the image in {working}: {error.strerror}",
            hint="Free some space, or name another folder with --state-dir.",
        ) from error
    finally:
        shutil.rmtree(working, ignore_errors=True)
    for name in images.remove_old_layers(places) if recipe.layer else ():
        listener(
            Note(
                text=f"Removed the image {name}: of images with files of workloads, the "
                f"{images.LAYERS_KEPT} used last are kept"
            )
        )
    return Image.load(final)


def _check_space(recipe: Recipe, base: Image | None, folder: Path) -> None:
    needed_mib = recipe.spec.size_mib + WORKING_MIB
    if base is not None and recipe.layer:
        # A copy for the layer, and another one for building its files.
        needed_mib += 2 * base.manifest["tree_bytes"] // 2**20
    if recipe.spec.cloud_image is not None and base is None:
        needed_mib += CLOUD_MIB
    free_mib = shutil.disk_usage(folder).free // 2**20
    if free_mib < needed_mib:
        raise HostError(
            f"building the image '{recipe.name}' needs {needed_mib} MiB, but {folder} has "
            f"{free_mib} MiB free",
            hint="Free some space ('labctl image list' shows old images), or name a folder on a "
            "larger disk with --state-dir.",
        )


def _build_in(
    folder: Path, recipe: Recipe, fetched: Fetched | None, listener: Listener
) -> dict[str, object]:
    """Build an image in a folder; return its manifest."""
    deadline = Deadline.after(DEADLINE_S, f"building the image '{recipe.name}'")
    tree = folder / images.TREE
    root_uuid = str(uuid.uuid5(FILE_SYSTEM_NAMESPACE, recipe.digest))
    spec = recipe.spec
    if fetched is not None and spec.cloud_image is not None:
        tree_of_cloud_image(fetched.path, spec.cloud_image, tree, deadline, listener)
        # A cloud image's own fstab would wait for partitions that this disk lacks.
        write_file(tree, "etc/fstab", "")
        write_files(tree, recipe)
        add_packages(tree, recipe, deadline, listener)
    else:
        assert spec.suite is not None  # the recipe was checked
        assert spec.kernel is not None
        bootstrapped_tree(tree, spec.suite, spec.kernel, recipe, deadline, listener)
    installed = images.installed_packages(tree, deadline)
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
        "tree_bytes": images.tree_bytes(tree),
        "binaries": images.programs(tree, spec.binaries),
        "packages": installed,
        **({"cloud_image": fetched.to_json()} if fetched else {}),
    }


def _configure(tree: Path, recipe: Recipe) -> None:
    """Configure the tree for the guest, without anything of the host's."""
    for name in (
        "etc/apt/apt.conf.d/99mmdebstrap",
        "etc/resolv.conf",
        "etc/hostname",
        "var/lib/dbus/machine-id",
    ):
        remove_file(tree, name)
    # Empty, not missing: otherwise first-boot units would run (machine-id(5), "First Boot
    # Semantics").
    write_file(tree, "etc/machine-id", "")
    # The sources of the build are the host's; the guest installs nothing.
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
            f"expected one kernel in the image's packages, got {len(kernels)}",
            hint="Set 'kernel' in the recipe to one package with a kernel.",
        )
    initrd = kernels[0].with_name(kernels[0].name.replace("vmlinuz-", "initrd.img-"))
    for source, name in ((kernels[0], images.KERNEL), (initrd, images.INITRD)):
        data = read_file(tree, f"boot/{source.name}")
        if data is None:
            raise BrokenError(
                f"the image has no file /boot/{source.name}",
                hint="Set 'kernel' in the recipe to a package with a kernel and an initrd.",
            )
        # Contents only: the initrd is 0600 in the tree, and QEMU's user has to read it.
        (folder / name).write_bytes(data)


# Plan a recipe's image without building it.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """Describe a layer that a run's image needs: whether it, or at least its base, `is_built`."""

    image: str
    layer: Layer
    is_built: bool
    is_base_built: bool

    @property
    def says(self) -> str:
        """Return it as a sentence."""
        added = f"the image '{self.image}' with {self.layer.says}"
        if self.is_built:
            return f"{added}: built already."
        first = "" if self.is_base_built else f", after '{self.image}' itself"
        return f"{added}: built first{first}."


def layer_plan(recipe: Recipe, places: StatePaths) -> LayerPlan | None:
    """Return the layer that a run with that recipe's image would add, and its base; None without a
    layer."""
    if recipe.layer is None:
        return None
    layered = recipe.with_kernel(None)
    base = layered.below
    assert base is not None
    return LayerPlan(
        image=recipe.name,
        layer=recipe.layer,
        is_built=images.find(layered, places) is not None,
        is_base_built=images.find(base, places) is not None,
    )
