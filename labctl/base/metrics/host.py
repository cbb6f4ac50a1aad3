"""Define metrics of the host and of the threads of a trial's machine."""

from __future__ import annotations

from labctl.base.metrics.row import Metric, Page, Table, Zero
from labctl.base.units import Better, Unit

HOST = (
    Metric(
        "host_cpu",
        Unit.CPUS,
        Better.LOWER,
        {
            "host_cpu{thread=vcpu|emulator|iothread|vhost}": "schedstat of each thread, after "
            "minus before",
            "host_cpu{thread=workload}": "natively: rusage of the workload's processes over "
            "`duration`",
            "host_cpu{thread=neighbour|peer|labctl}": "schedstat; `peer`: the server that a "
            "workload talks to; `labctl`: with perf and bpftrace, which record for it",
            "host_cpu{thread=other}": "`host_busy` less what the threads above used *on the "
            "trial's CPUs*: what others used there. A little below 0 where no others ran, as idle "
            "time is told in ticks",
        },
        title="host CPU",
        facts={"thread": ("neighbour", "peer", "labctl", "other")},
        zero=Zero.USUAL,
        page=Page.LARGE,
    ),
    Metric(
        "host_busy",
        Unit.CPUS,
        Better.NEITHER,
        "CPU time of the trial's CPUs that isn't idle",
        title="busy on the trial's CPUs",
    ),
    Metric("host_window", Unit.SECONDS, Better.NEITHER, "time between the host's two snapshots"),
    Metric(
        "run_delay",
        Unit.FRACTION,
        Better.LOWER,
        "seconds per second that the vCPU threads, together, were runnable and waited for a CPU, "
        "as schedstat has it: of waits that end by preempting whoever ran, as those under "
        "SCHED_FIFO nearly all do, [the kernel counts next to "
        "nothing](tracing.md#held-against-other-tools), and counts them in `host_cpu`",
        zero=Zero.USUAL,
        page=Page.LARGE,
    ),
    Metric(
        "ctx_switches",
        Unit.PER_SECOND,
        Better.LOWER,
        {
            "ctx_switches{of=vcpu,kind=voluntary|involuntary}": "/proc/PID/task/TID/status",
            "ctx_switches{of=workload,kind=voluntary|involuntary}": "`runner.json`: rusage of the "
            "workload's processes",
        },
        elsewhere={
            Table.GUEST_SCHEDULER: {
                "ctx_switches{of=guest}": "switches of all vCPUs, by the guest's scheduler"
            }
        },
        title="context switches",
        zero=Zero.USUAL,
    ),
    Metric(
        "page_faults",
        Unit.PER_SECOND,
        Better.LOWER,
        {
            "page_faults{of=vcpu,kind=minor|major}": "/proc/PID/task/TID/stat: host memory that a "
            "vCPU touched first. What KVM had to map beside is `kvm_stat{name=pf_fixed}`"
        },
        zero=Zero.USUAL,
    ),
    Metric(
        "sibling_cpu",
        Unit.CPUS,
        Better.NEITHER,
        "CPU time that wasn't idle on the hardware threads that share a core with the trial's CPUs "
        "and are none of them. Unavailable without SMT, or where all of them are the trial's",
        title="CPU on sibling threads",
    ),
    Metric(
        "cpu_frequency",
        Unit.HERTZ,
        Better.NEITHER,
        "mean over the trial's CPUs while they weren't idle: APERF ÷ MPERF × the TSC's rate, by "
        "perf's `msr` events. Unavailable where the kernel has none",
        title="CPU frequency",
    ),
    Metric(
        "cpu_latency_limit",
        Unit.SECONDS,
        Better.NEITHER,
        "limit that a process sets on idle CPUs' wake-up (`/dev/cpu_dma_latency`). "
        "Unavailable without such a limit: there is no such number then",
        title="limit on idle CPUs' latency",
        zero=Zero.USUAL,
    ),
    Metric(
        "host_steal",
        Unit.FRACTION,
        Better.LOWER,
        "share of the host's CPU time that a hypervisor below it took; 0 on bare metal",
    ),
    Metric(
        "steal",
        Unit.FRACTION,
        Better.LOWER,
        "the guest's /proc/stat, under KVM only. KVM fills it from the run delay: it is not "
        "independent evidence",
        zero=Zero.USUAL,
    ),
)
