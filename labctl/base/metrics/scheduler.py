"""Define metrics of the host's scheduler and of the guest's, from traces."""

from __future__ import annotations

from labctl.base.metrics.row import ANY, Metric, Table
from labctl.base.units import Better, Unit

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
            "[what schedstat leaves out](tracing.md#held-against-other-tools), which under "
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
            "out](tracing.md#held-against-other-tools)",
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
        "wakeups_traced",
        Unit.FRACTION,
        Better.NEITHER,
        "share of the workload's wake-ups that the traces cover ([how many were "
        "seen](nested.md#how-many-were-seen)); natively from the host's trace",
    ),
)
