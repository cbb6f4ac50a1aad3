"""Keep a text that takes long to make, with all that it was made of.

Whoever asks for the same gets it as long as nothing of that has changed (docs/decisions/kept-
reports.md). What was read isn't declared but watched: Python tells of each file that it opens and
each folder that it lists (its audit events), and code that only looks at a path says so. Anything
watched that a look at files can't vouch for (a program that was started, a socket, something
written, the kernel's own files) keeps the text from being kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_FORMAT: Final = 1

SETTLED_NS: Final = 2_000_000_000
"""Age of the latest change: what changed later may change again within one tick of the file
system's clock, and look the same (git calls such files "racily clean")."""

_BEGAN_NS = time.time_ns()
"""Start of it all: what is read has to be older, code as well, which is loaded before a text is
made."""

_MOST_KEPT: Final = 100
"""Texts in a folder; the oldest go first."""
_MOST_BYTES: Final = 5_000_000
"""Bytes of a text and the list of what it was made of: a run of ten thousand trials has 3.5 MB."""
_NAME = re.compile(r"[0-9a-f]{32}\.json")

_LOOKED_AT: Final = "labctl.looked_at"

_BEYOND_US: Final = ("os.", "subprocess.", "socket.", "fcntl.")
"""Beginnings of events that tell of something other than a file that is read."""
_HARMLESS: Final = frozenset({"os.putenv", "os.unsetenv", "os.walk"})
"""Events of those that change nothing, or are followed by another that tells."""
_LISTS: Final = frozenset({"os.listdir", "os.scandir"})
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_KERNELS_OWN: Final = ("/proc/", "/sys/")

