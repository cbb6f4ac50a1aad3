"""Version numbers as programs print them, compared number by number."""

from __future__ import annotations

import re


def is_older(found: str, wanted: str) -> bool:
    """Whether version `found` is below `wanted`: "9.0.0" is not below "9.0".

    What follows the dotted numbers is the distribution's and doesn't count ("6.1.0-56-cloud").
    """
    ours, theirs = _numbers(found), _numbers(wanted)
    length = max(len(ours), len(theirs))
    return [*ours, *[0] * (length - len(ours))] < [*theirs, *[0] * (length - len(theirs))]


def is_version(text: str) -> bool:
    """Whether `text` is dotted numbers and nothing else."""
    return re.fullmatch(r"\d+(\.\d+)*", text) is not None


def _numbers(version: str) -> list[int]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return [int(number) for number in leading.group().split(".")] if leading else []
