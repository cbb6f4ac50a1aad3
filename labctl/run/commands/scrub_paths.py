"""Decide which paths say something of a host: all but those that every Linux system has. Pure."""

from __future__ import annotations

import re
from typing import Final

PATH_FORM: Final = re.compile(
    rb"(?:(?<=://)|(?<![\w/.<~*+-]))/[^\s\"'<>&;,|()\[\]{}\\:*?!$`#/]{1,255}"
    rb"(?:/[^\s\"'<>&;,|()\[\]{}\\:*?!$`#/]{1,255}){1,60}/?"
)
"""Two parts at least: '/s' is a unit, '/machine' a cgroup."""

QUOTED_PATH: Final = re.compile(rb"(['\"])(/[^'\"\n<>]{2,4000})\1")
"""A path in quotes has blanks, too."""

_KEPT = re.compile(
    rb"/(?:usr|bin|sbin|lib|lib32|lib64|libx32|etc|proc|sys|boot|nix/store|machine|redacted"
    rb"|[a-z]+\.(?:slice|scope))(?:/.*)?"
    rb"|/run(?!/user/|/media/|/mount/)(?:/.*)?"
    rb"|/var/lib/labctl(?:/.*)?"
    rb"|/dev/(?:[a-z]+[0-9]*(?:n[0-9]+(?:p[0-9]+)?)?|(?:shm|hugepages|net|cpu|pts|vfio|input|fd)/.*)"
    rb"|/autogroup-[0-9]+(?: nice -?[0-9]+)?"
    rb"|/home/?|/root/?|/",
    re.DOTALL,
)

_SUFFIX = re.compile(
    rb"\.(?:ya?ml|xml|qcow2|raw|img|iso|json|csv|txt|log|sock|html|sh|py|conf|fd)(?=$|[\s'\"])"
)


def is_commonplace(path: bytes) -> bool:
    """Return whether every system may have a file there: its path says nothing of this one."""
    return _KEPT.fullmatch(path) is not None


def suffix(path: bytes) -> bytes:
    """Return its '.qcow2' or the like, by which tools and readers know what it is; b"" for
    others."""
    found = _SUFFIX.search(path, max(0, len(path) - 8))
    return found.group() if found else b""
