"""Repeat a program with a fixed amount of work until its time is up, and split its output into
runs.

A loop uses only the shell's builtins: nothing is forked between two runs except for files that
metrics are read from, which `cat` prints and `rm` removes. If nothing in the output shows where a
run begins, labctl marks each run; a mark begins with a record separator (ASCII 30), because
programs print none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from labctl.base.errors import BrokenError
from labctl.base.process import MARK

SHELL = "/usr/bin/dash"

_RUN = re.compile(rf"{MARK}run\n")
_FILE = re.compile(rf"{MARK}file ([^\n/]+)\n")
# /proc/uptime counts hundredths of a second, and cannot be set.
_NOW = 'now() { read -r up _ < /proc/uptime; now="${up%.*}${up#*.}"; }'
_FOR_TIME = (
    f'{_NOW}; now; end=$((now + $0)); while "$@" || exit; now; [ "$now" -lt "$end" ]; do :; done'
)
_TIMES = 'left=$0; while [ "$left" -gt 0 ]; do "$@" || exit; left=$((left - 1)); done'
_FILES = (
    'for f in $files; do [ -f "$f" ] || continue; printf \'\\036file %s\\n\' "$f"; '
    'cat "$f"; rm "$f"; done'
)
_EACH = f"printf '\\036run\\n'; printf '\\036run\\n' >&2; \"$@\" || exit; {_FILES}"
_MARKED_FOR_TIME = (
    f"files=$0; {_NOW}; now; end=$((now + $1)); shift; "
    f'while {_EACH}; now; [ "$now" -lt "$end" ]; do :; done'
)
_MARKED_TIMES = (
    f'files=$0; left=$1; shift; while [ "$left" -gt 0 ]; do {_EACH}; left=$((left - 1)); done'
)
# dash runs a trap when the command that it waits for has ended (POSIX, "Signals and Error
# Handling").
_UNTIL_TOLD = f"files=$0; told=; trap 'told=1' TERM; while {_EACH}; [ -z \"$told\" ]; do :; done"
_OWN_WORDS = {_FOR_TIME: 4, _MARKED_FOR_TIME: 5, _UNTIL_TOLD: 4}
"""Loops, and how many words at the start of their argv belong to the loop."""


@dataclass(frozen=True, slots=True)
class Output:
    """Hold the results of one run of a program: its output as text, and its files."""

    stdout: str
    stderr: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)


def for_seconds(
    argv: Sequence[str], seconds: float, marked: Sequence[str] | None
) -> tuple[str, ...]:
    """Run `argv` again and again, at least once, until that time is over; end with the status of a
    run that fails. `marked`: the files of each marked run, globs too; None: no marks."""
    length = str(round(seconds * 100))
    if marked is None:
        return (SHELL, "-c", _FOR_TIME, length, *argv)
    return (SHELL, "-c", _MARKED_FOR_TIME, " ".join(marked), length, *argv)


def until_told(argv: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
    """Run `argv` again and again until the shell gets SIGTERM; its last run then completes. End
    with the status of a run that fails. `files`: those of each run."""
    return (SHELL, "-c", _UNTIL_TOLD, " ".join(files), *argv)


def times(argv: Sequence[str], count: int, marked: Sequence[str] | None) -> tuple[str, ...]:
    """Run `argv` that often."""
    if marked is None:
        return (SHELL, "-c", _TIMES, str(count), *argv)
    return (SHELL, "-c", _MARKED_TIMES, " ".join(marked), str(count), *argv)


def repeated_argv(argv: Sequence[str]) -> tuple[str, ...] | None:
    """Return the argv that a loop repeats; None for a command that is not a loop."""
    if len(argv) > 2 and argv[0] == SHELL and argv[2] in _OWN_WORDS:
        return tuple(argv[_OWN_WORDS[argv[2]] :])
    return None


def runs_of(stdout: str, stderr: str | None) -> list[Output]:
    """Return each marked run's output, in order. `stderr`: None if it was not kept. Raises
    BrokenError for output that is not a loop's."""
    before, *runs = _RUN.split(stdout)
    errors = [""] * len(runs) if stderr is None else _RUN.split(stderr)[1:]
    if before or not runs or len(runs) != len(errors):
        raise BrokenError(
            f"expected a mark before each run's output, got {len(runs)} in its standard "
            f"output and {len(errors)} in its standard error"
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
    """Return each run's output, split by the runs' first line. Raises BrokenError for text before
    the first."""
    starts = [found.start() for found in re.finditer(begins, stdout, re.M)]
    if not starts or stdout[: starts[0]].strip():
        raise BrokenError(f"expected {begins!r} at the start of each run, got {stdout[:80]!r}")
    return [stdout[a:b] for a, b in zip(starts, [*starts[1:], len(stdout)], strict=True)]
