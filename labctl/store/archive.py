"""Pack a run into one file, and read such a file from any source.

An archive is NAME.tar.xz: two xz streams that tar reads as one. The first has the files that
reports read, the second the trials' raw files, so that a report need not decode those. Each has a
SHA-256 digest of its content. Packing the same files gives the same bytes.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final

from labctl.base.errors import DifferenceError, FileError, HostError, UsageError
from labctl.base.paths import RUN_ARCHIVE
from labctl.base.trust import open_regular
from labctl.base.wording import printable
from labctl.store.digests import RECORD, SAMPLES
from labctl.store.jsonfile import json_and_digest

MAGIC: Final = b"\xfd7zXZ\0"
"""First bytes of every xz file."""

MOST_FILES: Final = 1_000_000
MOST_READ_BYTES: Final = 1 << 30
"""Limit on all of the files that reports read, which are held in memory."""
MOST_BYTES: Final = 64 << 30
_FREE_BYTES: Final = 64 << 20
_MOST_RATIO: Final = 500
"""Limit on the unpacked size, as a multiple of the file's size and beyond `_FREE_BYTES`: a run
grows some 30 times, and 1 MB of xz could stand for 7 GB."""
_DECODER_BYTES: Final = 128 << 20
"""Limit on memory for decoding: twice what `xz -9` needs."""

_FOOTER_BYTES: Final = 12
"""Size of the end of an xz stream: CRC32, size of the index, flags, "YZ"."""

_BLOCK: Final = tarfile.BLOCKSIZE
_CHUNK: Final = 1 << 20


def is_archive(path: Path) -> bool:
    """Return whether a file begins as archives do. Raises UsageError if it cannot be read."""
    try:
        with open(open_regular(path), "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def is_read_by_reports(name: str) -> bool:
    """Return whether reports read the file of that name in a run's folder."""
    parts = name.split("/")
    return parts[0] != "trials" or (len(parts) == 3 and parts[2] in (RECORD, SAMPLES))


def pack(files: Mapping[str, Path], target: IO[bytes], root: str) -> None:
    """Write an archive of `files`, by their names in the run's folder, below a folder `root`.
    Owners, times and permissions are left out, because they would identify the user.

    Raises UsageError for a name that no archive can have, HostError for a file that cannot be
    read.
    """
    for is_first in (True, False):
        packer = lzma.LZMACompressor(check=lzma.CHECK_SHA256, preset=6)
        for name in sorted(files):
            if is_read_by_reports(name) is is_first:
                for piece in _packed(f"{root}/{name}", files[name]):
                    target.write(packer.compress(piece))
        if not is_first:
            target.write(packer.compress(bytes(2 * _BLOCK)))
        target.write(packer.flush())


def _packed(name: str, path: Path) -> Iterator[bytes]:
    entry = tarfile.TarInfo(name)
    try:
        if not name.isprintable():
            raise ValueError("its name has unprintable characters")
        with open(open_regular(path), "rb") as file:
            entry.size = os.fstat(file.fileno()).st_size
            yield entry.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
            left = entry.size
            while left and (piece := file.read(min(left, _CHUNK))):
                left -= len(piece)
                yield piece
    except ValueError as error:  # it is too long or too large, too
        raise UsageError(
            f"{path} can't be packed: {error}",
            hint="Rename it, or remove it from the run's folder.",
        ) from error
    except OSError as error:
        raise HostError(f"{path} cannot be read: {error.strerror}") from error
    if left:
        raise HostError(f"{path} became shorter while it was read", hint="Try again.")
    yield bytes(-entry.size % _BLOCK)


