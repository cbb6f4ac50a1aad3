"""Register the workloads by the name that a study's `program` has."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.base.errors import UsageError
from labctl.base.yamlfile import nearest
from labctl.workloads.cyclictest import CYCLICTEST
from labctl.workloads.fio_fsync import FIO_FSYNC
from labctl.workloads.fio_random import FIO_RANDOM
from labctl.workloads.hackbench import HACKBENCH
from labctl.workloads.iperf3 import IPERF3
from labctl.workloads.oslat import OSLAT
from labctl.workloads.osnoise import OSNOISE
from labctl.workloads.perf_sched_pipe import PERF_SCHED_PIPE
from labctl.workloads.random_access import RANDOM_ACCESS
from labctl.workloads.sockperf import SOCKPERF
from labctl.workloads.stress_ng import STRESS_NG_FORK, STRESS_NG_MMAP
from labctl.workloads.sysbench_cpu import SYSBENCH_CPU
from labctl.workloads.sysbench_memory import SYSBENCH_MEMORY
from labctl.workloads.timerlat import TIMERLAT
from labctl.workloads.workload import Workload


def checkers() -> Mapping[str, Workload]:
    """Return every workload by its name: what a study's programs are checked against."""
    known: tuple[Workload, ...] = (
        SYSBENCH_CPU,
        SYSBENCH_MEMORY,
        RANDOM_ACCESS,
        STRESS_NG_FORK,
        STRESS_NG_MMAP,
        FIO_RANDOM,
        FIO_FSYNC,
        CYCLICTEST,
        OSLAT,
        TIMERLAT,
        OSNOISE,
        HACKBENCH,
        PERF_SCHED_PIPE,
        SOCKPERF,
        IPERF3,
    )
    return {found.name: found for found in known}


def workload(name: str) -> Workload:
    """Return the workload of that name; raises UsageError with the nearest one."""
    known = checkers()
    if name not in known:
        raise UsageError(f"there is no workload '{name}'", hint=nearest(name, known))
    return known[name]
