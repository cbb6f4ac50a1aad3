"""Notice a program that probably does something else than its user means: it leaves processes
behind, or ignores its duration. Its trials stay valid."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.base.command import CommandResult
from labctl.workloads.workload import Workload

SHORT = 0.5
"""Share of its duration below which a run has probably ignored it."""


def oddities(program: Workload, result: CommandResult, duration_s: float) -> Iterator[str]:
    """Yield a sentence with the remedy for each; the same ones for every run of the program."""
    # Servers leave workers, too.
    if result.left.count and not program.file.serve:
        such = f", such as {result.left.names[0]}" if result.left.names else ""
        yield (
            f"{program.name} left processes running{such}, which labctl ended: keep the program in "
            "the foreground, or start a server with --serve ('serve' in a file)"
        )
    is_short = result.returncode == 0 and result.duration_s < SHORT * duration_s
    if program.file.trial.kind == "duration" and is_short:
        yield (
            f"{program.name} ended in less than half of the {duration_s:g} s that it was told to "
            "run: check the argument with {{ duration }}; without it labctl repeats the program "
            "('kind: repeat' in a file)"
        )
