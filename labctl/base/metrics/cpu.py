"""Define metrics per operation, and of the PMU."""

from __future__ import annotations

from labctl.base.metrics.row import Column, Metric, Page, Table
from labctl.base.units import Better, Unit

_MISSES = "misses ÷ operations"
_COUNTED = "of user code, counted as `user_cycles` is"
_MPKI = "misses ÷ user instructions × 1000"
_SHARE = "misses ÷ loads that reached the cache, ÷ branches"

PER_OPERATION = (
    Metric(
        "ops_per_cpu_s",
        Unit.OPERATIONS_PER_CPU_SECOND,
        Better.HIGHER,
        "operations ÷ CPU seconds of vCPU, emulator, iothread and vhost threads; natively of the "
        "workload",
        title="operations per host CPU-second",
        page=Page.LARGEST,
    ),
    Metric(
        "exits_per_op",
        Unit.PER_OPERATION,
        Better.LOWER,
        {"exits_per_op exits_per_op{vcpu}": "VM exits ÷ operations, those of each vCPU too"},
        elsewhere={
            Table.REASONS: {
                "exits_per_op{reason} exits_per_op{reason,vcpu}": "`exits{…}` ÷ operations"
            }
        },
        title="VM exits per operation",
        column=Column.EXITS,
        page=Page.LARGEST,
    ),
    Metric(
        "cycles_per_op",
        Unit.PER_OPERATION,
        Better.LOWER,
        "user cycles ÷ operations; stands beside IPC, which spinning raises",
    ),
    Metric(
        "llc_misses_per_op",
        Unit.PER_OPERATION,
        Better.LOWER,
        {"llc_misses_per_op{event}": _MISSES},
        title="LLC misses per operation",
    ),
    Metric(
        "branch_misses_per_op",
        Unit.PER_OPERATION,
        Better.LOWER,
        {"branch_misses_per_op{event}": _MISSES},
        title="branch misses per operation",
    ),
)

CPU = (
    Metric(
        "ipc",
        Unit.INSTRUCTIONS_PER_CYCLE,
        Better.HIGHER,
        {
            "ipc{source=pmu}": "user instructions ÷ user cycles: `:uG` events on the vCPU threads, "
            "natively `:u` on the workload's processes",
            "ipc{level=kernel,source=pmu}": "the same of the kernel (`:kG`, `:k`)",
            "ipc{source=calibrated}": "see below",
        },
        title="IPC",
        facts={"level": ("kernel",)},
        column=Column.IPC,
        page=Page.LARGEST,
    ),
    Metric("user_cycles", Unit.COUNT, Better.NEITHER, "user code's, as of `ipc{source=pmu}`"),
    Metric(
        "host_share",
        Unit.FRACTION,
        Better.LOWER,
        "of the vCPU threads' cycles, what QEMU and KVM spent: H / (G + H)",
    ),
    Metric(
        "llc_misses",
        Unit.COUNT,
        Better.NEITHER,
        {"llc_misses{event}": _COUNTED},
        title="LLC misses",
    ),
    Metric("branch_misses", Unit.COUNT, Better.NEITHER, {"branch_misses{event}": _COUNTED}),
    Metric(
        "llc_mpki",
        Unit.PER_1000_INSTRUCTIONS,
        Better.LOWER,
        {"llc_mpki{event}": _MPKI},
        title="LLC misses per 1000 instructions",
    ),
    Metric(
        "branch_mpki",
        Unit.PER_1000_INSTRUCTIONS,
        Better.LOWER,
        {"branch_mpki{event}": _MPKI},
        title="branch misses per 1000 instructions",
    ),
    Metric(
        "llc_miss_share",
        Unit.FRACTION,
        Better.LOWER,
        {"llc_miss_share{event}": _SHARE},
        title="LLC misses of all loads",
    ),
    Metric(
        "branch_miss_share",
        Unit.FRACTION,
        Better.LOWER,
        {"branch_miss_share{event}": _SHARE},
        title="branch misses of all branches",
    ),
    Metric(
        "stalled_cycles",
        Unit.FRACTION,
        Better.LOWER,
        {
            "stalled_cycles{where=frontend|backend}": "share of the user cycles in which the PMU "
            "saw that part of the core wait"
        },
    ),
)
