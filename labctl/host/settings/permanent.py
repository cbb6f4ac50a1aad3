"""Read and write settings that survive a reboot, as tunables: files of /etc, and libvirt
domains."""

from __future__ import annotations

import base64
import errno
import os
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from labctl.base import process
from labctl.base.errors import LabctlError
from labctl.base.process import Deadline
from labctl.host.settings.tunables import ABSENT, PathTunable
from labctl.store.jsonfile import write_bytes

_TOOL_S = 120.0
"""Seconds for a tool: update-grub searches every disk for other systems."""

_GRUB = "/etc/default/grub.d/"


@dataclass(frozen=True, slots=True)
class ConfigFile(PathTunable):
    """Read and write a file of /etc: "absent", or its mode, owner, group and content
    ("0644:0:0:text:…", with "base64:" for content that is not UTF-8). After a change to a file of
    GRUB's, its menu is generated anew."""

    kind: ClassVar[str] = "config-file"

    @property
    def is_told(self) -> bool:
        """Return whether a tool must read the file to put it in force. Then the file is written
        even if it has its value already, because the tool may have failed before."""
        return self.path.startswith(_GRUB)

    def read(self) -> str:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return ABSENT
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OSError(errno.ELOOP, "it is a link", self.path) from error
            raise
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            data = file.read()
        mode = f"{stat.S_IMODE(found.st_mode):04o}:{found.st_uid}:{found.st_gid}:"
        try:
            return f"{mode}text:{data.decode()}"
        except UnicodeDecodeError:
            return f"{mode}base64:{base64.b64encode(data).decode()}"

    def write(self, value: str) -> None:
        path = Path(self.path)
        if value == ABSENT:
            path.unlink(missing_ok=True)
        else:
            mode, uid, gid, kind, content = value.split(":", 4)
            data = content.encode() if kind == "text" else base64.b64decode(content)
            _write(path, data, int(mode, 8))
            os.chown(path, int(uid), int(gid))
        if self.is_told:
            _tool("update-grub")


def content(text: str) -> str:
    """Return the value of a ConfigFile with that text, owned by root and readable by everyone."""
    return f"0644:0:0:text:{text}"


def write_config(path: Path, text: str) -> None:
    """Write a file of /etc that everyone can read, and its folder. Raises OSError."""
    _write(path, text.encode(), 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    os.makedirs(path.parent, mode=0o755, exist_ok=True)
    try:
        write_bytes(path, data, mode=mode, below=path.parent)
    except LabctlError as error:
        raise OSError(0, error.message) from error


@dataclass(frozen=True, slots=True)
class DomainDefinition:
    """Read and write libvirt's persistent definition of a domain: the XML for its next start."""

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
    """Return the output of a tool. Raises OSError if it fails, as the journal expects of a
    tunable."""
    # The code looks for one of their messages, so they must not be translated.
    try:
        return process.run(
            argv, env={"LC_ALL": "C"}, deadline=Deadline.after(_TOOL_S, argv[0])
        ).stdout
    except LabctlError as error:
        raise OSError(0, error.message) from error
