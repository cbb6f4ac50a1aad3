"""Tell what labctl's loops of programs with a fixed amount of work repeat."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.workloads import marked, repeated

_LOOPS = {
    marked.for_seconds((), 1, ())[2]: len(marked.for_seconds((), 1, ())),
    marked.until_told((), ())[2]: len(marked.until_told((), ())),
    repeated.for_seconds((), 1)[2]: len(repeated.for_seconds((), 1)),
}
"""Words of each loop, and how many of an argv are its own."""


def repeated_argv(argv: Sequence[str]) -> tuple[str, ...] | None:
    """Return the argv that a loop runs again and again; None of a command that is no loop."""
    if len(argv) > 2 and argv[0] == repeated.SHELL and argv[2] in _LOOPS:
        return tuple(argv[_LOOPS[argv[2]] :])
    return None
