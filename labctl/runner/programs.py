"""Find the files that a program needs to run: its file, loader, libraries and interpreters, with
their hashes."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import struct
import subprocess
from typing import Any

PT_INTERP = 3
LISTING_S = 60
LONGEST_LINE = 4096
DEEPEST = 4


def hash_programs(paths: list[str]) -> dict[str, Any]:
    """Return each program's files with their SHA-256, as a command that runs it now would read
    them; or the problem that prevented it. A glob stands for the last file that it matches."""
    digests: dict[str, str] = {}
    programs: dict[str, Any] = {}
    for path in paths:
        try:
            found = sorted(glob.glob(path)) if "*" in path else []
            files, is_script = files_of(found[-1] if found else shutil.which(path) or path)
            for name in files:
                if name not in digests:
                    digests[name] = sha256(name)
        except (OSError, ValueError, struct.error, subprocess.SubprocessError) as error:
            programs[path] = {"problem": str(error)}
        else:
            programs[path] = {"files": {n: digests[n] for n in files}, "is_script": is_script}
    return programs


def files_of(path: str, depth: int = 0) -> tuple[list[str], bool]:
    """Return the files that a program needs to run, and whether a script is among them: the
    programs that a script starts are unknown."""
    with open(path, "rb") as file:
        line = file.readline(LONGEST_LINE)
    if line[:2] != b"#!":
        loader = loader_of(path)
        return ([path, loader, *libraries_of(path, loader)] if loader else [path]), False
    words = line[2:].decode().split()
    if depth > DEEPEST or not words:
        raise ValueError("%s is a script without an interpreter" % path)
    found = [path, *files_of(words[0], depth + 1)[0]]
    if os.path.basename(words[0]) == "env":
        for word in words[1:]:
            command = None if word.startswith("-") or "=" in word else shutil.which(word)
            if command:
                found += files_of(command, depth + 1)[0]
                break
    return found, True


def loader_of(path: str) -> str | None:
    """Return the loader that an ELF file names (PT_INTERP in elf(5)); None for one that needs
    none.
    """
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF":
            raise ValueError("%s is neither an ELF file nor a script" % path)
        order, wide = "<" if head[5] == 1 else ">", head[4] == 2
        (start,) = struct.unpack_from(order + ("Q" if wide else "I"), head, 32 if wide else 28)
        size, count = struct.unpack_from(order + "HH", head, 54 if wide else 42)
        for number in range(count):
            file.seek(start + number * size)
            entry = file.read(size)
            if struct.unpack_from(order + "I", entry)[0] == PT_INTERP:
                word = order + ("Q" if wide else "I")
                (at,) = struct.unpack_from(word, entry, 8 if wide else 4)
                (length,) = struct.unpack_from(word, entry, 32 if wide else 16)
                file.seek(at)
                return file.read(length).rstrip(b"\0").decode()
    return None


def libraries_of(path: str, loader: str) -> list[str]:
    """Return the files that the loader maps for a program before its first instruction.

    The loader itself reports them: they depend on its cache, preloads and the CPU's capabilities.
    It gets the target of a link, because the program's own libraries lie beside that ($ORIGIN in
    ld.so(8)).
    """
    done = subprocess.run(
        [loader, "--list", os.path.realpath(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LISTING_S,
    )
    found = []
    lines = done.stdout.decode(errors="replace").splitlines()
    for line in lines:
        target = line.strip().partition(" => ")[2] or line.strip()
        target = target.rpartition(" (0x")[0] or target
        if target.startswith("/"):  # the kernel's own, linux-vdso.so.1, is not a file
            found.append(target)
        elif target == "not found":
            raise ValueError("the loader of %s printed: %s" % (path, line.strip()))
    if done.returncode != 0:
        raise ValueError("the loader of %s printed: %s" % (path, " / ".join(lines[-2:])))
    return found


def sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()