@dataclass(frozen=True)
class RunArchive:
    """Read a run's archive from any source: only the format of `pack` is accepted."""

    path: Path

    @property
    def name(self) -> str:
        """Return the run's name: the file's, without its ending."""
        return self.path.name.removesuffix(RUN_ARCHIVE)

    @cached_property
    def read_by_reports(self) -> Mapping[str, bytes]:
        """Return the files that reports read, by their names in the run's folder. Raises
        FileError naming the fault."""
        found = dict(self._read_by_reports())
        if "run.json" not in found:
            raise self._refused("it holds no run.json")
        return found

    def _read_by_reports(self) -> Iterator[tuple[str, bytes]]:
        with self._reader() as reader:
            for name, content in reader.files(first=True):
                if reader.total_bytes > MOST_READ_BYTES:
                    most = f"{MOST_READ_BYTES >> 20:,} MiB"
                    raise self._refused(f"the files that reports read are larger than {most}")
                yield name, b"".join(content)

    def run_json(self) -> bytes:
        """Return run.json without reading the rest, which may be damaged; b"" if there is none.
        Raises FileError."""
        return next((data for name, data in self._read_by_reports() if name == "run.json"), b"")

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name; raises FileError."""
        return name in (self.read_by_reports if is_read_by_reports(name) else self.names)

    def json_and_digest(self, name: str) -> tuple[Any, str]:
        """Return one of the files that reports read, and the SHA-256 of its bytes; raises
        FileError."""
        data = self.read_by_reports.get(name)
        if data is None:
            raise FileError(f"{self.path}/{name} is missing")
        return json_and_digest(data, f"{self.path}/{name}")

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names of all files in the run's folder; raises FileError."""
        return frozenset(name for name, _ in self.files())

    @cached_property
    def sums(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file, by its name in the run's folder; raises FileError."""
        return {name: _sum(content) for name, content in self.files()}

    @cached_property
    def sums_by_trial(self) -> Mapping[str, Mapping[str, str]]:
        """Return the SHA-256 of each file of a trial, by trial and its name there."""
        found: dict[str, dict[str, str]] = {}
        for name, digest in self.sums.items():
            folder, _, inside = name.partition("/")
            trial, _, file = inside.partition("/")
            if folder == "trials" and file:
                found.setdefault(trial, {})[file] = digest
        return found

    def unpack(self, target: Path, under: str = "") -> None:
        """Write the files below the folder `under` into the folder `target`, which nobody else may
        be able to change. Raises FileError, and HostError if it cannot be written."""
        made = {target}
        try:
            for name, content in self._part_with(under):
                if under and not name.startswith(f"{under}/"):
                    continue
                path = target / name
                if path.parent not in made:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    made.add(path.parent)
                with open(path, "xb") as file:
                    file.writelines(content)
        except (FileExistsError, NotADirectoryError) as error:
            raise self._refused(f"'{name}' conflicts with another file") from error
        except OSError as error:
            raise HostError(f"cannot unpack {self.path}: {error.strerror}") from error

    def _part_with(self, under: str) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield the files of the parts that contain those below `under`. For a run's XML that is
        the first part alone, which is read anyway; the other may contain traces."""
        if not under or not is_read_by_reports(f"{under}/"):
            return self.files()
        return ((name, iter((data,))) for name, data in self.read_by_reports.items())

    def files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield name and content of each file in the run's folder, one after the other; raises
        FileError."""
        with self._reader() as reader:
            for first in (True, False):
                yield from reader.files(first=first)

    @contextmanager
    def _reader(self) -> Iterator[_Reader]:
        try:
            descriptor = open_regular(self.path)
        except OSError as error:
            raise FileError(f"{self.path} cannot be read: {error.strerror}") from error
        with open(descriptor, "rb") as file:
            yield _Reader(file, self.path)

    def _refused(self, why: str) -> FileError:
        return _refused(self.path, why)


def _sum(content: Iterable[bytes]) -> str:
    made = hashlib.sha256()
    for piece in content:
        made.update(piece)
    return made.hexdigest()


def _refused(path: Path, why: str) -> FileError:
    return FileError(
        printable(f"{path} is not an archive from 'labctl run export': {why}"),
        hint="Copy it again. If it was packed by another program, unpack it with tar and name the "
        "folder.",
    )


def _ends_as_xz(file: IO[bytes]) -> bool:
    """Return whether the rest of a file ends as an xz stream does: with a footer that has its own
    checksum. So a report notices a cut file without decoding the raw files in it."""
    at = file.tell()
    size = file.seek(0, os.SEEK_END) - at
    file.seek(max(at, at + size - _FOOTER_BYTES))
    footer = file.read(_FOOTER_BYTES)
    file.seek(at)
    checksum = int.from_bytes(footer[:4], "little")
    return footer[10:] == b"YZ" and size > _FOOTER_BYTES and zlib.crc32(footer[4:10]) == checksum


class _Reader:
    """Read the two streams of an archive, one file after the other.

    Only regular files are accepted, below one folder, in the order of their names. So none comes
    twice, and there is no link, no device and no name that leads elsewhere.
    """

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        packed = os.fstat(file.fileno()).st_size
        self._most_bytes = min(_FREE_BYTES + _MOST_RATIO * packed, MOST_BYTES)
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_DECODER_BYTES)
        self._root = ""
        self._files = 0
        self.total_bytes = 0
        """Size of the files so far, including headers and the present file."""

    def files(self, *, first: bool) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield name and content of each file of a part; unread content is skipped."""
        before = ""
        while (header := self._exactly(_BLOCK, may_end=first)).count(0) < len(header):
            name, size = self._member(header)
            if name <= before or is_read_by_reports(name) is not first:
                raise self._refused(f"'{name}' is out of order")
            before = name
            content = self._content(size)
            yield name, content
            for _ in content:
                pass
        if first:
            self._file.seek(-len(self._decoder.unused_data), os.SEEK_CUR)
            if not _ends_as_xz(self._file):
                raise self._refused(
                    "it is cut off, or continued, after the files that reports read"
                )
            self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_DECODER_BYTES)
            return
        is_end = self._exactly(_BLOCK).count(0) == _BLOCK and not self._some(1)
        if not is_end or self._decoder.unused_data or self._file.read(1):
            raise self._refused("data follows its last file")

    def _member(self, header: bytes) -> tuple[str, int]:
        """Return a file's name in the run's folder, and its size."""
        try:
            entry = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            raise self._refused(f"it ends after {self._files} files ({error})") from error
        root, _, name = entry.name.partition("/")
        if entry.type != tarfile.REGTYPE:
            raise self._refused(f"'{entry.name}' is not a regular file")
        if {"", ".", ".."} & {root, *name.split("/")} or not entry.name.isprintable():
            raise self._refused(f"'{entry.name}' is not a valid file name")
        if root != (self._root or root):
            raise self._refused(f"'{entry.name}' is not below '{self._root}'")
        self._root = root
        self._files += 1
        self.total_bytes += _BLOCK + entry.size
        if entry.size < 0 or self.total_bytes > self._most_bytes or self._files > MOST_FILES:
            most = f"{MOST_FILES:,} files or {self._most_bytes >> 20:,} MiB"
            raise self._refused(f"with '{entry.name}' it would unpack to more than {most}")
        return name, entry.size

    def _content(self, size: int) -> Iterator[bytes]:
        padding = -size % _BLOCK
        while size:
            piece = self._exactly(min(size, _CHUNK))
            size -= len(piece)
            yield piece
        if padding:
            self._exactly(padding)

    def _exactly(self, size: int, *, may_end: bool = False) -> bytes:
        """Return the next bytes of a part; b"" at its end, if it may end here."""
        found = self._some(size)
        while len(found) < size and not (may_end and not found):
            piece = self._some(size - len(found))
            if not piece:
                raise self._refused("it is truncated")
            found += piece
        return found

    def _some(self, most: int) -> bytes:
        """Return up to `most` bytes of a part; b"" at its end."""
        while not self._decoder.eof:
            packed = self._file.read(_CHUNK) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not packed:
                raise self._refused("it is truncated")
            try:
                piece = self._decoder.decompress(packed, most)
            except lzma.LZMAError as error:
                raise self._refused(f"it is damaged, or not an xz file ({error})") from error
            if piece:
                return piece
        return b""

    def _refused(self, why: str) -> FileError:
        return _refused(self._path, why)


# Compute one SHA-256 digest of a whole run, the same for its folder and for an archive of it.
#
# It shows damage in transit. It does not prove authenticity: a forger can compute it as well.


PROGRESS: Final = "progress.json"
"""File in a run's folder with the run's progress, for other programs."""

_CHANGES_LATER = re.compile(r"progress\.json|answer\.json|.*\.(?:parquet|html?)")
"""Files beside the trials that are written after a run's end, or by any report on it."""


