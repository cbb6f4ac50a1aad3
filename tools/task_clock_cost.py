"""Measure what task clocks cost a thread at each of its switches: `python -m
tools.task_clock_cost`.

Runs of `perf bench sched pipe` with and without clocks take turns; compared is the CPU time per
context switch, as throughput hangs on who else is at work.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess

import click

from labctl.collect.collector import ThreadRef
from labctl.collect.threads import task_clock


def us_per_switch(turns: int) -> float:
    """Return CPU time per switch, of two processes that wake each other up so often."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = ["perf", "bench", "sched", "pipe", "--loop", str(turns)]
    subprocess.run(argv, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
    return cpu_s / switches * 1e6


@click.command()
@click.option("--pairs", default=30, show_default=True)
@click.option("--turns", default=100_000, show_default=True)
def main(pairs: int, turns: int) -> None:
    # What this process starts inherits its clocks: one everywhere and one on some CPUs.
    own = ThreadRef(pid=os.getpid(), tid=os.getpid(), role="labctl", index=0)
    some = frozenset(sorted(os.sched_getaffinity(0))[1:])
    costs = []
    for _ in range(pairs):
        bare = us_per_switch(turns)
        with task_clock.counting([own], some):
            costs.append(us_per_switch(turns) - bare)
    low, median, high = statistics.quantiles(costs, n=4)
    click.echo(f"{median:.2f} us a switch (middle half of {pairs} pairs: {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
