"""Read from an ELF file what it needs to be loaded (elf(5)). Nothing of it is executed."""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

MAGIC = b"\x7fELF"

_LOAD, _DYNAMIC, _INTERP = 1, 2, 3
_NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 10, 14, 15, 29
_VERDEF, _VERNEED = 0x6FFFFFFC, 0x6FFFFFFE
_WEAK = 2
"""Flag of a version without which a program runs too (VER_FLG_WEAK)."""
_SHARED = 3
_MOST_HEADERS = 1000
_MOST_ENTRIES = 10_000

_MACHINES = {
    3: "i386",
    8: "mips",
    20: "ppc",
    21: "ppc64",
    22: "s390x",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
}
"""Names that uname(2) gives for e_machine."""
_ALSO = {
    "i386": ("i486", "i586", "i686", "x86_64"),
    "arm": ("armv7l", "armv8l", "aarch64"),
    "ppc64": ("ppc64le",),
    "mips": ("mips64",),
}
"""Other machines that run it, some with a loader and libraries of their own for it."""


@dataclass(frozen=True, slots=True)
class Elf:
    """Hold what an ELF file names. `machine`: its architecture as uname(2) names it; `loader`: its
    program interpreter (PT_INTERP), None for a static program or a library; `needed`: its libraries
    (DT_NEEDED); `paths`: where it looks for them first (DT_RUNPATH, else DT_RPATH);
    `versions_needed`: library and version of the symbols that it takes from it; `versions`: those
    of its own symbols (DT_VERNEED and DT_VERDEF, "Symbol Versioning" of the Linux Standard Base).
    """

    machine: str
    is_shared: bool
    loader: str | None
    needed: tuple[str, ...]
    soname: str | None
    paths: tuple[str, ...]
    versions_needed: tuple[tuple[str, str], ...] = ()
    versions: tuple[str, ...] = ()

    @property
    def is_library(self) -> bool:
        """Return whether it is a shared library: not a program of its own."""
        return self.is_shared and self.loader is None and self.soname is not None

    @property
    def is_foreign(self) -> bool:
        """Return whether this machine cannot run it."""
        own = platform.machine()
        return own != self.machine and own not in _ALSO.get(self.machine, ())


def read_elf(data: bytes) -> Elf:
    """Return what an ELF file names. Raises ValueError for a damaged one."""
    try:
        return _read(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError("it is a damaged ELF file") from error


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def _read(data: bytes) -> Elf:
    if data[:4] != MAGIC:
        raise ValueError("it is not an ELF file")
    order, is_wide = "<" if data[5] == 1 else ">", data[4] == 2
    kind, machine = struct.unpack_from(order + "HH", data, 16)
    segments = list(_segments(data, order, is_wide))
    loader = None
    entries: list[tuple[int, int]] = []
    for one in segments:
        if one.kind == _INTERP:
            loader = _piece(data, one.offset, one.size).rstrip(b"\0").decode()
        elif one.kind == _DYNAMIC:
            entries = list(_entries(_piece(data, one.offset, one.size), order, is_wide))
    known = dict(reversed(entries))
    strings = b""
    if _STRTAB in known:
        start = _offset(segments, known[_STRTAB])
        strings = _piece(data, start, known.get(_STRSZ, 0))

    def text(at: int) -> str:
        return strings[at : strings.index(b"\0", at)].decode()

    try:
        paths = next((text(known[tag]) for tag in (_RUNPATH, _RPATH) if tag in known), "")
        needed = tuple(text(value) for tag, value in entries if tag == _NEEDED)
        soname = text(known[_SONAME]) if _SONAME in known else None

        def chain(tag: int) -> _Chain:
            start = _offset(segments, known[tag]) if tag in known else None
            return _Chain(data, order, start)

        names = islice(chain(_VERNEED).needed(), _MOST_ENTRIES)
        versions_needed = tuple(
            (text(library), text(version)) for library, version, flags in names if not flags & _WEAK
        )
        versions = tuple(text(version) for version in chain(_VERDEF).defined())
    except ValueError as error:
        raise ValueError("it is a damaged ELF file") from error
    return Elf(
        machine=_MACHINES.get(machine, f"machine {machine}"),
        is_shared=kind == _SHARED,
        loader=loader,
        needed=needed,
        soname=soname,
        paths=tuple(path for path in paths.split(":") if path),
        versions_needed=versions_needed,
        versions=versions,
    )


@dataclass(frozen=True, slots=True)
class _Chain:
    """Hold a list of versions: entries that name the distance to the next one, and to the first of
    their own names. `start`: None without any."""

    data: bytes
    order: str
    start: int | None

    def needed(self) -> Iterator[tuple[int, int, int]]:
        """Yield library and version, as places of their names, and the version's flags."""
        for at, (_, count, file, aux, _) in self._entries("HHIII", self.start, _MOST_ENTRIES):
            for _, (_, flags, _, name, _) in self._entries("IHHII", at + aux, count):
                yield file, name, flags

    def defined(self) -> Iterator[int]:
        """Yield the places of the versions' names."""
        for at, (*_, aux, _) in self._entries("HHHHIII", self.start, _MOST_ENTRIES):
            for _, (name, _) in self._entries("II", at + aux, 1):
                yield name

    def _entries(
        self, layout: str, at: int | None, most: int
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield place and numbers of each entry; the last one is the distance to the next."""
        for _ in range(most if at is not None else 0):
            assert at is not None
            entry = struct.unpack_from(self.order + layout, self.data, at)
            yield at, entry
            if entry[-1] == 0:
                return
            at += entry[-1]


def _segments(data: bytes, order: str, is_wide: bool) -> Iterator[_Segment]:
    (start,) = struct.unpack_from(order + ("Q" if is_wide else "I"), data, 32 if is_wide else 28)
    size, count = struct.unpack_from(order + "HH", data, 54 if is_wide else 42)
    if count > _MOST_HEADERS:
        raise ValueError("it is a damaged ELF file")
    for number in range(count):
        header = _piece(data, start + number * size, size)
        if is_wide:
            kind, _, offset, address, _, length = struct.unpack_from(order + "IIQQQQ", header)
        else:
            kind, offset, address, _, length = struct.unpack_from(order + "IIIII", header)
        yield _Segment(kind, offset, address, length)


def _entries(table: bytes, order: str, is_wide: bool) -> Iterator[tuple[int, int]]:
    """Yield tag and value of each entry of the dynamic section."""
    entry = struct.Struct(order + ("qQ" if is_wide else "iI"))
    for number in range(min(len(table) // entry.size, _MOST_ENTRIES)):
        tag, value = entry.unpack_from(table, number * entry.size)
        if tag == 0:
            return
        yield tag, value


def _offset(segments: list[_Segment], address: int) -> int:
    """Return where in the file an address of the loaded program is."""
    for one in segments:
        if one.kind == _LOAD and one.address <= address < one.address + one.size:
            return one.offset + address - one.address
    raise ValueError("it is a damaged ELF file")


def _piece(data: bytes, start: int, length: int) -> bytes:
    if start + length > len(data):
        raise ValueError("it is a damaged ELF file")
    return data[start : start + length]
