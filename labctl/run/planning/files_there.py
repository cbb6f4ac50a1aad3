"""Check before anything boots whether the files that a workload brings can run: their interpreters,
loaders, libraries and Python modules are looked for in the image's tree. Nothing is executed."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath

from labctl.base.errors import UsageError
from labctl.base.paths import brought_folder
from labctl.base.templates import fill_in, names_in
from labctl.guest.elf import MAGIC, Elf, read_elf
from labctl.guest.tree import read_file
from labctl.workloads.workload import Workload
from labctl.workloads.workload_file import (
    BinaryFile,
    ConditionalFile,
    HostFile,
    bytes_of,
    read_brought,
)

PATH = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
"""Folders of a tree in which programs are looked for."""

_LIBRARIES = ("lib", "usr/lib", "lib64", "usr/lib64", "usr/local/lib")
_MULTIARCH = re.compile(r"[a-z0-9_]+-linux-gnu[a-z0-9_]*")
_PYTHON = re.compile(r"python[\d.]*")
_SHELL = re.compile(r"(?:ba|da|k|z)?sh")
_FIRST_LINE = 4096
_MOST_MODULES = 200


@dataclass(frozen=True, slots=True)
class Lack:
    """Name something that a brought file needs. `what`: in words; `remedy`: an option."""

    what: str
    remedy: str


@dataclass(slots=True)
class Files:
    """Hold the files of one workload. `sources`: where a command line's files are on this host, by
    name; `owner_of`: the Debian package of a path pattern, as far as this host can tell;
    `is_package`: whether this host's apt knows a package of that name."""

    program: Workload
    sources: Mapping[str, Path]
    owner_of: Callable[[str], str | None]
    is_package: Callable[[str], bool]
    contents: dict[str, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.contents = dict(_contents(self.program))

    def check_alone(self) -> None:
        """Raise UsageError for a file that runs nowhere, whatever the image has."""
        for name in self._elf_names():
            self._check_elf(name)
        for name in self._started():
            self._check_started(name)
        for interpreter, name in self._scripts():
            line = self.contents[name].partition(b"\n")[0]
            if line.endswith(b"\r") and _SHELL.fullmatch(PurePosixPath(interpreter).name):
                raise self._crlf(name, f"{interpreter} does not understand its lines")

    def lacks(self, tree: Path | None) -> list[Lack]:
        """Return what the files need and neither the image's tree nor the other files have; without
        a tree, only what lies beside them on this host."""
        found: dict[str, Lack] = {}
        if tree is not None:
            for name in self._elf_names():
                found |= {one.what: one for one in self._elf_lacks(name, tree)}
            for name in self._started():
                found |= {one.what: one for one in self._interpreter_lacks(name, tree)}
        for name in self._python_scripts():
            found |= {one.what: one for one in self._module_lacks(name, tree)}
        return list(found.values())

    def too_new(self, tree: Path) -> list[tuple[str, str, str]]:
        """Return file, library and version of symbols that the files need and that library lacks in
        the image's tree: they were built for newer libraries."""
        found = []
        for name in self._elf_names():
            for library, version in self._elf(name).versions_needed:
                if PurePosixPath(library).name in map(os.path.basename, self.contents):
                    continue  # one of the files
                has = versions_of(tree, library)
                if has and version not in has:
                    found.append((name, library, version))
        return found

    @property
    def names(self) -> list[str]:
        """Return the files that are checked against the image."""
        return list(dict.fromkeys([*self._started(), *self._python_scripts(), *self._elf_names()]))

    @property
    def _may_be_made(self) -> bool:
        """Return whether the folder has other files, which exist only in the image."""
        return self.program.file.build is not None or bool(self.program.file.wheels)

    def _elf_names(self) -> Iterator[str]:
        return (name for name, data in self.contents.items() if data.startswith(MAGIC))

    def _argvs(self) -> Iterator[Sequence[str]]:
        """Yield the workload's commands with the paths of its files filled in."""
        file = self.program.file
        command = [item for item in file.command if not isinstance(item, ConditionalFile)]
        servers = (server.argv for server in file.serve)
        folder = brought_folder(self.program.name)
        for argv in (command, *servers, *file.prepare, *file.setup, *file.after):
            yield [
                fill_in(word, {"files": folder}, self.program.where)
                if names_in(word) == {"files"}
                else word
                for word in argv
            ]

    def _name_of(self, word: str) -> str | None:
        """Return the brought file that a word of a command names."""
        name = word.removeprefix(f"{brought_folder(self.program.name)}/")
        return name if name != word and name in self.contents else None

    def _started(self) -> Iterator[str]:
        """Yield the files that the kernel itself starts."""
        for argv in self._argvs():
            if argv and (name := self._name_of(argv[0])):
                yield name

    def _scripts(self) -> Iterator[tuple[str, str]]:
        """Yield interpreter and name of each script that a command names as its first argument."""
        for argv in self._argvs():
            words = [word for word in argv[1:] if not word.startswith("-")]
            if argv and words and (name := self._name_of(words[0])):
                yield argv[0], name

    def _said(self, name: str) -> str:
        return f"{self.program.where}: {self.sources.get(name, name)}"

    def _own_path(self, name: str) -> str:
        return shlex.quote(str(self.sources.get(name, name)))

    # Check what a file is.

    def _elf(self, name: str) -> Elf:
        try:
            return read_elf(self.contents[name])
        except ValueError as error:
            raise UsageError(
                f"{self._said(name)}: {error}", hint="Compile or copy it again."
            ) from error

    def _check_elf(self, name: str) -> None:
        elf = self._elf(name)
        if elf.is_foreign:
            own = os.uname().machine
            raise UsageError(
                f"{self._said(name)} is built for {elf.machine}, but this host and its guests are "
                f"{own}",
                hint=f"Compile it for {own}.",
            )

    def _check_started(self, name: str) -> None:
        data = self.contents[name]
        if data.startswith(MAGIC):
            return
        line = data[:_FIRST_LINE].partition(b"\n")[0]
        if line.startswith(b"#!"):
            words = line[2:].split()
            if line.endswith(b"\r"):
                raise self._crlf(name, "its interpreter's name would end with one")
            if not words:
                raise UsageError(
                    f"{self._said(name)} names no interpreter after '#!'",
                    hint="Write, for example, '#!/bin/sh' or '#!/usr/bin/env python3'.",
                )
            return
        interpreter = {".py": "python3", ".pl": "perl"}.get(PurePosixPath(name).suffix, "sh")
        why = "is neither an ELF program nor a script whose first line begins with '#!'"
        if data.startswith(b"\xef\xbb\xbf#!"):
            why = "begins with a byte-order mark, so its '#!' is not seen"
        raise UsageError(
            f"{self._said(name)} {why}",
            hint=f"Name its interpreter (--command '{interpreter} {self._own_path(name)}'), or "
            f"begin it with a line such as '#!/usr/bin/env {interpreter}'.",
        )

    def _crlf(self, name: str, why: str) -> UsageError:
        return UsageError(
            f"{self._said(name)} has lines that end with a carriage return (CRLF): {why}",
            hint=f"Remove them: sed -i 's/\\r$//' {self._own_path(name)}",
        )

    # Look for what it needs in the image's tree.

    def _interpreter_lacks(self, name: str, tree: Path) -> Iterator[Lack]:
        data = self.contents[name]
        if not data.startswith(b"#!"):
            return
        words = data[2:_FIRST_LINE].partition(b"\n")[0].decode(errors="replace").split()
        needed = [words[0]]
        if PurePosixPath(words[0]).name == "env":
            rest = (word for word in words[1:] if not word.startswith("-") and "=" not in word)
            needed += list(rest)[:1]
        for one in needed:
            if not has_program(tree, one):
                own = PurePosixPath(one).name
                remedy = self._package(one if "/" in one else f"/usr/bin/{one}", own)
                yield Lack(f"the interpreter {one} of {name}", remedy)

    def _elf_lacks(self, name: str, tree: Path) -> Iterator[Lack]:
        elf = self._elf(name)
        if elf.loader is not None and not os.path.lexists(tree / elf.loader.lstrip("/")):
            yield Lack(f"the loader {elf.loader} of {name}", self._package(elf.loader))
        for library in elf.needed:
            if not self._has_library(tree, library):
                remedy = self._library_remedy(name, elf, library)
                yield Lack(f"the library {library} of {name}", remedy)

    def _has_library(self, tree: Path, library: str) -> bool:
        if "/" in library:
            return os.path.lexists(tree / library.lstrip("/"))
        folder = brought_folder(self.program.name)
        for path in self._library_paths():
            inside = os.path.normpath(path)
            if inside == folder or inside.startswith(f"{folder}/"):
                if self._may_be_made or (
                    os.path.relpath(f"{inside}/{library}", folder) in self.contents
                ):
                    return True
            elif os.path.lexists(tree / inside.lstrip("/") / library):
                return True
        return any(os.path.lexists(one / library) for one in library_folders(tree))

    def _library_paths(self) -> Iterator[str]:
        """Yield where the brought programs look for libraries before the system's folders. Those of
        one count for all, because a program's own paths may hold for its libraries."""
        folder = brought_folder(self.program.name)
        for name in self._elf_names():
            origin = os.path.dirname(f"{folder}/{name}")
            for path in self._elf(name).paths:
                yield path.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
        listed = self.program.file.env.get("LD_LIBRARY_PATH", "")
        if listed and names_in(listed) <= {"files"}:
            filled = fill_in(listed, {"files": folder}, self.program.where)
            yield from filter(None, filled.split(":"))

    def _library_remedy(self, name: str, elf: Elf, library: str) -> str:
        source = self.sources.get(name)
        if source is not None:
            parent = str(source.parent)
            own = [
                path.replace("${ORIGIN}", parent).replace("$ORIGIN", parent) for path in elf.paths
            ]
            for folder in (*own, parent):
                if folder.startswith("/") and (found := Path(folder, library)).is_file():
                    return f"--file {shlex.quote(os.path.normpath(found))}"
        if any(os.path.lexists(one / library) for one in library_folders(Path("/"))):
            return self._package(f"*/{library}")
        return "--package NAME, or --file PATH of your own library"

    def _package(self, pattern: str, guess: str = "") -> str:
        """Return the option for a file's package. `guess`: its name by Debian's conventions."""
        found = self.owner_of(pattern) if pattern else None
        if found is None and guess and self.is_package(guess):
            found = guess
        return f"--package {found or 'NAME'}"

    # Look for the modules of Python scripts.

    def _python_scripts(self) -> Iterator[str]:
        for name in self._started():
            words = self.contents[name][:_FIRST_LINE].partition(b"\n")[0].split()
            if any(_PYTHON.fullmatch(os.path.basename(one.decode("latin-1"))) for one in words):
                yield name
        for interpreter, name in self._scripts():
            if _PYTHON.fullmatch(PurePosixPath(interpreter).name):
                yield name

    def _module_lacks(self, script: str, tree: Path | None) -> Iterator[Lack]:
        if self._may_be_made or "PYTHONPATH" in self.program.file.env:
            return
        if any(b"sys.path" in self.contents[name] for name in self.contents):
            return  # it chooses where its modules are
        folder = PurePosixPath(script).parent
        waiting, seen = [script], {script}
        while waiting and len(seen) < _MOST_MODULES:
            name = waiting.pop()
            for module in imported(self.contents[name]):
                beside = [str(folder / f"{module}.py"), str(folder / module / "__init__.py")]
                if own := [one for one in beside if one in self.contents]:
                    waiting += [one for one in own if one not in seen]
                    seen.update(own)
                elif not any(one.startswith(f"{folder / module}/") for one in self.contents):
                    yield from self._module_lack(script, name, module, tree)

    def _module_lack(
        self, script: str, name: str, module: str, tree: Path | None
    ) -> Iterator[Lack]:
        what = f"the Python module {module} of {name}"
        source = self.sources.get(script)
        if source is not None:
            for found in (source.parent / f"{module}.py", source.parent / module):
                if found.exists():
                    yield Lack(what, f"--file {shlex.quote(str(found))}")
                    return
        if tree is None or not any(tree.glob("usr/lib/python3*/os.py")):
            return
        # A module of C may be built in, which no file shows.
        is_of_c = module in sys.stdlib_module_names and not _has_module(
            Path(os.__file__).parent, module
        )
        if not is_of_c and not any(_has_module(one, module) for one in _module_folders(tree)):
            pattern = f"*/dist-packages/{module}"
            known = self.owner_of(f"{pattern}.py") or self.owner_of(f"{pattern}/__init__.py")
            remedy = f"--package {known}" if known else self._package("", f"python3-{module}")
            yield Lack(what, remedy)


def _contents(program: Workload) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each brought file. A large file is read from this host; one that
    changed or is gone is refused later, when the image is made."""
    for name, brought in program.file.files.items():
        if isinstance(brought, str | BinaryFile):
            yield name, bytes_of(brought)
        elif isinstance(brought, HostFile):
            try:
                data = read_brought(Path(brought.path))
            except (OSError, ValueError):
                continue
            if hashlib.sha256(data).hexdigest() == brought.sha256:
                yield name, data


def imported(source: bytes) -> list[str]:
    """Return the modules that a Python file imports when it starts, without those of an `if` or a
    `try`; none of one that this Python does not understand."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: dict[str, None] = {}
    for one in body:
        if isinstance(one, ast.Import):
            found |= {alias.name.partition(".")[0]: None for alias in one.names}
        elif isinstance(one, ast.ImportFrom) and one.level == 0 and one.module:
            found[one.module.partition(".")[0]] = None
    return [name for name in found if name not in sys.builtin_module_names]


def _module_folders(tree: Path) -> Iterator[Path]:
    for pattern in ("usr/lib/python3*", "usr/local/lib/python3*"):
        for folder in tree.glob(pattern):
            yield from (folder, folder / "lib-dynload", folder / "dist-packages")


def _has_module(folder: Path, name: str) -> bool:
    if os.path.lexists(folder / f"{name}.py") or os.path.lexists(folder / name):
        return True
    return any(folder.glob(f"{name}.*.so"))


def has_program(tree: Path, program: str) -> bool:
    """Return whether a program, or one that matches a glob, is in a tree. A link counts, because
    its target may exist only if the tree is the root."""
    if "*" in program:
        return any(tree.glob(program.lstrip("/")))
    folders = ("",) if "/" in program else PATH
    return any(os.path.lexists(tree / folder / program.lstrip("/")) for folder in folders)


@lru_cache(maxsize=64)
def versions_of(tree: Path, library: str) -> tuple[str, ...]:
    """Return the versions of a library's symbols in a tree; () if it is not there, or has none."""
    for folder in library_folders(tree):
        path = folder / library
        if path.is_symlink():
            path = folder / os.path.basename(os.readlink(path))
        if data := read_file(tree, str(path.relative_to(tree))):
            with suppress(ValueError):
                return read_elf(data).versions
    return ()


def library_folders(tree: Path) -> list[Path]:
    """Return the folders in which a tree's loader looks for libraries (ld.so(8))."""
    found = [tree / name for name in _LIBRARIES]
    for parent in (tree / "lib", tree / "usr/lib", tree / "usr/local/lib"):
        try:
            names = os.listdir(parent)
        except OSError:
            continue
        found += [parent / name for name in names if _MULTIARCH.fullmatch(name)]
    try:
        listed = os.listdir(tree / "etc/ld.so.conf.d")
    except OSError:
        listed = []
    for name in listed:
        text = (read_file(tree, f"etc/ld.so.conf.d/{name}") or b"").decode(errors="replace")
        lines = (line.strip() for line in text.splitlines())
        found += [tree / line.lstrip("/") for line in lines if line.startswith("/")]
    return found
