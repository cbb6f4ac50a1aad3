"""Compare version numbers as programs print them, number by number."""

from __future__ import annotations

import re


def is_older(found: str, wanted: str) -> bool:
    """Return whether version `found` is below `wanted`: "9.0.0" is not below "9.0".

    What follows the dotted numbers is the distribution's and doesn't count ("6.1.0-56-cloud").
    """
    ours, theirs = _numbers(found), _numbers(wanted)
    length = max(len(ours), len(theirs))
    return [*ours, *[0] * (length - len(ours))] < [*theirs, *[0] * (length - len(theirs))]


def upstream_release(release: str, version: str, signature: str = "") -> str:
    """Return the kernel.org release that a kernel is made of; `release` where nothing else is
    known.

    `release`, `version`: as uname(2) has them. Debian numbers all of a series "6.1.0-N" and has
    "... Debian 6.1.176-1 (2026-11-01)" for a version. `signature`: what Ubuntu's has in
    /proc/version_signature, "Ubuntu 5.15.0-91.101-generic 5.15.131".
    """
    found = re.search(r"\bDebian (\d+\.\d+\.\d+)", version) or re.match(
        r"Ubuntu \S+ (\d+\.\d+\.\d+)\s*$", signature
    )
    return found[1] if found else release


def is_version(text: str) -> bool:
    """Return whether `text` is dotted numbers and nothing else."""
    return re.fullmatch(r"\d+(\.\d+)*", text) is not None


def _numbers(version: str) -> list[int]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return [int(number) for number in leading.group().split(".")] if leading else []
