"""Define metrics of the host: CPU, PMU, VM exits, schedulers and threads."""

from __future__ import annotations

from labctl.base.metrics.row import ANY, Column, Counts, Metric, Page, Table, Zero
from labctl.base.units import Better, Unit

# Define metrics per operation, and of the PMU.


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


# Define metrics of VM exits.


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


# Define metrics of the host and of the threads of a trial's machine.


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
        "nothing](tracing.md#differences-from-other-tools), and counts them in `host_cpu`",
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


# Define metrics of the host's scheduler and of the guest's, from traces.


_WAITS = (
    "waits of one vCPU for a CPU: from its wake-up, or from being switched out while runnable, to "
    "the switch-in. Natively of all threads together (`of=workload`)"
)
_GUEST_WAITS = (
    "the same, wait by wait, of all its threads: from wake-up, or from being switched out while "
    "runnable, to switch-in"
)
_LATE = (
    "both traces: of the time of the latest 5 % of the workload's wake-ups, what QEMU's threads "
    "waited for a CPU of the host's, what was spent in VM exits, and what the task waited for "
    "others in its guest ([definitions](nested.md)). Natively `late_queue_share` alone. "
    "Unavailable where too few wake-ups were seen, or where the share isn't known to 10 percentage "
    "points"
)

HOST_SCHEDULER = (
    Metric(
        "sched_delay",
        Unit.FRACTION,
        Better.LOWER,
        {
            "sched_delay{of}": "seconds per second that they waited, all together; from other "
            "events than `run_delay`, and the same but for what waits at the window's edges and "
            "[what schedstat leaves out](tracing.md#differences-from-other-tools), which under "
            "SCHED_FIFO is most of it"
        },
        elsewhere={
            Table.GUEST_SCHEDULER: {
                "sched_delay{of=workload}": "`trace/guest.perf.data`: seconds per second that the "
                "workload's threads, together, were runnable and waited for a CPU of the guest's"
            }
        },
    ),
    Metric(
        f"sched_delay_p{ANY}",
        Unit.SECONDS,
        Better.LOWER,
        {
            "sched_delay_p50{vcpu} sched_delay_p95{vcpu} sched_delay_p99{vcpu}": _WAITS,
        },
        elsewhere={
            Table.GUEST_SCHEDULER: {
                "sched_delay_p50{of=workload} sched_delay_p95{of=workload} "
                "sched_delay_p99{of=workload}": _GUEST_WAITS
            }
        },
    ),
    Metric(
        "sched_delay_max",
        Unit.SECONDS,
        Better.LOWER,
        {"sched_delay_max{vcpu}": _WAITS},
        elsewhere={Table.GUEST_SCHEDULER: {"sched_delay_max{of=workload}": _GUEST_WAITS}},
    ),
    Metric(
        "sched_delays",
        Unit.COUNT,
        Better.NEITHER,
        {"sched_delays{vcpu}": "how many waits that is of"},
        elsewhere={
            Table.GUEST_SCHEDULER: {"sched_delays{of=workload}": "how many waits those are of"}
        },
    ),
    Metric(
        "sched_delays_unseen",
        Unit.COUNT,
        Better.NEITHER,
        {
            "sched_delays_unseen{vcpu}": "how many more there may have been, since events are "
            "missing. With more than a tenth of those beyond a percentile (for `_max`: than 1 in "
            "200 of all) that is unavailable"
        },
        elsewhere={
            Table.GUEST_SCHEDULER: {
                "sched_delays_unseen{of=workload}": "how many more there may have been, since "
                "events are missing: as on the host"
            }
        },
    ),
    Metric(
        "preempted_time",
        Unit.CPUS,
        Better.LOWER,
        {
            "preempted_time{by,of}": "what ran on the CPU that a thread waited for, while it did, "
            "by name. A trial tells of all who ran; a report of the ten names that had most in any "
            "trial of the run, 0 where a trial's trace knows that one had nothing, and of "
            "`others`, the rest: so tunings compare name by name. (A trial with more than a "
            "hundred names, or of a labctl that told of five, has `others` of its own and stays as "
            "it is, and so does one of whose waits more than 5 % are `unknown`.) `by=vcpu`, "
            "`emulator`, `iothread`, `vhost`, `workload` are threads of the same machine, `idle` "
            "is an idle CPU that had yet to see its work, `unknown` what events don't tell; a "
            "thread that is called one of these words is `thread:vcpu`, and `CPU_0` is QEMU's "
            "thread for vCPU 0 of another guest"
        },
        elsewhere={
            Table.GUEST_SCHEDULER: {
                "preempted_time{by=…,of=workload}": "who ran on the vCPU that they waited for; "
                "`workload`: another of its own threads"
            }
        },
    ),
    Metric(
        "preemptions",
        Unit.PER_SECOND,
        Better.LOWER,
        {"preemptions{of}": "how often one was switched out while runnable"},
        elsewhere={
            Table.GUEST_SCHEDULER: {"preemptions{of=workload}": "switched out while runnable"}
        },
    ),
    Metric(
        "migrations",
        Unit.PER_SECOND,
        Better.LOWER,
        {"migrations{of}": "how often one was moved to another CPU"},
        elsewhere={Table.GUEST_SCHEDULER: {"migrations{of=workload}": "moved to another vCPU"}},
    ),
    Metric(
        "cpu_time",
        Unit.CPUS,
        Better.LOWER,
        {
            "cpu_time{thread=vcpu|emulator|iothread|vhost}": "time on a CPU, of those of them that "
            "were switched at all (of vCPUs all must have been); `host_cpu` counts the same from "
            "schedstat, where the kernel leaves out what a hypervisor below this host took "
            "(`host_steal`), which a trace doesn't, and has in it what [`run_delay` leaves "
            "out](tracing.md#differences-from-other-tools)",
            "cpu_time{thread=workload}": "natively: the same of the workload's threads",
        },
        facts={"thread": ("workload",)},
    ),
    Metric(
        "sched_unknown",
        Unit.FRACTION,
        Better.NEITHER,
        {
            "sched_unknown{of}": "seconds per second that nothing is known of, since events are "
            "missing"
        },
        elsewhere={
            Table.GUEST_SCHEDULER: {
                "sched_unknown{of=workload}": "seconds per second of those threads of which the "
                "trace doesn't tell what they did; above 5 % there are no figures of their waits"
            }
        },
    ),
    Metric(
        "lost_events",
        Unit.COUNT,
        Better.NEITHER,
        "events that perf lost. What went on over such a gap is unknown, and never bridged",
        elsewhere={
            Table.GUEST_SCHEDULER: {
                "lost_events{of=guest}": "events that perf in the guest lost; no interval across "
                "them counts"
            }
        },
    ),
)

GUEST_SCHEDULER = (
    Metric(
        "clock_error",
        Unit.SECONDS,
        Better.NEITHER,
        "`trace/clocks.json`: the most that the guest's times may be off when they are put on the "
        "host's clock",
    ),
    Metric("late_host_share", Unit.FRACTION, Better.NEITHER, _LATE),
    Metric("late_exit_share", Unit.FRACTION, Better.NEITHER, _LATE),
    Metric("late_queue_share", Unit.FRACTION, Better.NEITHER, _LATE),
    Metric(
        "vcpu_blocked_max",
        Unit.SECONDS,
        Better.NEITHER,
        "both traces: the longest time seen that a vCPU's thread slept in the host while its guest "
        "had a task on it ([blocked](nested.md#suspects)); 0 where none was 1 ms",
        zero=Zero.USUAL,
    ),
    Metric(
        "wakeups_traced",
        Unit.FRACTION,
        Better.NEITHER,
        "share of the workload's wake-ups that the traces cover ([how many were "
        "seen](nested.md#coverage)); natively from the host's trace",
    ),
)
