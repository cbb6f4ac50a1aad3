"""Overlays of the guest's root disk, and the data disk that both sides read and write."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from labctl.base.deadline import Deadline
from labctl.base.errors import HostError
from labctl.base.process import run

DATA_SIZE_BYTES = 256 * 1024 * 1024
_CHUNK = 4 * 1024 * 1024


def make_overlay(backing: Path, path: Path) -> None:
    """A thin qcow2 at `path` over the qcow2 `backing`, which must not change from now on."""
    path.unlink(missing_ok=True)
    run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", backing, path],
        deadline=Deadline.after(30, "making an overlay"),
        hint="Free some space, or name another folder with --state-dir.",
    )


@dataclass(slots=True)
class DataDisk:
    """A raw file full of random data, and its pristine copy.

    Never an overlay and never sparse: reads of unwritten extents cost nothing and writes to them
    cost a third more (METHOD rule 10).
    """

    folder: Path
    is_dirty: bool = True
    """Whether anything may have been written to it since it was last pristine."""

    @property
    def path(self) -> Path:
        return self.folder / "data.img"

    @property
    def _pristine(self) -> Path:
        return self.folder / "pristine.img"

    def make(self) -> None:
        """Make both files unless they are there and whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not _is_whole(self._pristine):
            aside = self.folder / ".pristine.new"
            try:
                with open(aside, "wb") as file:
                    for _ in range(DATA_SIZE_BYTES // _CHUNK):
                        file.write(os.urandom(_CHUNK))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                aside.unlink(missing_ok=True)
                raise _cannot_write(self._pristine, error) from error
            aside.rename(self._pristine)
        if not _is_whole(self.path):
            try:
                shutil.copyfile(self._pristine, self.path)
            except OSError as error:
                raise _cannot_write(self.path, error) from error

    def reset(self) -> None:
        """Write the pristine data again if need be, in place: the file keeps its extents and its
        inode, so a running guest sees it."""
        if not self.is_dirty:
            return
        try:
            with open(self._pristine, "rb") as source, open(self.path, "r+b") as target:
                while chunk := source.read(_CHUNK):
                    target.write(chunk)
                target.flush()
                os.fdatasync(target.fileno())
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        self.is_dirty = False

    def forget(self) -> None:
        """Drop the disk from the host's page cache, where both sides' I/O may find it, by cache
        mode. This file alone: dropping all caches would slow everybody on the host."""
        with open(self.path, "r+b") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _is_whole(path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return found.st_size == DATA_SIZE_BYTES and found.st_blocks * 512 >= DATA_SIZE_BYTES


def _cannot_write(path: Path, error: OSError) -> HostError:
    return HostError(
        f"cannot write {path}: {error.strerror}",
        hint="Free some space, or name another folder with --state-dir.",
    )
