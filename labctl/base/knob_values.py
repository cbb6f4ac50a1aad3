"""Define what each knob of a host takes: one table for setting it here and for reading it from a
run, of which scripts and files are made for whoever rolls a tuning out."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

HOUSEKEEPING = "housekeeping"
"""The value of a knob that keeps something off the isolated CPUs."""

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Values:
    """Hold the values that a knob takes. `text`: in words, for errors. `example`: one of them, ""
    where none is asked for."""

    text: str
    accepts: Callable[[str], bool]
    example: str = ""


def one_of(*words: str) -> Values:
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    return Values(listed, lambda value: value in words, words[0])


def number(low: int, high: int, *words: str) -> Values:
    """Return a whole number in a range, or one of `words`."""
    said = "".join(f"'{word}', or " for word in words)
    return Values(
        f"{said}a number from {low} to {high}",
        lambda value: value in words or _is_between(value, low, high),
        str(max(low, 0)),
    )


def named(pattern: str, text: str, example: str = "") -> Values:
    """Return a name, all of which the pattern describes."""
    name = re.compile(pattern, re.ASCII)
    return Values(text, lambda value: name.fullmatch(value) is not None, example)


@dataclass(frozen=True, slots=True)
class HostProgram:
    """Describe a program of the host's that runs while a tuning is in force. `check`: the command
    that succeeds while it does what it is for. Both begin with the path of a file."""

    command: tuple[str, ...]
    check: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> HostProgram:
        """Return what a knob's value says. Raises ValueError."""
        given = json.loads(text)
        if not isinstance(given, dict) or given.keys() != {"command", "check"}:
            raise ValueError("it has the keys 'command' and 'check'")
        parts = []
        for key in ("command", "check"):
            argv = shlex.split(given[key]) if isinstance(given[key], str) else []
            if not argv or not argv[0].startswith("/"):
                raise ValueError(f"'{key}' is a command that begins with the path of a file")
            parts.append(tuple(argv))
        return cls(*parts)


def _is_program(text: str) -> bool:
    try:
        HostProgram.of(text)
    except ValueError:
        return False
    return True


KNOB_VALUES: Mapping[str, Values] = {
    "smt": one_of("on", "off"),
    "hugepages-1G": number(0, 65536),
    "hugepages-2M": number(0, 32 * _MIB),
    "tuned": named(
        r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}( [A-Za-z0-9][A-Za-z0-9_.-]{0,99}){0,9}",
        "the name of a profile ('tuned-adm list')",
        "virtual-host",
    ),
    "governor": one_of(
        *("performance", "powersave", "schedutil", "ondemand", "conservative", "userspace")
    ),
    "c-states": number(0, 1_000_000, "all"),
    "thp": one_of("always", "madvise", "never"),
    "thp-defrag": one_of("always", "defer", "defer+madvise", "madvise", "never"),
    "ksm": one_of("0", "1", "2"),
    "swappiness": number(0, 200),
    "numa-balancing": one_of("0", "1", "2"),
    "halt-poll-ns": number(0, 10_000_000),
    "rt-runtime-us": number(-1, 1_000_000),
    "sched-autogroup": one_of("0", "1"),
    "timer-migration": one_of("0", "1"),
    "watchdog": one_of("0", "1"),
    "workqueues": one_of(HOUSEKEEPING),
    "irq-affinity": one_of(HOUSEKEEPING),
    "cpu-dma-latency": number(0, 1_000_000),
    "program": Values(
        "'command' and 'check', each a command that begins with the path of a file",
        _is_program,
        '{"command": "/bin/true", "check": "/bin/true"}',
    ),
}
"""Values by a knob's name in tunings."""

KERNEL_WORD = named(
    r"[A-Za-z0-9_.-]{1,100}(=[A-Za-z0-9_.,:=+@/%-]{0,1000})?",
    "a word of the kernel's command line, without quotes, blanks and '$'",
)
"""A shell reads /etc/default/grub.d, so that no other characters may stand there."""

ELEVATOR = named(r"[a-z0-9][a-z0-9_-]{0,30}", "the name of an I/O scheduler")
SYSFS_PATH = named(
    r"/sys(/(?!\.\.?(/|$))[A-Za-z0-9_.:*-]{1,100}){1,20}", "a path below /sys without '..'"
)
SYSFS_VALUE = named(r"[A-Za-z0-9_+.,:-]{1,200}", "letters, digits and _+.,:-")
DISK = named(r"[a-z][a-z0-9]{0,15}", "a disk's target, such as vda")


def _is_between(value: str, low: int, high: int) -> bool:
    return bool(re.fullmatch(r"-?[0-9]{1,18}", value)) and low <= int(value) <= high
