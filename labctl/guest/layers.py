"""Add a workload's own files to an image's tree: written, unpacked from wheels, and built."""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import sys
import tempfile
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath, PurePosixPath

from labctl.base import process
from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.events import Listener, Note
from labctl.base.paths import BROUGHT, NOBODY, StatePaths, brought_folder
from labctl.base.process import Deadline
from labctl.base.trust import held_in_tree, open_regular
from labctl.base.wording import printable
from labctl.guest import chroot, images
from labctl.guest.images import Image
from labctl.guest.layer import Brought, Build, Large, Layer, Wheel
from labctl.guest.recipe import Recipe
from labctl.guest.tree import (
    copy_tree,
    empty_folder,
    fitting_mib,
    folder_in,
    make_disk,
    make_link,
    remove_file,
    write_file,
)

# Fetch Python wheels that carry a workload's foreign files, and unpack them into an image's tree.
#
# pip downloads them with this host's configuration. Their content is checked against the SHA-256 in
# the workload's file before it is unpacked; none of it is executed here.


FOLDER = "wheels"
"""Folder of a workload's unpacked wheels, below that of its files."""

MOST_BYTES = 2 << 30
"""Limit for the files of one wheel."""
MOST_FILES = 100_000
_LAST = 300
_PIP = ("-m", "pip", "download", "--quiet", "--no-input", "--no-deps")


def fetch_wheel(wheel: Wheel, places: StatePaths, deadline: Deadline, listener: Listener) -> Path:
    """Return the wheel in the state folder, downloaded if it is missing, and verified now.

    The caller holds the images' lock. Raises HostError if it is unavailable, BrokenError if it does
    not match the workload's file.
    """
    path = places.downloads / f"{wheel.sha256}.whl"
    if path.is_file():
        if images.file_sha256(path) == wheel.sha256:
            return path
        listener(Note(text=f"{path} has changed since it was verified; downloading it again"))
        path.unlink()
    listener(Note(text=f"Downloading {wheel.requirement}"))
    with _scratch(places) as folder:
        requirement = folder / "requirements.txt"
        requirement.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
        target = folder / "downloaded"
        options = ("--only-binary=:all:", "--require-hashes", "--dest", str(target))
        command = [sys.executable, *_PIP, *options, "--requirement", str(requirement)]
        done = process.run(command, deadline=deadline, check=False)
        if done.returncode:
            raise _refused(wheel, done.stderr)
        for found in target.glob("*"):
            if images.file_sha256(found) == wheel.sha256:
                return found.rename(path)
    raise BrokenError(f"pip downloaded no file of {wheel.requirement} with that SHA-256")


_UNPACKING = (RuntimeError, NotImplementedError, EOFError, zlib.error, lzma.LZMAError)
"""Errors of zipfile at an encrypted file, an unknown compression, and damaged data."""


def unpack(wheel: Wheel, archive: Path, tree: Path, inside: str) -> None:
    """Write a wheel's files into a folder of the tree. They belong to root, and of their modes only
    the executable bit is kept. Raises BrokenError for a wheel with links, or with files outside the
    folder."""
    try:
        with open(open_regular(archive), "rb") as file, zipfile.ZipFile(file) as opened:
            # Not is_dir(), which raises IndexError for an empty name.
            entries = [one for one in opened.infolist() if not one.filename.endswith("/")]
            _check(wheel, entries)
            for entry in entries:
                is_program = (entry.external_attr >> 16) & stat.S_IXUSR
                mode = 0o555 if is_program else 0o444
                write_file(tree, f"{inside}/{entry.filename}", opened.read(entry), mode=mode)
    except (zipfile.BadZipFile, OSError, ValueError, *_UNPACKING) as error:
        raise BrokenError(f"wheel '{wheel.name}': {archive}: {str(error)[:_LAST]}") from error


def _check(wheel: Wheel, entries: list[zipfile.ZipInfo]) -> None:
    total = sum(entry.file_size for entry in entries)
    if len(entries) > MOST_FILES or total > MOST_BYTES:
        raise BrokenError(
            f"wheel '{wheel.name}' has {len(entries)} files of {total} bytes, the limit is "
            f"{MOST_FILES} files of {MOST_BYTES} bytes"
        )
    seen = set()
    for entry in entries:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        path = PurePosixPath(entry.filename)
        if kind not in (0, stat.S_IFREG):
            raise BrokenError(f"wheel '{wheel.name}': '{entry.filename}' is not a regular file")
        if path.is_absolute() or ".." in path.parts or str(path) != entry.filename:
            raise BrokenError(f"wheel '{wheel.name}': '{entry.filename}' is outside of it")
        if path in seen:
            raise BrokenError(f"wheel '{wheel.name}' has '{entry.filename}' twice")
        seen.add(path)


