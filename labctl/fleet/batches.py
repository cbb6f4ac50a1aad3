"""Split hosts into batches, as Ansible's `serial` does."""

from __future__ import annotations

import re
from collections.abc import Sequence

from labctl.base.errors import UsageError

_SIZE = re.compile(r"([1-9][0-9]*)(%?)")


def batches_of(hosts: Sequence[str], serial: str) -> tuple[tuple[str, ...], ...]:
    """Return the hosts in batches of the sizes that `serial` lists ("1,10%"): numbers of hosts, or
    shares of all of them, of which the last holds for the rest. Raises UsageError."""
    sizes = [_size(word.strip(), len(hosts)) for word in serial.split(",")]
    found: list[tuple[str, ...]] = []
    begin = 0
    while begin < len(hosts):
        end = begin + sizes[min(len(found), len(sizes) - 1)]
        found.append(tuple(hosts[begin:end]))
        begin = end
    return tuple(found)


def _size(word: str, hosts: int) -> int:
    match = _SIZE.fullmatch(word)
    if match is None or (match[2] and int(match[1]) > 100):
        raise UsageError(
            f"--serial: '{word}' is neither a number of hosts nor a share of them",
            hint="Write it as '10%', or as '1,10%' for one host first.",
        )
    return max(1, hosts * int(match[1]) // 100) if match[2] else int(match[1])