def content_digest(files: Mapping[str, str]) -> str:
    """Return the digest of files, given their SHA-256 by their names in the run's folder: that of
    the lines "SHA-256 NAME" sorted by name, as sha256sum(1) would print them.

    Files that change after the run's end are left out.
    """
    lines = (f"{files[name]}  {name}\n" for name in sorted(files) if not _changes_later(name))
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def folder_digest(folder: Path) -> str:
    """Return the digest of a run's folder, without links and special files, which no archive has.
    Raises FileError naming what cannot be read."""

    def refuse(error: OSError) -> None:
        raise FileError(f"{error.filename} cannot be read: {error.strerror}") from error

    found = {}
    for place, _, names in os.walk(folder, onerror=refuse):
        for name in names:
            path = Path(place, name)
            inside = str(path.relative_to(folder))
            if not (path.is_symlink() or _changes_later(inside)) and path.is_file():
                found[inside] = _file_digest(path)
    return content_digest(found)


def archive_digest(archive: RunArchive) -> str:
    """Return the digest of the run in an archive. Raises FileError for one that `labctl run
    export` did not write."""
    return content_digest(archive.sums)


def check_digest(run: Path, archive: RunArchive | None, digest: str) -> None:
    """Raise DifferenceError if a run's folder, or the archive that it is in, has another digest."""
    now = folder_digest(run) if archive is None else archive_digest(archive)
    if now != digest:
        name = run.name if archive is None else archive.name
        raise DifferenceError(
            f"{name} differs from the run on its host: expected the digest {digest[:12]}…, "
            f"got {now[:12]}…",
            hint="Fetch it again.",
        )


def _changes_later(name: str) -> bool:
    return "/" not in name and _CHANGES_LATER.fullmatch(name) is not None


def _file_digest(path: Path) -> str:
    try:
        with open(open_regular(path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
