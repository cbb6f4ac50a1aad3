"""Small ELF files, made without a compiler."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType

_AT = 0x1000


def elf_file(
    *,
    needed: tuple[str, ...] = (),
    loader: str | None = None,
    soname: str | None = None,
    runpath: str | None = None,
    needs: Mapping[str, Sequence[str]] = MappingProxyType({}),
    defines: Sequence[str] = (),
    machine: int = 62,
    is_shared: bool = True,
    wide: bool = True,
    order: str = "<",
) -> bytes:
    """Return an ELF file with these entries in its dynamic section (elf(5)). `needs`: versions by
    library, the last one of each weak; `defines`: its own versions."""
    strings = bytearray(b"\0")

    def at(text: str) -> int:
        strings.extend(text.encode() + b"\0")
        return len(strings) - len(text.encode()) - 1

    entries = [(1, at(name)) for name in needed]
    entries += [(14, at(soname))] if soname else []
    entries += [(29, at(runpath))] if runpath else []
    needed_versions = b"".join(
        struct.pack(
            order + "HHIII",
            *(1, len(names), at(library), 16),
            0 if library == [*needs][-1] else 16 + 16 * len(names),
        )
        + b"".join(
            struct.pack(order + "IHHII", 0, 2 * (name == names[-1]), 2, at(name), 16)
            for name in names
        )
        for library, names in needs.items()
    )
    own_versions = b"".join(
        struct.pack(
            order + "HHHHIIIII",
            *(1, 0, 1, 1, 0, 20, 0 if name == defines[-1] else 28, at(name), 0),
        )
        for name in defines
    )
    word = "Q" if wide else "I"
    entry = struct.Struct(order + word * 2)
    head_size, header_size, count = (64, 56, 3) if wide else (52, 32, 3)
    base = head_size + header_size * count
    interp = (loader.encode() + b"\0") if loader else b""
    tables_at = base + len(interp)
    # Two entries each name a list and its length.
    lists = {0x6FFFFFFE: (needed_versions, len(needs)), 0x6FFFFFFC: (own_versions, len(defines))}
    lists = {tag: one for tag, one in lists.items() if one[1]}
    dynamic_size = (len(entries) + 2 * len(lists) + 3) * entry.size if entries else 0
    lists_at = tables_at + dynamic_size
    strings_at = lists_at + sum(len(one) for one, _ in lists.values())
    dynamic = b""
    if entries:
        for tag, (one, number) in lists.items():
            entries += [(tag, _AT + lists_at), (tag + 1, number)]
            lists_at += len(one)
        entries += [(5, _AT + strings_at), (10, len(strings)), (0, 0)]
        dynamic = b"".join(entry.pack(*one) for one in entries)
    total = strings_at + len(strings)
    segments = [
        (1, 0, _AT, total),
        (3 if loader else 0, base, _AT + base, len(interp)),
        (2 if entries else 0, tables_at, _AT + tables_at, dynamic_size),
    ]
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    head = ident + struct.pack(
        order + "HHI" + word * 3 + "IHHHHHH",
        *(3 if is_shared else 2, machine, 1, 0, head_size, 0),
        *(0, head_size, header_size, count, 0, 0, 0),
    )
    headers = b""
    for kind, offset, address, size in segments:
        if wide:
            one = struct.pack(order + "IIQQQQQQ", kind, 5, offset, address, address, size, size, 1)
        else:
            one = struct.pack(order + "8I", kind, offset, address, address, size, size, 5, 1)
        headers += one
    versions = b"".join(one for one, _ in lists.values())
    return head + headers + interp + dynamic + versions + bytes(strings)