_SESSIONS_OWN: Final = frozenset(
    {
        *("_", "OLDPWD", "SHLVL"),
        *("SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "GPG_TTY"),
        *("STY", "TMUX", "TMUX_PANE", "WINDOW", "WINDOWID"),
        *("DBUS_SESSION_BUS_ADDRESS", "INVOCATION_ID", "JOURNAL_STREAM", "XDG_SESSION_ID"),
    }
)
"""Variables that are others in each command, window or session, and say nothing else."""

Look = tuple[int, ...] | None
"""Looks of a path from outside; None where nothing can be looked at."""


def looked_at(path: Path | str) -> None:
    """Say that what is made depends on how a file looks: on its being there, its size or times."""
    sys.audit(_LOOKED_AT, path)


def is_there(path: Path) -> bool:
    """Return whether there is such a file or folder."""
    looked_at(path)
    return path.exists()


def show_kept(
    folder: Path, question: Sequence[str], make: Callable[[], str], show: Callable[[str], object]
) -> None:
    """Show the text that answers a question: one kept in `folder`, else what `make` returns.

    `question`: what the text depends on beside files, the environment, the terminal, the present
    folder and the user, which are always part of it. A folder that isn't this user's, or that
    others can change, keeps nothing.
    """
    file = folder / f"{_digest(question)}.json"
    if (kept := _read(file)) is not None:
        show(kept)
        return
    with _Watch() as watch:
        text = make()
    show(text)
    if (sources := watch.sources()) is not None:
        _write(file, text, sources)


def _digest(question: Sequence[str]) -> str:
    """Return a name for the question, asked here and now."""
    environment = {name: value for name, value in os.environ.items() if name not in _SESSIONS_OWN}
    asked: list[Any] = [_FORMAT, *question, sorted(environment.items())]
    asked += [_present_folder(), os.geteuid(), os.getegid(), sorted(os.getgroups())]
    asked += [sys.version, sys.executable, sys.path, sys.flags]
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        asked += [getattr(stream, "encoding", None), getattr(stream, "errors", None)]
    for descriptor in range(3):
        with suppress(OSError):
            asked.append((os.isatty(descriptor), *os.get_terminal_size(descriptor)))
        asked.append(None)
    return hashlib.sha256(repr(asked).encode(errors="surrogateescape")).hexdigest()[:32]


def _present_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it is gone


def _look(path: str) -> Look:
    try:
        s = os.stat(path)
    except OSError:
        return None
    return (s.st_dev, s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns)


def _is_device(look: tuple[int, ...]) -> bool:
    """Return whether it is a device, a pipe or a socket, which has no content to vouch for."""
    return not (stat.S_ISREG(look[2]) or stat.S_ISDIR(look[2]))


def _loaded_code() -> list[str]:
    """Return the file of each module that is loaded, and the folders in which another of its name
    would be found before it."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    beside = {os.path.dirname(file) for file in files if file}
    return [*filter(None, files), *beside, *sys.path[:-1]]


def _is_bytecode(path: Any) -> bool:
    """Return whether a path is of bytecode, which Python makes of modules that are looked at."""
    return isinstance(path, str) and ("__pycache__" in path or ".pyc" in os.path.basename(path))


class _Watch:
    """Note what is read inside the block."""

    def __init__(self) -> None:
        self._here = _present_folder()
        self._looks: dict[str, Look] = {}
        self._is_beyond_us = False

    def __enter__(self) -> _Watch:
        global _watch
        _hook_once()
        _watch = self
        return self

    def __exit__(self, *_: object) -> None:
        global _watch
        _watch = None

    def saw(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note what an audit event tells of."""
        first: Any = arguments[0] if arguments else None
        if _is_bytecode(first):
            return
        if event == "open":
            if arguments[2] & _WRITES:
                self._is_beyond_us = True
            elif not isinstance(first, int):  # a descriptor: its opening was told before
                # Its folder as well: other files there may be looked at without a word.
                self._note(first)
                self._note(os.path.dirname(first))
        elif event == _LOOKED_AT:
            self._note(os.path.join(self._here, first))
        elif event in _LISTS:
            self._note(first)
        elif event.startswith(_BEYOND_US) and event not in _HARMLESS:
            self._is_beyond_us = True

    def _note(self, path: Any) -> None:
        # A relative name may belong to a folder that is held open, which the event doesn't name.
        if not isinstance(path, str | bytes | os.PathLike) or not os.path.isabs(path):
            self._is_beyond_us = True
            return
        name = os.fsdecode(path)
        if name.startswith(_KERNELS_OWN):
            self._is_beyond_us = True
        elif name not in self._looks:
            look = self._looks[name] = _look(name)
            self._is_beyond_us |= look is not None and _is_device(look)

    def sources(self) -> dict[str, Look] | None:
        """Return how everything looks that the text was made of, the loaded code included; None
        where that can't be told from how files look, or may change unseen."""
        if self._is_beyond_us:
            return None
        for path in _loaded_code():
            self._looks.setdefault(path, _look(path))
        newest = _BEGAN_NS - SETTLED_NS
        is_settled = all(max(look[-2:]) < newest for look in self._looks.values() if look)
        return self._looks if is_settled else None


_watch: _Watch | None = None
_hooked = False


def _hook_once() -> None:
    """Hear audit events from now on: a hook can't be taken away again."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_told)
        _hooked = True


def _told(event: str, arguments: tuple[Any, ...]) -> None:
    if _watch is not None:
        _watch.saw(event, arguments)


def _read(file: Path) -> str | None:
    """Return a text that nothing has changed since; None without one."""
    from labctl.base.trust import doubt

    if doubt(file):  # it isn't there, or others may have written it
        return None
    try:
        kept = json.loads(file.read_bytes())
        text, sources = str(kept["text"]), kept["sources"]
        same = all(_look(path) == (look and tuple(look)) for path, look in sources.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # cut off, or nothing of ours
    return text if same else None


def _write(file: Path, text: str, sources: dict[str, Look]) -> None:
    from labctl.base.errors import HostError
    from labctl.base.trust import doubt
    from labctl.store.jsonfile import replacing

    data = json.dumps({"text": text, "sources": sources}).encode()
    if len(data) > _MOST_BYTES:
        return
    try:
        if not _made(file.parent) or doubt(file.parent):
            return
        with replacing(file, mode=0o600) as out:
            out.write(data)
        found = (path for path in file.parent.iterdir() if _NAME.fullmatch(path.name))
        for old in sorted(found, key=lambda path: path.stat().st_mtime_ns)[:-_MOST_KEPT]:
            old.unlink(missing_ok=True)
    except (HostError, OSError):
        pass  # read-only, or full: the next one makes the text again


def _made(folder: Path) -> bool:
    """Make a folder for this user alone, and those that are missing on the way to it; returns
    whether it is this user's to make. In another user's folder it would be in that one's way."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    there = missing[-1].parent if missing else folder
    if there.stat().st_uid != os.geteuid():
        return False
    for path in reversed(missing):
        path.mkdir(mode=0o700 if path == folder else 0o755)
    return True
