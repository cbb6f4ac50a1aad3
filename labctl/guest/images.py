"""Manage built images: found by their recipe's digest, verified, listed, removed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base import process
from labctl.base.errors import BrokenError, BusyError, FileError, HostError, UsageError, nearest
from labctl.base.paths import StatePaths, brought_folder
from labctl.base.process import Deadline
from labctl.guest.recipe import Recipe, load_recipe, recipe_names
from labctl.store.jsonfile import canonical, read_json

MANIFEST = "manifest.json"
DISK = "disk.qcow2"
KERNEL = "vmlinuz"
INITRD = "initrd.img"
TREE = "tree"
DIGEST_LENGTH = 12
"""Characters of the digest in the folder's name."""
LAYERS_KEPT = 4
"""Limit on images with files of workloads. Each change of a user's program makes another one."""
MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Image:
    """Describe a complete image: a folder that its build renamed into place."""

    dir: Path
    manifest: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path) -> Image:
        """Load an image; raises BrokenError if the folder's manifest cannot be read or is
        invalid."""
        manifest = read_json(folder / MANIFEST)
        keys = {"name", "digest", "command_line", "files", "binaries", "packages"}
        if not isinstance(manifest, dict) or not keys <= manifest.keys():
            raise FileError(
                f"{folder / MANIFEST} is not an image manifest",
                hint=f"Remove the image with 'labctl image rm {folder.name}', then build it again.",
            )
        return cls(folder, manifest)

    @property
    def name(self) -> str:
        return str(self.manifest["name"])

    @property
    def digest(self) -> str:
        return str(self.manifest["digest"])

    @property
    def command_line(self) -> str:
        """Return the guest kernel's command line, root device included."""
        return str(self.manifest["command_line"])

    @property
    def binaries(self) -> Mapping[str, Mapping[str, str]]:
        """Map program to `path` in the tree and `sha256`."""
        binaries: Mapping[str, Mapping[str, str]] = self.manifest["binaries"]
        return binaries

    @property
    def disk(self) -> Path:
        return self.dir / DISK

    @property
    def kernel(self) -> Path:
        return self.dir / KERNEL

    @property
    def initrd(self) -> Path | None:
        """Return the initrd; None if the user's own kernel boots without one."""
        return self.dir / INITRD if INITRD in self.manifest["files"] else None

    @property
    def given_kernel(self) -> Mapping[str, Any] | None:
        """Return the entry of GivenKernel.to_json for the kernel that replaces the image's own."""
        given: Mapping[str, Any] | None = self.manifest.get("kernel")
        return given

    @property
    def layer(self) -> Mapping[str, Any]:
        """Return the layer that was added for a study's workloads; empty for none."""
        layer: Mapping[str, Any] = self.manifest.get("layer", {})
        return layer

    @property
    def tree(self) -> Path:
        """Return the root file system as files, for native runs. It is never written to."""
        return self.dir / TREE

    @property
    def prepared_dir(self) -> Path:
        """Return the folder of overlays that a first boot provisioned; it is removed with the
        image."""
        return self.dir / "prepared"


def keep_private(folder: Path) -> None:
    """Close an image's tree to other users: its set-user-ID programs run with their owners' rights,
    and become older than the host's when the host is updated."""
    (folder / TREE).chmod(0o700)


def image_dir(recipe: Recipe, places: StatePaths) -> Path:
    return places.images / f"{recipe.name}-{recipe.digest[:DIGEST_LENGTH]}"


def find(recipe: Recipe, places: StatePaths) -> Image | None:
    """Return the image of exactly this recipe, or None if it is not built."""
    folder = image_dir(recipe, places)
    return Image.load(folder) if (folder / MANIFEST).is_file() else None


def list_images(places: StatePaths) -> list[Image]:
    """Return every complete image, sorted by folder name; other folders are left out."""
    images: list[Image] = []
    for path in sorted(places.images.glob(f"[!.]*/{MANIFEST}")):
        try:
            images.append(Image.load(path.parent))
        except BrokenError:
            continue
    return images


def get(name: str, places: StatePaths) -> Image:
    """Return the image in the folder of that name, or of the recipe of that name: the one of the
    present recipe before older ones. Raises UsageError if there is none, or only several older
    ones."""
    images = list_images(places)
    for image in images:
        if image.dir.name == name:
            return image
    if name in recipe_names() and (current := find(load_recipe(name), places)) is not None:
        return current
    named = [image for image in images if image.name == name]
    if len(named) == 1:
        return named[0]
    folders = [image.dir.name for image in named or images]
    if named:
        raise UsageError(
            f"{len(named)} images are called '{name}'", hint=f"Give one of: {', '.join(folders)}."
        )
    hint = nearest(name, folders) if images else "Build one with 'labctl image build'."
    raise UsageError(f"no built image '{name}' in {places.images}", hint=hint)


def file_records(folder: Path) -> dict[str, dict[str, object]]:
    """Return a manifest's records of the files that a guest boots with."""
    return {
        name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for name in (DISK, KERNEL, INITRD)
        if (path := folder / name).is_file()
    }


