"""Have the host put back what `host tune` changes, unless somebody says in time to keep it.

A host that is tuned over ssh may be lost before anybody can undo it: the timer runs on the host
itself, from before the first change. It is systemd's where systemd runs the host, else a shell that
sleeps. A reboot ends it, and with it all that `host tune` has changed.
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError
from labctl.base.paths import StatePaths
from labctl.host.settings.journal import Journal
from labctl.store.jsonfile import read_json, write_json

_SYSTEMD: Final = Path("/run/systemd/system")
_AGAIN_S: Final = 60
_TRIES: Final = 60
"""A restore that failed, as the host is being measured, is tried again after so many seconds, so
often."""


@dataclass(frozen=True, slots=True)
class Timer:
    """Hold a timer that runs. `spared`: ids of the journal's changes from before it, which its end
    doesn't undo."""

    name: str
    spared: frozenset[str]


def start(places: StatePaths, seconds: float) -> Timer | None:
    """Start the timer in place of one that runs already; returns that one, for `resume`. Where it
    can't be started, that one goes on. What that one would undo, the new one undoes as well."""
    before = running(places)
    if before is not None:
        spared = before.spared
    else:
        spared = frozenset(entry.id for entry in Journal(places.journal).pending())
    name = f"labctl-restore-{secrets.token_hex(6)}"
    restore = shlex.join(
        [sys.executable, "-m", "labctl.cli.main", "--state-dir", str(places.root)]
        + ["host", "restore", "--timer", name]
    )
    # Each try asks anew whether it is still due.
    loop = f"for _ in $(seq {_TRIES}); do {restore} && break; sleep {_AGAIN_S}; done"
    places.root.mkdir(parents=True, exist_ok=True)
    _write(places, Timer(name, spared))
    try:
        _launch(name, seconds, loop)
    except BaseException:
        resume(places, before)
        raise
    return before


def _launch(name: str, seconds: float, loop: str) -> None:
    if _SYSTEMD.is_dir():
        # Else it may come a minute late (systemd.timer(5), AccuracySec).
        unit = ("systemd-run", f"--unit={name}", f"--on-active={seconds:g}s", "--quiet")
        unit += ("--timer-property=AccuracySec=1s",)
        process.run(
            [*unit, "sh", "-c", loop], deadline=Deadline.after(30, "starting a timer of systemd")
        )
    else:
        # It must outlive this process, which `process.running` rules out.
        subprocess.Popen(
            ["sh", "-c", f"sleep {seconds:g}; {loop}", name],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def resume(places: StatePaths, timer: Timer | None) -> None:
    """Let an earlier timer be the one that is due again; None: no timer."""
    if timer is None:
        stop(places)
    else:
        _write(places, timer)


def stop(places: StatePaths) -> bool:
    """Stop the timer; returns whether there was one. Its process ends when its time is over, and
    does nothing then."""
    found = running(places) is not None
    if found:
        os.unlink(_file(places))
    return found


def running(places: StatePaths) -> Timer | None:
    """Return the timer that was neither stopped nor replaced; None: there is none."""
    try:
        data = read_json(_file(places))
    except BrokenError:
        return None
    name = data.get("name") if isinstance(data, dict) else None
    if not isinstance(name, str):
        return None
    spared = data.get("spared", [])
    ids = spared if isinstance(spared, list) else []
    return Timer(name, frozenset(one for one in ids if isinstance(one, str)))


def _write(places: StatePaths, timer: Timer) -> None:
    content = {"schema": 1, "name": timer.name, "spared": sorted(timer.spared)}
    write_json(_file(places), content)


def _file(places: StatePaths) -> Path:
    return places.root / "restore-timer.json"
