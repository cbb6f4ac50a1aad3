"""Define metrics of VM exits."""

from __future__ import annotations

from labctl.base.metrics.row import Column, Counts, Metric, Page, Table, Zero
from labctl.base.units import Better, Unit

EXITS = (
    Metric(
        "exits",
        Unit.PER_SECOND,
        Better.LOWER,
        {
            "exits exits{vcpu}": "of all vCPUs and of each. Counted by reason: the reasons' "
            "sum, over `exits_window`. Else KVM's `exits`, through QMP `query-stats`, over "
            "`host_window`. Native: 0 by definition"
        },
        elsewhere={
            Table.REASONS: {
                "exits{reason} exits{reason,vcpu}": "exits of all vCPUs by the kernel's name for "
                "the reason; of several vCPUs, of each as well"
            }
        },
        title="VM exits",
        zero=Zero.NATIVE,
        counts=Counts.EVENTS,
        column=Column.EXITS,
        page=Page.LARGEST,
    ),
    Metric(
        "halt_poll",
        Unit.PER_SECOND,
        Better.NEITHER,
        {"halt_poll{result=success|fail}": "polls of KVM before it puts a halted vCPU to sleep"},
        counts=Counts.EVENTS,
    ),
    Metric(
        "halt_poll_time",
        Unit.CPUS,
        Better.NEITHER,
        {
            "halt_poll_time{result=success|fail}": "what they took: in `host_cpu{thread=vcpu}`, "
            "and no work"
        },
    ),
    Metric(
        "vcpu_cpu_net",
        Unit.CPUS,
        Better.LOWER,
        "`host_cpu{thread=vcpu}` less both polling times",
        title="vCPU time without polling",
    ),
    Metric(
        "kvm_stat",
        Unit.PER_SECOND,
        Better.NEITHER,
        {
            "kvm_stat{name}": "the rest of what KVM counts: `insn_emulation`, `irq_injections`, "
            "`tlb_flush`, `pf_fixed`, `halt_wakeup`, … (arch/x86/kvm/x86.c); those that this "
            "kernel has"
        },
        title="KVM's count",
        counts=Counts.EVENTS,
    ),
)

REASONS = (
    Metric(
        "exit_time",
        Unit.CPUS,
        Better.LOWER,
        {
            "exit_time exit_time{reason} exit_time{vcpu} exit_time{reason,vcpu}": "from exits to "
            "the entries after them, HLT left out. Native: 0 by definition"
        },
        title="time in VM exits",
        zero=Zero.NATIVE,
    ),
    Metric(
        "userspace_exits",
        Unit.PER_SECOND,
        Better.LOWER,
        {
            "userspace_exits userspace_exits{reason}": "returns of KVM_RUN to QEMU. Native: 0 by "
            "definition"
        },
        title="exits to QEMU",
        zero=Zero.NATIVE,
        counts=Counts.EVENTS,
    ),
    Metric(
        "userspace_exits_per_op",
        Unit.PER_OPERATION,
        Better.LOWER,
        {"userspace_exits_per_op userspace_exits_per_op{reason}": "the same ÷ operations"},
        title="exits to QEMU per operation",
    ),
    Metric(
        "exit_time_per_op",
        Unit.SECONDS,
        Better.LOWER,
        {
            "exit_time_per_op exit_time_per_op{reason} exit_time_per_op{vcpu} "
            "exit_time_per_op{reason,vcpu}": "CPU seconds of exits ÷ operations"
        },
        title="time in VM exits per operation",
    ),
    Metric("exits_window", Unit.SECONDS, Better.NEITHER, "how long they were counted"),
    Metric(
        "exits_agreement",
        Unit.FRACTION,
        Better.NEITHER,
        "sum of the reasons ÷ KVM's own total, read just outside of that window",
    ),
)
