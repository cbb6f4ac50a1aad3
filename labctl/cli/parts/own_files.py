"""Bring a user's own files along with the program of a command line.

A word of a command is such a file if it is the path of a regular file of this host outside the
system's folders, whose files are the image's. The word then becomes `{{ files }}/NAME`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import click

from labctl.base.errors import UsageError
from labctl.base.wording import printable
from labctl.guest.elf import MAGIC, read_elf

MOST_FILES = 1000
"""Limit on the files that a command line brings."""
MOST_BYTES = 1 << 30
"""Limit on their sizes together."""
MOST_KEPT = 4 << 20
"""Limit on the bytes that are kept with a run; the other files are named by path and digest."""

_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin")
_SYSTEM_PATH = re.compile(
    rf"/(?:(?:{'|'.join(_SYSTEM)})(?=/|$)(?!/shm/|/user/)|usr(?=/|$)(?!/local/))"
)
"""Folders whose files are the image's: all but /usr/local, /dev/shm and /run/user."""
INTERPRETER = re.compile(r"python[\d.]*|(?:ba|da|k|z)?sh|perl|ruby|node|lua[\d.]*|php|Rscript")
_NO_SCRIPT = re.compile(r"-[a-zA-Z]*[ecm]")
_NOT_BROUGHT = frozenset({"/", "/tmp", "/var/tmp", "/dev/shm", "/home", "/root"})
_IGNORED = frozenset({"__pycache__"})


