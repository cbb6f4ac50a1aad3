"""Fail labctl at each call by which it changes files, one call after the other.

    LD_PRELOAD=SHIM python -m tests.faults.write_points WRITING FOLDER HOW...

prints as JSON what came of each call of a writing. Each is made in a child of its own, which is
forked when everything is loaded: a thousand of them take a minute. HOW is one of the shim's
(shim.c), or "dropped": the process dies, and what it had written to files without an fsync is gone,
as after a loss of power.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.writings import WRITINGS, Writing

_ERRNOS = {name: getattr(errno, name) for name in ("EIO", "ENOSPC", "EROFS")}
_STEPS = ("+1d", "-1d")
_FAULT = "a fault in labctl"


@dataclass(frozen=True, slots=True)
class Call:
    """A line of the shim's log. Sizes: -1 without a file, -2 of a folder."""

    name: str
    before: int
    after: int
    path: str
    target: str

    @classmethod
    def read(cls, log: Path) -> list[Call]:
        lines = (line.split("\t") for line in log.read_text().splitlines())
        return [cls(name, int(before), int(after), *paths) for name, before, after, *paths in lines]


def in_child(act: Callable[[], object], said: Path, arm: Callable[[], None] | None = None) -> int:
    """The exit status of a function in a child, negative for a signal; its output is in `said`."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70
    try:
        out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        if arm is not None:
            arm()
        act()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        ctypes.CDLL(None).faults_arm(b"", 0, b"", -1)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Bench:
    """One writing in a folder: `kept` is what is made of it, `was` what it was before."""

    def __init__(self, writing: Writing, folder: Path) -> None:
        self.writing, self.folder = writing, folder
        self.place, self.was = folder / "place", folder / "was"
        self.kept = self.place / "kept"
        self.said, self.log, self.found = (folder / name for name in ("said", "log", "found"))
        self.kept.mkdir(parents=True)
        self.must(lambda: writing.prepare(self.place))
        shutil.copytree(self.place, self.was, symlinks=True)
        self.old = self.left()
        self.calls = self.recorded()
        self.new = self.left()
        self.files = self.names()
        assert self.new != self.old, "nothing was written"

    def must(self, act: Callable[[], object]) -> None:
        if code := in_child(act, self.said):
            raise AssertionError(f"exit status {code}: {self.said.read_text()}")

    def left(self) -> dict[str, Any]:
        """What a user finds."""
        self.must(lambda: self.found.write_text(json.dumps(self.writing.left(self.place))))
        found = json.loads(self.found.read_text())
        assert isinstance(found, dict)
        return found

    def names(self) -> list[str]:
        return sorted(self.writing.names(self.place))

    def anew(self) -> None:
        shutil.rmtree(self.place)
        shutil.copytree(self.was, self.place, symlinks=True)

    def act(self, at: int, how: str) -> int:
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        word = str(_ERRNOS[how]) if how in _ERRNOS else "kill" if how == "dropped" else how

        def arm() -> None:
            ctypes.CDLL(None).faults_arm(
                os.fsencode(self.kept), ctypes.c_long(at), word.encode(), log
            )

        try:
            return in_child(lambda: self.writing.act(self.place), self.said, arm)
        finally:
            os.close(log)

    def recorded(self) -> list[Call]:
        """The calls of a writing that nothing disturbs."""
        if code := self.act(0, "kill"):
            raise AssertionError(f"exit status {code}: {self.said.read_text()}")
        return Call.read(self.log)

    def fail(self, at: int, how: str) -> dict[str, Any]:
        """What came of a fault at the call `at`."""
        self.anew()
        code = self.act(at, how)
        said = self.said.read_text()
        done = Call.read(self.log)
        if how == "dropped":
            drop_unsynced(done)
        after = done[-1] if done else None
        where = f"{after.name} {after.target or after.path}" if after else "nothing"
        return {
            "at": at,
            "how": how,
            "after": where.replace(str(self.place), ""),
            "code": code,
            "said": said,
            "problems": list(self.problems(code, said, how)),
        }

    def problems(self, code: int, said: str, how: str) -> Iterator[str]:
        is_killed = how not in _ERRNOS and how not in _STEPS
        if not is_killed and (_FAULT in said or "Traceback" in said):
            yield "it ends with a traceback"
        if not is_killed and code not in ((0,) if how in _STEPS else (0, 3, 4)):
            yield f"the exit code is {code}"
        try:
            found = self.left()
        except AssertionError as error:
            yield f"it cannot be read: {error}"
            found = {}
        for name in sorted(found.keys() | self.old.keys() | self.new.keys()):
            told = (self.old.get(name), self.new.get(name), *self.writing.says)
            if found.get(name) not in told:
                yield f"{name} is neither the old one nor the new one: {found.get(name)}"
        if code == 0 and not self.writing.may_be_missing and found != self.new:
            yield "it says that it is done and is not"
        try:
            self.must(lambda: self.writing.again(self.place))
            ends = self.old if self.writing.is_undone else self.new
            if (found := self.left()) != ends:
                yield f"it does not go on: {found}, not {ends}"
        except AssertionError as error:
            yield f"it does not go on: {error}"
        if surplus := set(self.names()) - set(self.files):
            yield f"left behind: {', '.join(sorted(surplus))}"


def drop_unsynced(calls: list[Call]) -> None:
    """Cut off of each file what was written to it since its last fsync."""
    synced: dict[str, int] = {}
    for call in calls:
        match call.name:
            case "create" | "write" | "truncate":
                synced.setdefault(call.path, max(call.before, 0))
            case "fsync":
                synced.pop(call.path, None)
            case "sync":
                synced.clear()
            case "rename":
                moved = [p for p in synced if p == call.path or p.startswith(f"{call.path}/")]
                for path in moved:
                    synced[call.target + path.removeprefix(call.path)] = synced.pop(path)
            case "unlink":
                synced.pop(call.path, None)
    for path, size in synced.items():
        with suppress(FileNotFoundError, IsADirectoryError):
            os.truncate(path, min(size, os.path.getsize(path)))


def careless(calls: list[Call]) -> list[str]:
    """A sentence for each rename that a loss of power could undo by half: of a file that was not
    synced before, or in a folder that was not synced after."""
    said = []
    unsynced: dict[str, None] = {}
    folders: dict[str, str] = {}
    for call in calls:
        match call.name:
            case "write" | "create" | "truncate":
                unsynced[call.path] = None
            case "fsync":
                unsynced.pop(call.path, None)
                folders.pop(call.path, None)
            case "sync":
                unsynced.clear()
                folders.clear()
            case "unlink":
                unsynced.pop(call.path, None)
            case "rename":
                inside = [p for p in unsynced if f"{p}/".startswith(f"{call.path}/")]
                for path in inside:
                    said.append(f"renamed without an fsync: {path}")
                    del unsynced[path]
                target = Path(call.target)
                if not target.name.startswith("."):  # else it is on its way out
                    folders[str(target.parent)] = call.target
    said += [f"no fsync of the folder after the rename to {path}" for path in folders.values()]
    said += [f"never synced: {path}" for path in unsynced]
    return said


def main(name: str, folder: str, *hows: str) -> None:
    bench = Bench(WRITINGS[name], Path(folder))
    outcomes = []
    for how in hows:
        at = 0
        while True:
            at += 1
            outcome = bench.fail(at, how)
            outcomes.append(outcome)
            # One call beyond the last: nothing fails any more.
            if at > 4 * len(bench.calls) + 10 or (at > len(bench.calls) and outcome["code"] == 0):
                break
    shown: Mapping[str, Any] = {
        "calls": [f"{call.name} {call.target or call.path}" for call in bench.calls],
        "careless": careless(bench.calls),
        "outcomes": outcomes,
    }
    sys.stdout.write(json.dumps(shown))


if __name__ == "__main__":
    main(*sys.argv[1:])
