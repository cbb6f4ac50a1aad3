"""Repeat a program with a fixed amount of work, each run's output marked, and take that apart
again.

The loop is a shell's own words: nothing is forked between two runs but for files that metrics are
read from, which `cat` prints and `rm` removes. A record separator (ASCII 30) begins each mark,
since programs print none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from labctl.base.errors import BrokenError
from labctl.workloads.repeated import SHELL

_MARK = "\x1e"
_RUN = re.compile(rf"{_MARK}run\n")
_FILE = re.compile(rf"{_MARK}file ([^\n/]+)\n")
_FILES = (
    'for f in $files; do [ -f "$f" ] || continue; printf \'\\036file %s\\n\' "$f"; '
    'cat "$f"; rm "$f"; done'
)
_EACH = f"printf '\\036run\\n'; printf '\\036run\\n' >&2; \"$@\" || exit; {_FILES}"
# /proc/uptime counts hundredths of a second, and nobody can set it.
_NOW = 'now() { read -r up _ < /proc/uptime; now="${up%.*}${up#*.}"; }'
_FOR_TIME = (
    f"files=$0; {_NOW}; now; end=$((now + $1)); shift; "
    f'while {_EACH}; now; [ "$now" -lt "$end" ]; do :; done'
)
# dash runs a trap when the command that it waits for has ended (POSIX, "Signals and Error
# Handling").
_UNTIL_TOLD = f"files=$0; told=; trap 'told=1' TERM; while {_EACH}; [ -z \"$told\" ]; do :; done"
_TIMES = f'files=$0; left=$1; shift; while [ "$left" -gt 0 ]; do {_EACH}; left=$((left - 1)); done'


@dataclass(frozen=True, slots=True)
class Output:
    """Hold what one run of a program left: its output as text, and its files."""

    stdout: str
    stderr: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)


def for_seconds(argv: Sequence[str], seconds: float, files: Sequence[str]) -> tuple[str, ...]:
    """Run `argv` again and again, at least once, until that long is over; end with the status of a
    run that fails. `files`: those that each run leaves, globs too."""
    return (SHELL, "-c", _FOR_TIME, " ".join(files), str(round(seconds * 100)), *argv)


def until_told(argv: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
    """Run `argv` again and again until SIGTERM to the shell itself, whose last run then still comes
    to its end; end with the status of a run that fails."""
    return (SHELL, "-c", _UNTIL_TOLD, " ".join(files), *argv)


def times(argv: Sequence[str], count: int, files: Sequence[str]) -> tuple[str, ...]:
    """Run `argv` that often."""
    return (SHELL, "-c", _TIMES, " ".join(files), str(count), *argv)


def runs_of(stdout: str, stderr: str | None) -> list[Output]:
    """Return each run's output, in order. `stderr`: None where it wasn't kept. Raises BrokenError
    for what the loop didn't print."""
    before, *runs = _RUN.split(stdout)
    errors = [""] * len(runs) if stderr is None else _RUN.split(stderr)[1:]
    if before or not runs or len(runs) != len(errors):
        raise BrokenError(
            f"expected a mark before each run's output, found {len(runs)} in its standard output "
            f"and {len(errors)} in its standard error"
        )
    return [_of_run(out, err) for out, err in zip(runs, errors, strict=True)]


def _of_run(stdout: str, stderr: str) -> Output:
    printed, *parts = _FILE.split(stdout)
    names, texts = parts[::2], parts[1::2]
    return Output(
        stdout=printed,
        stderr=stderr,
        files={name: text.encode() for name, text in zip(names, texts, strict=True)},
    )


def runs_that_begin(begins: str, stdout: str) -> list[str]:
    """Return each run's output by how it begins. Raises BrokenError for what comes before the
    first."""
    starts = [found.start() for found in re.finditer(begins, stdout, re.M)]
    if not starts or stdout[: starts[0]].strip():
        raise BrokenError(f"expected {begins!r} at the start of each run, found {stdout[:80]!r}")
    return [stdout[a:b] for a, b in zip(starts, [*starts[1:], len(stdout)], strict=True)]