@dataclass(slots=True)
class OwnFiles:
    """Collect the files of one command line. `is_automatic`: whether words of commands that are
    files are brought without --file; `written`: names and globs of files that the program writes,
    because metrics read them."""

    is_automatic: bool
    written: Sequence[str] = ()
    declared: dict[str, str | dict[str, object]] = field(default_factory=dict)
    """Content by name, as a workload's file declares it."""
    sources: dict[str, Path] = field(default_factory=dict)
    """Path on this host by name."""
    contents: dict[str, bytes] = field(default_factory=dict)
    """Content by name of those that are kept with a run."""
    programs: list[str] = field(default_factory=list)
    """Names of the ELF files."""
    has_library: bool = False
    """True if a shared library is among them."""
    _size_bytes: int = 0
    _folders: dict[Path, str] = field(default_factory=dict)

    def bring(self, given: Sequence[str]) -> None:
        """Bring the files and folders of --file PATH[=NAME]. Raises UsageError."""
        for text in given:
            path, name = _named(text)
            if path.is_dir():
                self._bring_folder(path, name)
            else:
                self._bring(path, name or path.name, "--file")

    def words(self, argv: Sequence[str], option: str) -> list[str]:
        """Return a command with `{{ files }}/NAME` in place of each file that is brought. Raises
        UsageError."""
        if self.is_automatic:
            check_there(argv, option)
        script = script_of(argv)
        found: list[str] = []
        for number, word in enumerate(argv):
            key, has_key, value = word.partition("=")
            if name := self._brought_as(word, option, is_script=number == script):
                found.append(f"{{{{ files }}}}/{name}")
            elif has_key and (name := self._brought_as(value, option, is_script=False)):
                found.append(f"{key}={{{{ files }}}}/{name}")
            else:
                self._note_left(word, option, is_program=number == 0)
                found.append(word)
        return found

    def _brought_as(self, word: str, option: str, *, is_script: bool) -> str | None:
        """Return the name by which a word's file is brought; None for another word."""
        if not word:
            return None
        if "{{" in word:
            if "/" in word and os.path.lexists(word):
                raise UsageError(
                    f"{option}: the name of the file {word!r} contains '{{{{'",
                    hint=f"Add --file {_quoted(Path(word))}=NAME and write {{{{ files }}}}/NAME.",
                )
            return None
        path = _absolute(word)
        if name := self._known(path, word):
            return name
        if not self.is_automatic or not ("/" in word or is_script) or _is_of_system(path):
            return None
        if not _is_file(path) or self._is_written(path):
            return None
        return self._bring(path, _plain_name(path.name), option)

    def _is_written(self, path: Path) -> bool:
        return any(fnmatchcase(path.name, name) for name in self.written)

    def _known(self, path: Path, word: str) -> str | None:
        """Return the name of a file or folder that is brought already."""
        for name, source in self.sources.items():
            if source == path and ("/" in word or source.name == word):
                return name
        for folder, name in self._folders.items():
            if "/" in word and path.is_relative_to(folder):
                return str(Path(name, path.relative_to(folder)))
        return None

    def _bring_folder(self, folder: Path, name: str | None) -> None:
        name = name or folder.name
        self._folders[folder] = name
        for path in _files_below(folder):
            self._bring(path, str(Path(name, path.relative_to(folder))), "--file")

    def _bring(self, path: Path, name: str, option: str) -> str:
        from labctl.workloads.workload_file import FILE_NAME, is_program, read_brought

        where = f"{option}: {str(path)!r}"
        if not FILE_NAME.fullmatch(name):
            raise UsageError(
                f"{where} cannot be brought along as {name!r}: expected a name of letters, digits "
                "and . _ + - that begins with a letter or digit",
                hint=f"Name it: --file {_quoted(path)}=NAME",
            )
        if name in self.sources and self.sources[name] != path:
            raise UsageError(
                f"{where} and {str(self.sources[name])!r} have the same name",
                hint=f"Name one of them: --file {_quoted(path)}=NAME",
            )
        try:
            data = read_brought(path)
        except OSError as error:
            raise UsageError(f"{where} cannot be brought along: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"{where} cannot be brought along: {error}") from error
        self._size_bytes += len(data)
        if len(self.sources) >= MOST_FILES or self._size_bytes > MOST_BYTES:
            raise UsageError(
                f"{where}: cannot bring more than {MOST_FILES} files or {MOST_BYTES >> 30} GiB",
                hint="Install large data in the image from a package: --package NAME.",
            )
        self.sources[name] = path
        self.declared[name] = self._declared(path, name, data)
        if data.startswith(MAGIC):
            self.programs.append(name)
            with suppress(ValueError):
                self.has_library |= read_elf(data).is_library
        if is_program(data) and option != "--file" and not os.access(path, os.X_OK):
            note(f"{path} is not executable; the copy that is measured is")
        return name

    def _declared(self, path: Path, name: str, data: bytes) -> str | dict[str, object]:
        """Return a file's content as a declaration holds it."""
        from labctl.workloads.workload_file import MOST_TEXT, as_base64, declared_content, path_of

        kept = sum(map(len, self.contents.values()))
        is_kept = len(data) <= MOST_TEXT and kept + len(data) <= MOST_KEPT
        if is_kept:
            self.contents[name] = data
        content = declared_content(path, data, is_kept=is_kept)
        # A declaration takes such a text for a path.
        return as_base64(data) if path_of(content, path) is not None else content

    def _note_left(self, word: str, option: str, *, is_program: bool) -> None:
        """Note a word that names a file here, or has one in it, and is not brought along."""
        if not self.is_automatic or "{{" in word:
            return
        parts = word.split() if len(word.split()) > 1 else [word]
        for part in parts:
            try:
                path = _absolute(part)
                is_file, is_folder = _is_file(path), path.is_dir()
            except (OSError, ValueError):
                continue
            if self._is_written(path):
                continue
            is_own = not _is_of_system(path) and str(path) not in _NOT_BROUGHT
            if "/" in part and is_own and (is_folder or (is_file and len(parts) > 1)):
                note(
                    f"{option}: {part} is not brought along; if the program reads it, add "
                    f"--file {_quoted(Path(part))} and write {{{{ files }}}}/{path.name}"
                )
            elif "/" not in part and is_file and len(parts) == 1 and not is_program:
                note(
                    f"{option}: '{part}' is also the name of a file here, which is not brought "
                    f"along; to bring it, write ./{part}"
                )


def script_of(argv: Sequence[str]) -> int | None:
    """Return the position of the script that an interpreter runs; None without one."""
    if not INTERPRETER.fullmatch(Path(argv[0]).name):
        return None
    for number, word in enumerate(argv[1:], start=1):
        if _NO_SCRIPT.fullmatch(word):
            return None
        if not word.startswith("-"):
            return number
    return None


def check_there(argv: Sequence[str], option: str) -> None:
    """Raise UsageError for a program that is a folder of this host, a relative path of none, or a
    file here without its './'."""
    first = argv[0]
    if "/" not in first and os.path.isfile(first) and shutil.which(first) is None:
        raise UsageError(
            f"{option}: {first!r} is a file here, but a program without a '/' is looked for in "
            "PATH",
            hint=f"Write ./{first}",
        )
    if "/" not in first or "{{" in first:
        return
    if os.path.isdir(first):
        raise UsageError(
            f"{option}: {first!r} is a folder, not a program", hint="Name the program in it."
        )
    if not first.startswith("/") and not os.path.exists(first):
        raise UsageError(
            f"{option}: no file {first!r} in {Path.cwd()}", hint="Give the path of your program."
        )


def note(text: str) -> None:
    """Print a note on standard error."""
    click.echo(printable(f"labctl: note: {text}"), err=True)


def _named(text: str) -> tuple[Path, str | None]:
    """Return path and name of --file PATH[=NAME]."""
    name: str | None = None
    path = text
    if "=" in text and not os.path.lexists(text):
        path, _, name = text.rpartition("=")
    if not path or not os.path.exists(path):
        raise UsageError(
            f"--file: no file or folder {path!r}",
            hint="Give a path of this host, and maybe a name: --file PATH=NAME.",
        )
    return _absolute(path), name


def _plain_name(name: str) -> str:
    """Return a name without the characters that labctl's copy of a file cannot have."""
    from labctl.workloads.workload_file import FILE_NAME

    if FILE_NAME.fullmatch(name):
        return name
    return re.sub(r"[^A-Za-z0-9._+]+", "-", name)[-100:].lstrip(".+-") or "file"


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder without hidden ones and Python's caches."""
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if one[0] != "." and one not in _IGNORED)
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(path, name)


def _absolute(word: str) -> Path:
    return Path(os.path.abspath(word))


def _is_of_system(path: Path) -> bool:
    return _SYSTEM_PATH.match(str(path)) is not None


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
