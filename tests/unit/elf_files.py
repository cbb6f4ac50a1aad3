"""Small ELF files, made without a compiler."""

from __future__ import annotations

import struct

_AT = 0x1000


def elf_file(
    *,
    needed: tuple[str, ...] = (),
    loader: str | None = None,
    soname: str | None = None,
    runpath: str | None = None,
    machine: int = 62,
    is_shared: bool = True,
    wide: bool = True,
    order: str = "<",
) -> bytes:
    """Return an ELF file with these entries in its dynamic section (elf(5))."""
    strings = bytearray(b"\0")

    def at(text: str) -> int:
        strings.extend(text.encode() + b"\0")
        return len(strings) - len(text.encode()) - 1

    entries = [(1, at(name)) for name in needed]
    entries += [(14, at(soname))] if soname else []
    entries += [(29, at(runpath))] if runpath else []
    word = "Q" if wide else "I"
    entry = struct.Struct(order + word * 2)
    head_size, header_size, count = (64, 56, 3) if wide else (52, 32, 3)
    base = head_size + header_size * count
    interp = (loader.encode() + b"\0") if loader else b""
    tables_at = base + len(interp)
    dynamic_size = (len(entries) + 3) * entry.size if entries else 0
    strings_at = tables_at + dynamic_size
    dynamic = b""
    if entries:
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
    return head + headers + interp + dynamic + bytes(strings)