@contextmanager
def _scratch(places: StatePaths) -> Iterator[Path]:
    """Make a temporary folder, beside the downloads so that a file can be moved."""
    try:
        places.downloads.mkdir(parents=True, exist_ok=True)
        for left in places.downloads.glob(".wheel-*"):
            shutil.rmtree(left)
        folder = Path(tempfile.mkdtemp(prefix=".wheel-", dir=places.downloads))
    except OSError as error:
        raise HostError(
            f"cannot write to {places.downloads}: {error.strerror}",
            hint="Run labctl as root, or name your own folder with --state-dir.",
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _refused(wheel: Wheel, said: str) -> HostError | BrokenError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = "; ".join(lines)[-_LAST:] or "it printed nothing"
    what = f"cannot download {wheel.requirement} ({wheel.name})"
    if "DO NOT MATCH THE HASHES" in said:
        return BrokenError(
            f"{what}: no file of it has the SHA-256 {wheel.sha256[:16]}…",
            hint="Check 'sha256' in the workload's file against the index for this architecture.",
        )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return HostError(
        f"{what}: {words}",
        hint=f"pip of Python {version} must reach a package index: see "
        f"'{os.path.basename(sys.executable)} -m pip config list'.",
    )


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
    """Write a workload's files, and build them in a copy of the tree that is discarded; return the
    resulting contents of its folder, with hashes. Raises BrokenError for files that cannot be
    built."""
    inside = brought_folder(one.workload).lstrip("/")
    empty_folder(tree, inside)
    folder = folder_in(tree, inside)
    for name, content in one.files.items():
        data = content.read() if isinstance(content, Large) else content
        is_program = data.startswith((b"#!", b"\x7fELF"))
        write_file(tree, f"{inside}/{name}", data, mode=0o555 if is_program else 0o444)
    for wheel in one.wheels:
        archive = fetch_wheel(wheel, places, deadline, listener)
        unpack(wheel, archive, tree, f"{inside}/{FOLDER}/{wheel.name}")
    # Independent of labctl's umask: a program without privileges reads them.
    for path in (folder_in(tree, BROUGHT).parent, folder_in(tree, BROUGHT), folder):
        path.chmod(0o755)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    if one.build is not None:
        _build(tree, one, one.build, recipe, deadline, listener)
    return images.contents(folder)


def _build(
    tree: Path, one: Brought, build: Build, recipe: Recipe, deadline: Deadline, listener: Listener
) -> None:
    inside = brought_folder(one.workload).lstrip("/")
    scratch = tree.with_name("build")
    try:
        copy_tree(tree, scratch, deadline)
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
    """Return the end of a build's output, within a limit and without terminal control
    characters."""
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
    """Copy the results of a build. They then belong to root, so no mode bit may pass on root's
    rights."""
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
    """Return the files and folders of a build's outputs, none below another."""
    found: set[Path] = set()
    for pattern in build.outputs:
        matches = set(source.glob(pattern))
        if not matches:
            there = ", ".join(sorted(path.name for path in source.iterdir())[:_NAMED])
            raise BrokenError(
                f"workload '{one.workload}': build: it did not create '{pattern}'",
                hint=f"Its folder has: {there or 'nothing'}.",
            )
        found |= matches
    for path in sorted(found):
        if path.is_symlink() or not path.resolve().is_relative_to(source.resolve()):
            raise BrokenError(
                f"workload '{one.workload}': build: '{path.name}' is a link, not a file or folder"
            )
    return sorted(path for path in found if found.isdisjoint(path.parents))


# Find files that make a guest start something by itself, and mask those that a layer added.
#
# A native run has the same files and starts none of it, so a service, a timer or a kernel setting
# of a package would be active in the guest only.


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
"""Folders whose files systemd reads by name, each with the folders that it overrides:
systemd.unit(5), systemd.generator(7), sysctl.d(5), modules-load.d(5). A link to /dev/null in it
masks a file."""
_SCRIPTS = "etc/init.d"
"""Folder of scripts: systemd-sysv-generator(8) makes a service of each."""


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
    """Mask the additions to a tree since `before`; return the names of units in systemd's form, of
    other files below /etc."""
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


# Add a layer to an image: packages and files for a study's workloads, on a copy of its tree.
#
# Copied for packages: their scripts change files in place (/etc/passwd, logs, dpkg's lists), and
# the base's own tree must still match its digest. Files alone are added or replaced: a layer of
# them has links to the base's.


_DEADLINE_S = 1800.0
_NAMESPACE = uuid.UUID("1f7ac7a4-6a0e-4c63-8f7d-3f4f4f0c9a55")
"""UUIDs of root file systems are version 5 of the image's digest in this namespace."""


def add_layer_in(
    folder: Path, base: Image, recipe: Recipe, places: StatePaths, listener: Listener
) -> dict[str, object]:
    """Build the layered image in a folder; return its manifest. Raises UsageError for an unknown
    package, BrokenError for files that cannot be built."""
    layer = recipe.layer
    assert layer is not None
    deadline = Deadline.after(_DEADLINE_S, f"adding {layer.says} to the image '{base.name}'")
    tree = folder / images.TREE
    listener(Note(text=f"Copying the files of the image '{base.name}'"))
    copy_tree(base.tree, tree, deadline, by_links=not layer.packages)
    tree.chmod(0o755)  # the root folder of the disk made from it
    before = starters(tree)
    packages = dict(base.manifest["packages"])
    if layer.packages:
        listener(Note(text=f"Installing {_counted(layer.packages)} and what they need"))
        _install(tree, layer.packages, recipe, deadline)
        packages = images.installed_packages(tree, deadline)
    masked = mask_added(tree, before)
    contents = {
        one.workload: bring(tree, one, recipe, places, deadline, listener) for one in layer.brought
    }
    listener(Note(text="Making the disk"))
    tree_bytes = images.tree_bytes(tree)
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
        # The layer's dependencies may be newer than the base's packages.
        "binaries": images.programs(tree, recipe.spec.binaries),
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
    """Raise UsageError for an image that labctl cannot add packages to, and for files outside their
    workload's folder."""
    cloud = recipe.spec.cloud_image
    if layer.packages and cloud is not None and cloud.packages_by != "apt":
        raise UsageError(
            f"packages cannot be added to the image '{recipe.name}': {layer.says}",
            hint="Choose an image of Debian or Ubuntu.",
        )
    for one in layer.brought:
        for name in (one.workload, *one.files, *(one.build.outputs if one.build else ())):
            path = PurePosixPath(name)
            if path.is_absolute() or not path.parts or ".." in path.parts:
                raise UsageError(
                    f"workload '{one.workload}': '{name}' is not in the workload's folder",
                    hint="Give a path relative to it, without '..'.",
                )


def _command_line(line: str, root: str) -> str:
    _, *rest = line.split()
    return " ".join([f"root=UUID={root}", *rest])


_NO_CLUSTER = "etc/postgresql-common/createcluster.conf"
"""Configuration for postgresql-common's scripts: without a cluster no server starts, and no data
directory is in the image."""


def _install(tree: Path, wanted: Sequence[str], recipe: Recipe, deadline: Deadline) -> None:
    """Install packages and their dependencies. Raises UsageError for an unknown one."""
    write_file(tree, _NO_CLUSTER, "create_main_cluster = false\n")
    # An image without manual pages lacks these folders, and Java's script then fails.
    for number in range(1, 9):
        folder_in(tree, f"usr/share/man/man{number}")
    chroot.install(tree, wanted, recipe.spec.exclude, deadline)
    if not (tree / "usr/share/postgresql-common").is_dir():
        shutil.rmtree(folder_in(tree, str(PurePosixPath(_NO_CLUSTER).parent)))
    # As in a new image: a package's script may have created this machine's.
    write_file(tree, "etc/machine-id", "")
    remove_file(tree, "var/lib/dbus/machine-id")


def _counted(packages: Sequence[str]) -> str:
    """Return the number of packages, and their names."""
    many = f"{len(packages)} packages" if len(packages) > 1 else "1 package"
    return f"{many} ({', '.join(sorted(packages))})"
