"""Read tuned(8)'s own state as knobs: the active profile, and one of ours."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from labctl.base import process
from labctl.base.errors import LabctlError
from labctl.base.process import Deadline
from labctl.host.settings.tunables import ABSENT, PathTunable
from labctl.store.jsonfile import write_bytes

AUTOMATIC = "auto"
"""tuned chooses a profile by itself (`tuned-adm auto_profile`)."""

NO_PROFILE = "none"
_MANUAL = "manual "

_SWITCH_S = 120.0
"""Time for switching a profile: some stop services and load modules."""


@dataclass(frozen=True, slots=True)
class ActiveProfile:
    """Read and set the profile of tuned's daemon: "auto", "none" or "manual NAME…".

    `folder` is tuned's own (/etc/tuned), `pid_file` its daemon's. If the daemon is running,
    tuned-adm switches it; otherwise the files determine its profile at the next start.
    """

    kind: ClassVar[str] = "tuned-profile"
    folder: str = "/etc/tuned"
    pid_file: str = "/run/tuned/tuned.pid"

    @property
    def name(self) -> str:
        return "tuned's active profile"

    @property
    def survives_reboot(self) -> bool:
        return True

    def arguments(self) -> dict[str, str]:
        return asdict(self)

    def read(self) -> str:
        profile = self._path("active_profile").read_text(encoding="utf-8").strip()
        mode = self._path("profile_mode")
        # tuned.utils.commands.get_active_profile(): no mode and no profile means automatic.
        text = mode.read_text(encoding="utf-8").strip() if mode.exists() else ""
        if text == AUTOMATIC or (not text and not profile):
            return AUTOMATIC
        return f"{_MANUAL}{profile}" if profile else NO_PROFILE

    def profiles(self) -> list[str]:
        """Return the profiles that the daemon has applied, in order."""
        return self._path("active_profile").read_text(encoding="utf-8").split()

    def write(self, value: str) -> None:
        profile = value.removeprefix(_MANUAL)
        if daemon_runs(Path(self.pid_file)):
            words = {AUTOMATIC: ["auto_profile"], NO_PROFILE: ["off"]}
            _tuned_adm(words.get(value, ["profile", *profile.split()]))
            return
        named = value not in (AUTOMATIC, NO_PROFILE)
        self._path("active_profile").write_text(f"{profile}\n" if named else "")
        self._path("profile_mode").write_text("auto\n" if value == AUTOMATIC else "manual\n")

    def _path(self, name: str) -> Path:
        return Path(self.folder, name)


def chosen(profile: str) -> str:
    """Return the value of ActiveProfile for a chosen profile."""
    return f"{_MANUAL}{profile}"


@dataclass(frozen=True, slots=True)
class ProfileFolder(PathTunable):
    """Make or remove a profile of ours in tuned's folder: the text of its tuned.conf, or
    "absent"."""

    kind: ClassVar[str] = "tuned-folder"

    def read(self) -> str:
        file = Path(self.path, "tuned.conf")
        return file.read_text(encoding="utf-8") if file.exists() else ABSENT

    def write(self, value: str) -> None:
        if value == ABSENT:
            shutil.rmtree(self.path)
            return
        os.makedirs(self.path, exist_ok=True)
        write_bytes(Path(self.path, "tuned.conf"), value.encode(), below=Path(self.path))


def daemon_runs(pid_file: Path) -> bool:
    """Return whether tuned's daemon is running. (tuned-adm would start it.)"""
    try:
        pid = int(pid_file.read_text(encoding="ascii"))
        return b"tuned" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False


def _tuned_adm(words: list[str]) -> None:
    try:
        process.run(["tuned-adm", *words], deadline=Deadline.after(_SWITCH_S, "tuned-adm"))
    except LabctlError as error:
        # The journal expects a tunable's failures to be the operating system's.
        raise OSError(0, error.message) from error
