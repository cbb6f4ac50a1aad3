"""Make overlays of the guest's root disk, and the data disks that both sides read and write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import HostError
from labctl.base.paths import DATA_DISK_BYTES
from labctl.base.process import Deadline, run
from labctl.store.jsonfile import sync

_IMAGE_BYTES = 3 * 1024 * 1024 * 1024
"""Space for tree, qcow2 and the raw disk that a build makes on the way."""
_CHUNK = 4 * 1024 * 1024


FLASH = "flash"
"""Format of a file of UEFI variables: small, so it is copied while a disk gets an overlay."""


@dataclass(frozen=True, slots=True)
class DiskFile:
    """Describe one disk of a guest as a file. `format`: qcow2, raw or FLASH."""

    path: Path
    format: str = "qcow2"


Disks = Mapping[str, DiskFile]
"""Disks of a guest at one moment, by their names in its domain."""


def make_overlays(disks: Disks, folder: Path, stem: str) -> Disks:
    """Return a guest's own disks over those of `disks`, which must not change from now on."""
    made = {}
    for name, disk in disks.items():
        if disk.format == FLASH:
            made[name] = DiskFile(folder / f"{stem}-{name}.fd", FLASH)
            made[name].path.unlink(missing_ok=True)
            if disk.path.exists():  # otherwise libvirt makes it from the firmware's template
                shutil.copyfile(disk.path, made[name].path)
        else:
            made[name] = DiskFile(folder / f"{stem}-{name}.qcow2")
            make_overlay(disk.path, made[name].path, disk.format)
    return made


def remove_disks(disks: Disks) -> None:
    for disk in disks.values():
        disk.path.unlink(missing_ok=True)


def disk_bytes_needed(
    memory_bytes: int, *, data_disks: int, image_is_built: bool, has_clones: bool = False
) -> int:
    """Return the bytes that a sweep may write to the state folder: the data disks and their
    pristine copy, save files (each with a copy if it `has_clones`), and an image that is not built
    yet."""
    data_bytes = (data_disks + 1) * DATA_DISK_BYTES
    saved_bytes = 2 * memory_bytes * (2 if has_clones else 1)
    return data_bytes + saved_bytes + (0 if image_is_built else _IMAGE_BYTES)


def make_overlay(backing: Path, path: Path, backing_format: str = "qcow2") -> None:
    """Make a thin qcow2 at `path` over `backing`, which must not change from now on. A relative
    `backing` starts at the folder of `path`."""
    path.unlink(missing_ok=True)
    run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", backing_format, "-b", backing, path],
        deadline=Deadline.after(30, "making an overlay"),
        hint="Free some space, or name another folder with --state-dir.",
    )
    path.chmod(0o600)


def make_empty(path: Path, form: str) -> None:
    """Make an empty disk of the data disk's size in that format."""
    path.unlink(missing_ok=True)
    run(
        ["qemu-img", "create", "-q", "-f", form, path, str(DATA_DISK_BYTES)],
        deadline=Deadline.after(30, "making an empty disk"),
        hint="Free some space, or name another folder with --state-dir.",
    )


RAW, QCOW2 = "raw", "qcow2"
_SUFFIXES = {RAW: "img", QCOW2: "qcow2"}


@dataclass(slots=True)
class DataDisks:
    """Hold files full of random data, one per disk, and their pristine copy: raw, and also as qcow2
    images if a tuning needs some.

    Never an overlay and never sparse: reads of unwritten extents cost nothing and writes to them
    cost a third more (METHOD rule 10).
    """

    folder: Path
    is_dirty: bool = True
    """True if they may have been written to since they were last pristine."""
    formats: frozenset[str] = frozenset({RAW})
    """Formats that the run's tunings use; native runs use the raw files."""
    count: int = 1

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.paths_in(RAW)

    def paths_in(self, form: str) -> tuple[Path, ...]:
        """Return each disk's file, in the order of their numbers."""
        numbers = ("", *range(2, self.count + 1))
        return tuple(self.folder / f"data{number}.{_SUFFIXES[form]}" for number in numbers)

    @property
    def files(self) -> list[Path]:
        """Return every disk's file in every format."""
        return [path for form in sorted(self.formats) for path in self.paths_in(form)]

    def _pristine(self, form: str) -> Path:
        return self.folder / f"pristine.{_SUFFIXES[form]}"

    def make(self) -> None:
        """Make all files unless they exist and are complete."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_write(self.folder, error) from error
        self._make_pristine()
        if QCOW2 in self.formats:
            self._make_qcow2()
        for form in self.formats:
            for path in self.paths_in(form):
                if not _is_whole(path):
                    try:
                        shutil.copyfile(self._pristine(form), path)
                    except OSError as error:
                        raise _cannot_write(path, error) from error

    def _make_pristine(self) -> None:
        pristine = self._pristine(RAW)
        if not _is_whole(pristine):
            aside = self.folder / ".pristine.new"
            try:
                aside.unlink(missing_ok=True)
                with open(aside, "xb") as file:
                    for _ in range(DATA_DISK_BYTES // _CHUNK):
                        file.write(os.urandom(_CHUNK))
                    file.flush()
                    os.fsync(file.fileno())
                aside.rename(pristine)
                sync(self.folder)
            except OSError as error:
                with suppress(OSError):
                    aside.unlink(missing_ok=True)
                raise _cannot_write(pristine, error) from error

    def _make_qcow2(self) -> None:
        pristine = self._pristine(QCOW2)
        if _is_whole(pristine):
            return
        aside = self.folder / ".pristine.new"
        try:
            run(
                ["qemu-img", "convert", "-q", "-f", RAW, "-O", QCOW2, self._pristine(RAW), aside],
                deadline=Deadline.after(120, "making the qcow2 data disk"),
                hint="Free some space, or name another folder with --state-dir.",
            )
            sync(aside)
            aside.rename(pristine)
            sync(self.folder)
        except OSError as error:
            raise _cannot_write(pristine, error) from error
        finally:
            with suppress(OSError):
                aside.unlink(missing_ok=True)

    def reset(self) -> None:
        """Write the pristine data again if needed, in place: a file keeps its extents and its
        inode, so a running guest sees the data.

        A qcow2's tables are written as they were: writes to a full image change none of them, and
        no workload discards.
        """
        if not self.is_dirty:
            return
        for form in sorted(self.formats):
            for path in self.paths_in(form):
                _write_again(self._pristine(form), path)
        self.is_dirty = False

    def forget(self) -> None:
        """Drop the disks from the host's page cache, where both sides' I/O may find them, depending
        on the cache mode. Only these files: dropping all caches would slow the whole host."""
        for path in self.files:
            with open(path, "r+b") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _write_again(pristine: Path, path: Path) -> None:
    try:
        with open(pristine, "rb") as source, open(path, "r+b") as target:
            while chunk := source.read(_CHUNK):
                target.write(chunk)
            target.flush()
            os.fdatasync(target.fileno())
    except OSError as error:
        raise _cannot_write(path, error) from error


def _is_whole(path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    # A qcow2 holds tables as well as the data.
    is_long_enough = found.st_size >= DATA_DISK_BYTES
    is_as_long = is_long_enough if path.suffix == ".qcow2" else found.st_size == DATA_DISK_BYTES
    return is_as_long and found.st_blocks * 512 >= DATA_DISK_BYTES


def _cannot_write(path: Path, error: OSError) -> HostError:
    return HostError(
        f"cannot write {path}: {error.strerror}",
        hint="Free some space, or name another folder with --state-dir.",
    )
