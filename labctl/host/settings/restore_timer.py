"""Restore what `host tune` changes unless someone confirms it in time.

A host that is tuned over ssh may become unreachable before anybody can undo it, so the timer runs
on the host itself and starts before the first change. On a host with systemd it is a systemd timer,
with a unit that restores after a reboot as well, because files and virtual machines stay changed
over one. Elsewhere it is a shell that sleeps, which a reboot ends.
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labctl.base import process
from labctl.base.errors import BrokenError
from labctl.base.paths import StatePaths
from labctl.base.process import Deadline
from labctl.host.machines import boot_id
from labctl.host.settings.journal import Journal
from labctl.store.jsonfile import read_json, write_bytes, write_json

_SYSTEMD: Final = Path("/run/systemd/system")
_AT_BOOT: Final = Path("/etc/systemd/system/labctl-restore.service")
_BOOT_UNIT: Final = """\
# Puts back what 'labctl host tune' or 'labctl advise --apply' has changed and nobody has kept.
[Unit]
Description=Undo what labctl has changed
After=libvirtd.service libvirtd.socket virtqemud.service virtqemud.socket

[Service]
Type=oneshot
ExecStart=/bin/sh {script} {name}

[Install]
WantedBy=multi-user.target
"""
_SCRIPT: Final = """\
# Each try asks anew whether the timer of that name is still due.
for _ in $(seq {tries}); do {restore} --timer "$1" && break; sleep {again_s}; done
"""
_SYSTEMD_S: Final = 30.0
_AGAIN_S: Final = 60
_TRIES: Final = 60
"""Delay and number of retries of a restore that fails because the host is being measured."""


@dataclass(frozen=True, slots=True)
class Timer:
    """Hold a running timer. `spared`: ids of earlier changes in the journal, which the timer does
    not undo."""

    name: str
    spared: frozenset[str]


def start(places: StatePaths, seconds: float) -> Timer:
    """Start the timer in place of a running one, and return it. The new timer also undoes what the
    earlier one would have undone. If the new one cannot be started, the earlier one goes on."""
    before = running(places)
    if before is not None:
        spared = before.spared
    else:
        spared = frozenset(entry.id for entry in Journal(places.journal).pending())
    timer = Timer(f"labctl-restore-{secrets.token_hex(6)}", spared)
    script = _script(places)
    _launch(timer.name, seconds, script)
    # Only now does the new timer count: if labctl dies before this, the earlier one still does.
    content = {"schema": 1, "name": timer.name, "spared": sorted(spared), "boot_id": boot_id()}
    write_json(_file(places), content)
    if _SYSTEMD.is_dir():
        _install(script, timer.name)
    return timer


def _script(places: StatePaths) -> Path:
    """Write the script that a timer runs. A file, because systemd parses a command with shell
    characters differently after a reload of its units."""
    python = [sys.executable, "-m", "labctl.cli.main", "--state-dir", str(places.root)]
    restore = shlex.join([*python, "host", "restore"])
    text = _SCRIPT.format(tries=_TRIES, restore=restore, again_s=_AGAIN_S)
    path = places.root / "restore-timer.sh"
    places.root.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.encode(), mode=0o700, below=places.root)
    return path


def _launch(name: str, seconds: float, script: Path) -> None:
    if _SYSTEMD.is_dir():
        # By default it may be a minute late (systemd.timer(5), AccuracySec).
        unit = ["systemd-run", f"--unit={name}", "--timer-property=AccuracySec=1s", "--quiet"]
        process.run(
            [*unit, f"--on-active={seconds:g}s", "sh", str(script), name],
            deadline=Deadline.after(_SYSTEMD_S, "starting a timer of systemd"),
        )
        return
    # It must outlive this process, which `process.running` prevents.
    subprocess.Popen(
        ["sh", "-c", 'sleep "$1"; exec sh "$2" "$0"', name, f"{seconds:g}", str(script)],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _install(script: Path, name: str) -> None:
    """Install the unit that restores after a reboot, in place of an earlier timer's."""
    # One argument, in which systemd expands nothing (systemd.service(5), "COMMAND LINES").
    escaped = str(script).replace("\\", "\\\\").replace('"', '\\"')
    escaped = escaped.replace("$", "$$").replace("%", "%%")
    text = _BOOT_UNIT.format(script=f'"{escaped}"', name=name)
    write_bytes(_AT_BOOT, text.encode(), below=_AT_BOOT.parent)
    _systemctl("daemon-reload")
    _systemctl("enable", "--quiet", _AT_BOOT.name)


def stop(places: StatePaths) -> bool:
    """Stop the timer; return whether there was one. Its process ends when its time is over, and
    then does nothing."""
    found = running(places) is not None
    with suppress(FileNotFoundError):
        os.unlink(_file(places))
    if _SYSTEMD.is_dir() and _AT_BOOT.exists():
        _systemctl("disable", "--quiet", _AT_BOOT.name)
        _AT_BOOT.unlink(missing_ok=True)
    return found


def _systemctl(*words: str) -> None:
    process.run(["systemctl", *words], deadline=Deadline.after(_SYSTEMD_S, "systemctl"))


def running(places: StatePaths) -> Timer | None:
    """Return the timer that was neither stopped nor replaced; None if there is none, or if a reboot
    has ended it and no unit replaces it."""
    try:
        data = read_json(_file(places))
    except BrokenError:
        return None
    name = data.get("name") if isinstance(data, dict) else None
    if not isinstance(name, str):
        return None
    if data.get("boot_id", boot_id()) != boot_id() and not _AT_BOOT.exists():
        return None
    spared = data.get("spared", [])
    ids = spared if isinstance(spared, list) else []
    return Timer(name, frozenset(one for one in ids if isinstance(one, str)))


def _file(places: StatePaths) -> Path:
    return places.root / "restore-timer.json"