def verify(image: Image) -> list[str]:
    """Return how the image differs from its build, one sentence each; empty if it is unchanged."""
    problems: list[str] = []
    for name, record in image.manifest["files"].items():
        problems += _changed(image.dir / name, record["sha256"], "the image")
    for program, record in image.binaries.items():
        # Paths in the tree may be links; resolved on the host they would lead out of the tree.
        path = image.tree / record["path"].lstrip("/")
        problems += _changed(path, record["sha256"], f"the tree's {program}")
    for workload, contents in image.layer.get("contents", {}).items():
        for name, sha256 in contents.items():
            path = image.tree / brought_folder(workload).lstrip("/") / name
            problems += _changed(path, sha256, f"the workload '{workload}'")
    return problems


def _changed(path: Path, sha256: str, owner: str) -> list[str]:
    try:
        found = content_sha256(path)
    except OSError as error:
        return [f"{path} cannot be read: {error.strerror}"]
    if found != sha256:
        return [
            f"{path} is not the file that {owner} was built with (SHA-256 {found}, built {sha256})"
        ]
    return []


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file; raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, of a link's target, or of a folder: of all its contents by
    name."""
    if path.is_symlink():
        return hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
    if not path.is_dir():
        return file_sha256(path)
    below = {one.name: content_sha256(one) for one in path.iterdir()}
    return hashlib.sha256(canonical(below).encode()).hexdigest()


def remove(image: Image, places: StatePaths) -> None:
    """Remove an image with its tree and prepared overlays, and a download that only it uses.

    Raises HostError while something of it is mounted, BusyError while a build runs.
    """
    with images_lock(places):
        remove_leftovers(places)
        _refuse_mounted(image.dir)
        _remove(image, places)
        file = _download_of(image)
        if file is not None and file not in map(_download_of, list_images(places)):
            (places.downloads / file).unlink(missing_ok=True)


def mark_used(image: Image) -> None:
    """Note that a run uses an image. Another user than root cannot."""
    with suppress(OSError):
        os.utime(image.dir / MANIFEST)


def remove_old_layers(places: StatePaths) -> list[str]:
    """Remove images with files of workloads but for the LAYERS_KEPT that were used last; return the
    names of their folders. The caller holds the lock."""
    layers = [image for image in list_images(places) if image.layer.get("workloads")]
    layers.sort(key=lambda image: (image.dir / MANIFEST).stat().st_mtime_ns, reverse=True)
    old = [image for image in layers[LAYERS_KEPT:] if _mounted_in(image.dir) is None]
    for image in old:
        _remove(image, places)
    return [image.dir.name for image in old]


def _remove(image: Image, places: StatePaths) -> None:
    # Rename it first: leftovers of an interrupted removal are then not an image.
    doomed = places.images / f".removing-{image.dir.name}"
    try:
        image.dir.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise HostError(
            f"cannot remove {image.dir}: {error.strerror}", hint="Run labctl as root."
        ) from error


def _download_of(image: Image) -> str | None:
    cloud_image = image.manifest.get("cloud_image")
    return Path(cloud_image["file"]).name if cloud_image else None


def remove_leftovers(places: StatePaths) -> None:
    """Remove leftovers of interrupted builds and removals. The caller holds the lock."""
    for pattern in (".building-*", ".removing-*"):
        for folder in places.images.glob(pattern):
            _refuse_mounted(folder)
            shutil.rmtree(folder)


def _refuse_mounted(folder: Path) -> None:
    """Refuse mounts: deleting below a bind mount would delete the host's own files there."""
    if target := _mounted_in(folder):
        raise HostError(f"{target} is mounted", hint=f"Unmount it: umount {target}")


def _mounted_in(folder: Path) -> str | None:
    prefix = f"{folder.resolve()}/"
    for line in MOUNTINFO.read_text().splitlines():
        # proc(5): field 5 is the mount point, with spaces and the like as octal escapes.
        target = line.split()[4].encode().decode("unicode_escape")
        if f"{target}/".startswith(prefix):
            return target
    return None


@contextmanager
def images_lock(places: StatePaths) -> Iterator[None]:
    """Lock the images for one process that adds or removes some; raise BusyError in a second."""
    try:
        places.images.mkdir(parents=True, exist_ok=True)
        lock = os.open(places.images / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(lock, 0o600)  # whoever can open it can lock it
    except OSError as error:
        raise HostError(
            f"cannot write to {places.images}: {error.strerror}",
            hint="Run labctl as root, or name your own folder with --state-dir.",
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                f"another labctl builds or removes images in {places.images}",
                hint="Wait until it is done, then try again.",
            ) from error
        yield
    finally:
        os.close(lock)


# List what an image's tree holds: packages, programs, brought files and size.


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
        found[program] = {"path": name, "sha256": file_sha256(path)}
    return found


def contents(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file and folder directly below a folder, by name."""
    return {path.name: content_sha256(path) for path in sorted(folder.iterdir())}


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
