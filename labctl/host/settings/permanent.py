"""Read and write what stays over a reboot, as tunables: files of /etc, and domains of libvirt."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.errors import LabctlError
from labctl.host.settings.tunables import ABSENT
from labctl.store.jsonfile import write_bytes

_TOOL_S = 120.0
"""Seconds for a tool: update-grub looks at every disk for other systems."""

_TEXT = "text:"
"""Begins the value of a file that is there, so that no text is taken for ABSENT."""

_GRUB = "/etc/default/grub.d/"
_UNITS = "/etc/systemd/system/"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Read and write a file of /etc as "text:" and its content, or "absent". What reads it only
    when told (GRUB's menu, systemd) is told so when it is written; nothing is started anew."""

    kind: ClassVar[str] = "config-file"
    path: str

    @property
    def name(self) -> str:
        return self.path

    @property
    def survives_reboot(self) -> bool:
        return True

    def arguments(self) -> dict[str, str]:
        return asdict(self)

    def read(self) -> str:
        try:
            return content(Path(self.path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return ABSENT

    def write(self, value: str) -> None:
        path, unit = Path(self.path), self._unit()
        if value == ABSENT:
            if unit:
                _tool("systemctl", "disable", "--now", unit)
            path.unlink(missing_ok=True)
        else:
            write_config(path, value.removeprefix(_TEXT))
        if unit:
            _tool("systemctl", "daemon-reload")
            if value != ABSENT:
                _tool("systemctl", "restart", unit)
        if self.path.startswith(_GRUB):
            _tool("update-grub")

    def _unit(self) -> str:
        return self.path.removeprefix(_UNITS) if self.path.startswith(_UNITS) else ""


def content(text: str) -> str:
    """Return the value of a ConfigFile with that text."""
    return _TEXT + text


def write_config(path: Path, text: str) -> None:
    """Write a file of /etc that everyone may read, and its folder. Raises OSError."""
    os.makedirs(path.parent, mode=0o755, exist_ok=True)
    try:
        write_bytes(path, text.encode(), mode=0o644, below=path.parent)
    except LabctlError as error:
        raise OSError(0, error.message) from error


@dataclass(frozen=True, slots=True)
class DomainDefinition:
    """Read and write how libvirt has a domain defined: the XML that its next start takes."""

    kind: ClassVar[str] = "domain"
    uri: str
    domain: str

    @property
    def name(self) -> str:
        return f"domain {self.domain}"

    @property
    def survives_reboot(self) -> bool:
        return True

    def arguments(self) -> dict[str, str]:
        return asdict(self)

    def read(self) -> str:
        words = ("dumpxml", "--inactive", "--security-info", "--domain", self.domain)
        return self._virsh(*words).strip()

    def write(self, value: str) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".xml", encoding="utf-8") as file:
            file.write(value)
            file.flush()
            self._virsh("define", "--file", file.name)

    def _virsh(self, *words: str) -> str:
        try:
            return _tool("virsh", "--connect", self.uri, *words)
        except OSError as error:
            if "failed to get domain" in (error.strerror or ""):
                raise FileNotFoundError(0, f"no domain '{self.domain}' at {self.uri}") from error
            raise


def _tool(*argv: str) -> str:
    """Return what a tool prints. A tunable's failures are the operating system's, as the journal
    knows them: raises OSError."""
    # One of their messages is looked for, so they are not to be translated.
    try:
        return process.run(
            argv, env={"LC_ALL": "C"}, deadline=Deadline.after(_TOOL_S, argv[0])
        ).stdout
    except LabctlError as error:
        raise OSError(0, error.message) from error
