"""Count a trial's hardware events, where the host has a PMU (METHOD rule 12)."""

from __future__ import annotations

import functools
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from labctl.base.errors import BrokenError
from labctl.base.process import DIES_WITH_LABCTL, running
from labctl.base.tuning import Kind
from labctl.collect import host_cpus, perf_stat, perf_stat_probe
from labctl.collect.perf_stat_probe import Countable
from labctl.run.guests.bench import Bench
from labctl.store.trial import TrialFolder

PROBLEM = "perf-stat-problem.txt"
_ATTACH_S = 0.2
_GRACE_S = 5.0


@functools.cache
def countable(kind: str) -> Countable:
    """Tell whether it can be counted; probed once per process: the answer is the host's."""
    return perf_stat_probe.countable(kind)


@functools.cache
def frequency_countable() -> Countable:
    """Tell whether it can be counted; probed once per process: the answer is the host's."""
    return perf_stat_probe.frequency_countable()


class Printed:
    """Hold what perf printed, once it has ended."""

    text = ""


@contextmanager
def pmu_counting(bench: Bench, pid: int, folder: TrialFolder) -> Iterator[None]:
    """Run perf stat on the vCPU threads, natively on the waiting command; or store why it can't.
    Raises BrokenError when perf ends before it is asked to."""
    kind = str(bench.kind)
    can = countable(kind)
    if can.problem is not None:
        folder.write_raw(PROBLEM, can.problem)
        yield
        return
    folder.write_raw_json(perf_stat.LEFT_OUT, dict(can.left_out))
    ids = bench.vcpu_tids if bench.kind is Kind.GUEST else (pid,)
    with perf_attached(perf_stat.command(kind, ids, can.events, can.output)) as printed:
        yield
    folder.write_raw(perf_stat.RAW, printed.text)


@contextmanager
def frequency_counting(bench: Bench, folder: TrialFolder) -> Iterator[None]:
    """Count how fast the trial's CPUs are meanwhile, or store the reason why not in its place.
    Raises BrokenError when perf ends before it is asked to."""
    can = frequency_countable()
    if can.problem is not None:
        folder.write_raw(host_cpus.FREQUENCY_PROBLEM, can.problem)
        yield
        return
    with perf_attached(host_cpus.command(bench.trial_cpus, can.output)) as printed:
        yield
    folder.write_raw(host_cpus.FREQUENCY, printed.text)


@contextmanager
def perf_attached(command: Sequence[str]) -> Iterator[Printed]:
    """Run perf stat beside the block. Raises BrokenError when it ends before it is asked to."""
    printed = Printed()
    with running(
        (*DIES_WITH_LABCTL, *command),
        stderr=subprocess.PIPE,
        env=perf_stat.ENVIRONMENT,
        stop_signal=signal.SIGINT,
    ) as perf:
        # perf says nothing when it has attached; its own start takes a few milliseconds.
        time.sleep(_ATTACH_S)
        yield printed
        # 0: it saw the last of its threads end (natively the command's) before we told it to stop.
        if perf.poll() not in (None, 0):
            raise BrokenError(f"perf stat ended by itself with status {perf.returncode}")
        perf.send_signal(signal.SIGINT)
        try:
            _, counts = perf.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired as error:
            raise BrokenError(f"perf stat did not end within {_GRACE_S:g} s") from error
        printed.text = counts.decode(errors="replace")
