"""List the steps of applying a tuning: edits of a domain, files, commands.

The same steps are shown, written as a shell script and written as Ansible tasks.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

DOMAIN = "@domain@"
DISK = "@disk@"
"""Placeholders in a command for the name of the domain, and the target of the disk, to tune."""

SHELL_DOMAIN = "${domain}"
SHELL_DISK = "${disk}"
"""Likewise in a script: its variables."""


class Machine(StrEnum):
    HOST = "host"
    GUEST = "guest"


class InForce(StrEnum):
    """Time when a step takes effect."""

    AT_ONCE = "at once"
    GUEST_START = "after the next start of the guest (a reboot inside it is not enough)"
    HOST_REBOOT = "after a reboot of the host"
    GUEST_REBOOT = "after a reboot of the guest"


@dataclass(frozen=True, slots=True)
class Done:
    """Detect a step that is done: the output of `argv` contains `text`, as a whole line or not."""

    argv: tuple[str, ...]
    text: str
    whole_line: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Describe a command. `changed`: text in its output if it changed something; "": it always
    does.
    """

    argv: tuple[str, ...]
    changed: str = ""
    unless: Done | None = None

    @property
    def edits_domain(self) -> bool:
        return self.argv[0] == "virt-xml"

    def shell(self, domain: str, disk: str) -> str:
        """Return the command as lines for sh(1)."""
        line = _joined(filled(self.argv, domain, disk))
        if self.unless is None:
            return line
        asked = _joined(filled(self.unless.argv, domain, disk))
        grep = "grep -qxF" if self.unless.whole_line else "grep -qF"
        return f"{asked} | {grep} {quoted(self.unless.text)} ||\n  {line}"


@dataclass(frozen=True, slots=True)
class TextFile:
    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Write a file, if there is one, then run commands. With a file the commands only make its
    content take effect: if the file exists already they do nothing."""

    title: str
    machine: Machine
    in_force: InForce
    file: TextFile | None = None
    commands: tuple[Command, ...] = ()


def backup_path(domain: str, tuning: str) -> str:
    """Return the path of the backup of a domain's XML."""
    return f"/var/backups/{domain}-before-{tuning}.xml"


def filled(argv: Sequence[str], domain: str, disk: str) -> list[str]:
    """Return the command for that domain and disk."""
    return [word.replace(DOMAIN, domain).replace(DISK, disk) for word in argv]


def _joined(argv: Sequence[str]) -> str:
    """Return one `--xml …` per line, because a domain's changes are many."""
    lines = [""]
    for word in argv:
        if word == "--xml" and lines[-1]:
            lines.append(" ")
        lines[-1] = f"{lines[-1]} {quoted(word)}" if lines[-1] else quoted(word)
    return " \\\n".join(lines)


def quoted(word: str) -> str:
    """Return a word for sh(1). In double quotes if it contains a variable of ours or an XPath,
    which has apostrophes; else quoted by shlex."""
    plain = word.replace(SHELL_DOMAIN, "").replace(SHELL_DISK, "")
    harmless = not set(plain.replace("\\'", "'")) & set('"$`\\!\n')
    if harmless and ("'" in plain or plain != word):
        return f'"{word}"'
    return shlex.quote(word)
