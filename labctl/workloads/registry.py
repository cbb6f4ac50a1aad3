"""The workloads that labctl knows, by the name that a study's `program` has."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.base.errors import UsageError
from labctl.base.yamlfile import nearest
from labctl.workloads.cyclictest import CYCLICTEST
from labctl.workloads.fio_random import FIO_RANDOM
from labctl.workloads.iperf3 import IPERF3
from labctl.workloads.model import Workload
from labctl.workloads.sockperf import SOCKPERF
from labctl.workloads.sysbench_cpu import SYSBENCH_CPU
from labctl.workloads.sysbench_memory import SYSBENCH_MEMORY


def checkers() -> Mapping[str, Workload]:
    """Every workload by its name: what a study's programs are checked against."""
    known: tuple[Workload, ...] = (
        SYSBENCH_CPU,
        SYSBENCH_MEMORY,
        FIO_RANDOM,
        CYCLICTEST,
        SOCKPERF,
        IPERF3,
    )
    return {found.name: found for found in known}


def workload(name: str) -> Workload:
    """The workload of that name; raises UsageError with the nearest one."""
    known = checkers()
    if name not in known:
        raise UsageError(f"there is no workload '{name}'", hint=nearest(name, known))
    return known[name]
