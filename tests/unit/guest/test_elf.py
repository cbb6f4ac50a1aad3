"""What an ELF file needs, read without running it."""

from __future__ import annotations

import platform
import random
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from labctl.guest.elf import read_elf
from tests.unit.elf_files import elf_file


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
def test_loader_libraries_and_paths_are_read(wide: bool, order: str) -> None:
    data = elf_file(
        needed=("libfoo.so.1", "libc.so.6"),
        loader="/lib64/ld.so.2",
        runpath="$ORIGIN:/opt/lib",
        wide=wide,
        order=order,
    )
    found = read_elf(data)
    assert found.needed == ("libfoo.so.1", "libc.so.6")
    assert found.loader == "/lib64/ld.so.2"
    assert found.paths == ("$ORIGIN", "/opt/lib")
    assert (found.machine, found.is_library) == ("x86_64", False)


def test_a_static_program_needs_nothing() -> None:
    found = read_elf(elf_file(is_shared=False))
    assert (found.needed, found.loader, found.paths, found.is_library) == ((), None, (), False)


def test_a_library_has_a_name_and_no_loader() -> None:
    found = read_elf(elf_file(soname="libfoo.so.1"))
    assert (found.soname, found.is_library) == ("libfoo.so.1", True)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
def test_versions_of_symbols_are_read_without_weak_ones(wide: bool, order: str) -> None:
    data = elf_file(
        needed=("libc.so.6", "libm.so.6"),
        needs={"libc.so.6": ("GLIBC_2.4", "GLIBC_2.38", "WEAK"), "libm.so.6": ("M_1", "WEAK")},
        defines=("MINE_1", "MINE_2"),
        wide=wide,
        order=order,
    )
    found = read_elf(data)
    assert found.versions_needed == (
        *(("libc.so.6", "GLIBC_2.4"), ("libc.so.6", "GLIBC_2.38"), ("libm.so.6", "M_1")),
    )
    assert found.versions == ("MINE_1", "MINE_2")


def test_this_host_s_own_python_is_not_foreign() -> None:
    found = read_elf(Path(sys.executable).resolve().read_bytes())
    assert found.machine == platform.machine()
    assert not found.is_foreign
    assert any(name.startswith("libc.so") for name in found.needed)


@pytest.mark.parametrize(
    ("machine", "own", "foreign"),
    [
        (62, "x86_64", False),
        (3, "x86_64", False),
        (183, "x86_64", True),
        (62, "aarch64", True),
        (40, "aarch64", False),
        (4711, "x86_64", True),
    ],
)
def test_another_architecture_is_foreign(
    monkeypatch: pytest.MonkeyPatch, machine: int, own: str, foreign: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: own)
    assert read_elf(elf_file(machine=machine)).is_foreign is foreign


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF" + b"\xff" * 100])
def test_what_is_not_a_whole_elf_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="ELF file"):
        read_elf(data)


def test_a_damaged_file_is_refused_or_read() -> None:
    parts = {"needs": {"libfoo.so.1": ("F_1", "F_2")}, "defines": ("A_1",)}
    whole = elf_file(needed=("libfoo.so.1",), loader="/l", runpath="/x", **parts)  # type: ignore[arg-type]
    chance = random.Random(7)
    for _ in range(2000):
        data = bytearray(whole[: chance.randrange(len(whole) + 1)])
        for _ in range(chance.randrange(4)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        with suppress(ValueError):
            read_elf(bytes(data))
