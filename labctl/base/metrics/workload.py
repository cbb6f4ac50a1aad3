"""Define metrics of the workload and of its neighbour."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.base.metrics.row import ANY, Column, Counts, Metric, Page, Zero
from labctl.base.units import CLOSED, LARGEST, OPEN, OPEN_MEAN, Better, Unit

_CLOSED_LOOP = (
    "closed loop: the program's histogram, in which nothing is late that wasn't asked for during "
    "a stall; `{op=read|write|fsync}` where there are several; of `fio-fsync` without a label the "
    "flush's; `{part=irq}` of `timerlat`"
)
_OPEN_LOOP = (
    "the same as `open_latency_mean`, percentiles; of so many real wake-ups as any other takes "
    "([METHOD 16](method.md))"
)

WORKLOAD = (
    Metric(
        "events_per_s",
        Unit.PER_SECOND,
        Better.HIGHER,
        "sysbench",
        counts=Counts.OPERATIONS,
        page=Page.LARGE,
        felt=True,
    ),
    Metric(
        "iops",
        Unit.PER_SECOND,
        Better.HIGHER,
        {"iops iops{op}": "fio; `op` under `randrw`"},
        title="IOPS",
        counts=Counts.OPERATIONS,
        page=Page.LARGE,
        felt=True,
    ),
    Metric(
        "bandwidth",
        Unit.BYTES_PER_SECOND,
        Better.HIGHER,
        {"bandwidth bandwidth{op}": "fio; iperf3 without `op`"},
        felt=True,
    ),
    Metric("messages_per_s", Unit.PER_SECOND, Better.HIGHER, "hackbench", counts=Counts.OPERATIONS),
    Metric(
        "ops_per_s",
        Unit.PER_SECOND,
        Better.HIGHER,
        "perf bench sched pipe: turns; stress-ng: its operations",
        counts=Counts.OPERATIONS,
    ),
    Metric(
        "work_per_s",
        Unit.PER_SECOND,
        Better.HIGHER,
        "a workload's fixed work (`trial.work`) over the measured window",
        title="work per second",
        counts=Counts.OPERATIONS,
        felt=True,
    ),
    Metric(
        "elapsed",
        Unit.SECONDS,
        Better.LOWER,
        "the window by the runner's clock; the mean of its runs where the program is repeated. "
        "Workloads whose file says `times: false` have neither this nor the next three",
        title="elapsed time",
        felt=True,
    ),
    Metric(
        "user_s",
        Unit.SECONDS,
        Better.NEITHER,
        "the workload's CPU time in user mode, by rusage of all that it waited for",
        title="CPU time in user mode",
    ),
    Metric(
        "system_s",
        Unit.SECONDS,
        Better.NEITHER,
        "the same in the kernel",
        title="CPU time in the kernel",
    ),
    Metric(
        "cpu_use",
        Unit.CPUS,
        Better.NEITHER,
        "both, and its servers' CPU time, per second of the window",
        title="CPUs used",
    ),
    Metric(
        "operations",
        Unit.COUNT,
        Better.NEITHER,
        "sysbench's events, fio's requests, iperf3's bytes, messages, turns, stress-ng's "
        "operations",
        counts=Counts.OPERATIONS,
        samples=True,
    ),
    Metric(
        "wakeups",
        Unit.COUNT,
        Better.NEITHER,
        "cyclictest, timerlat",
        counts=Counts.OPERATIONS,
        samples=True,
    ),
    Metric(
        "noise",
        Unit.CPUS,
        Better.LOWER,
        "oslat, osnoise: what kept busy loops from running, 5 µs or more at a time, all CPUs "
        "together",
    ),
    Metric(
        "stalls",
        Unit.COUNT,
        Better.LOWER,
        "oslat, osnoise: how often that was",
        counts=Counts.EVENTS,
    ),
    Metric(
        "round_trips",
        Unit.COUNT,
        Better.NEITHER,
        "sockperf",
        counts=Counts.OPERATIONS,
        samples=True,
    ),
    Metric(
        "round_trips_per_s", Unit.PER_SECOND, Better.HIGHER, "sockperf", counts=Counts.OPERATIONS
    ),
    Metric(
        "retransmits",
        Unit.COUNT,
        Better.LOWER,
        "iperf3: segments that TCP sent again",
        counts=Counts.EVENTS,
    ),
    Metric(
        "periods",
        Unit.COUNT,
        Better.NEITHER,
        "cyclictest, timerlat: wake-ups, and the periods that they were late for and skipped: "
        "Σ (1 + ⌊latency ÷ interval⌋)",
    ),
    Metric(
        "late_periods",
        Unit.FRACTION,
        Better.LOWER,
        "cyclictest, timerlat: share of the periods in which a request would have waited for "
        "longer than one interval: what was skipped ÷ `periods`",
        page=Page.LARGE,
    ),
    Metric(
        OPEN_MEAN,
        Unit.SECONDS,
        Better.LOWER,
        "cyclictest, timerlat: [open loop](decisions/latency-is-open-loop.md), mean over all "
        "periods: a wake-up of latency L and interval I stands for L, L − I, L − 2 I, …",
        title="open-loop mean latency",
        column=Column.OPEN_MEAN,
        page=Page.LARGEST,
    ),
    Metric(
        f"{OPEN}p95",
        Unit.SECONDS,
        Better.LOWER,
        _OPEN_LOOP,
        title="open-loop p95 latency",
        column=Column.OPEN_P95,
        page=Page.LARGEST,
    ),
    Metric(
        f"{OPEN}{ANY}",
        Unit.SECONDS,
        Better.LOWER,
        {f"{OPEN}p50 {OPEN}p99 {OPEN}p999": _OPEN_LOOP},
        title="open-loop {} latency",
        page=Page.LARGE,
    ),
    Metric(
        f"{CLOSED}p95",
        Unit.SECONDS,
        Better.LOWER,
        _CLOSED_LOOP,
        title="p95 latency",
        column=Column.P95,
        page=Page.LARGEST,
        felt=True,
    ),
    Metric(
        f"{CLOSED}{ANY}",
        Unit.SECONDS,
        Better.LOWER,
        {f"{CLOSED}p50 {CLOSED}p99 {CLOSED}p999": _CLOSED_LOOP},
        title="{} latency",
        page=Page.LARGE,
        felt=True,
    ),
    Metric(
        LARGEST,
        Unit.SECONDS,
        Better.LOWER,
        "the program; a maximum grows with the trial's length",
        title="largest latency of all blocks",
        page=Page.LARGE,
        felt=True,
    ),
    Metric(
        "bin_width",
        Unit.FRACTION,
        Better.NEITHER,
        {
            "bin_width{of=latency_…} bin_width{of=open_latency_…}": "width of the percentile's bin "
            "over its middle (of a mean: times the share of the fullest bin); a floor for the "
            "spread of its effects ([METHOD 16](method.md))"
        },
        compared=False,
    ),
    Metric(
        "batch_error",
        Unit.FRACTION,
        Better.NEITHER,
        {
            "batch_error{of=…,batches=8|4}": "standard error of the trial's rate over the rate, by "
            "that many batches of its windows ([METHOD 21](method.md))"
        },
        compared=False,
    ),
    Metric(
        "stall_time",
        Unit.SECONDS,
        Better.LOWER,
        "cyclictest: Σ max(0, latency − interval), all threads together",
        page=Page.LARGE,
        felt=True,
    ),
    Metric(
        "gc_pauses",
        Unit.COUNT,
        Better.NEITHER,
        "a Java VM's unified log: pauses by its garbage collector that ended in the steady part",
        title="pauses by the garbage collector",
        zero=Zero.USUAL,
        counts=Counts.EVENTS,
    ),
    Metric(
        "gc_pause_time",
        Unit.SECONDS,
        Better.LOWER,
        "the same, their sum",
        title="time of pauses by the garbage collector",
        zero=Zero.USUAL,
    ),
    Metric(
        "gc_pause_max",
        Unit.SECONDS,
        Better.LOWER,
        "the same, the longest",
        title="longest pause by the garbage collector",
    ),
    Metric(
        "gc_stalls",
        Unit.COUNT,
        Better.LOWER,
        "the same log: waits of threads for memory that ZGC had yet to free",
        title="allocation stalls",
        zero=Zero.USUAL,
        counts=Counts.EVENTS,
    ),
    Metric(
        "jvm_stopped",
        Unit.SECONDS,
        Better.LOWER,
        "the same log: all safepoints together, the time until all threads stood still in them",
        title="time for which a Java VM stood still",
        zero=Zero.USUAL,
    ),
    Metric(
        "jit_compiled",
        Unit.COUNT,
        Better.LOWER,
        "the same log: methods that its compilers were given in the steady part",
        title="methods compiled",
        zero=Zero.USUAL,
        counts=Counts.EVENTS,
    ),
    Metric(
        "jit_compiled_before",
        Unit.COUNT,
        Better.NEITHER,
        "the same before it, at start-up",
        title="methods compiled at start-up",
        counts=Counts.EVENTS,
    ),
    Metric(
        "jit_discarded",
        Unit.COUNT,
        Better.LOWER,
        "the same log: compiled methods that were made not entrant in the steady part, because "
        "better code took their place or what they assumed held no longer",
        title="compiled methods discarded",
        zero=Zero.USUAL,
        counts=Counts.EVENTS,
    ),
    Metric(
        "duration",
        Unit.SECONDS,
        Better.NEITHER,
        "`runner.json`: CLOCK_MONOTONIC of the machine, fork to wait",
    ),
)

NEIGHBOUR = (
    Metric(
        "neighbour_cpu",
        Unit.CPUS,
        Better.HIGHER,
        {
            "neighbour_cpu": "what all neighbours together got in the measured window, by their "
            "cgroups",
            "neighbour_cpu{workload=…}": "the same of each workload, where several run beside a "
            "trial",
        },
    ),
    Metric(
        "neighbour_ops_per_s",
        Unit.PER_SECOND,
        Better.HIGHER,
        {
            "neighbour_ops_per_s": "that × (operations ÷ CPU seconds over the neighbours' whole "
            "lives)",
            "neighbour_ops_per_s{workload=…}": "the same of each workload",
        },
        page=Page.LARGEST,
    ),
)


# Define metrics of a stream of frames that shares a narrow link.


def _by_phase(name: str, says: str) -> Mapping[str, str]:
    return {
        name: f"game-stream, the middle third of the trial, with the competitor if there is one: "
        f"{says}",
        f"{name}{{phase=alone|after}}": "the same in the third before and the third after it",
    }


STREAM = (
    Metric(
        "stream_bitrate",
        Unit.BITS_PER_SECOND,
        Better.HIGHER,
        _by_phase("stream_bitrate", "what arrived, Ethernet's header included"),
        title="stream's bitrate",
        page=Page.LARGE,
        felt=True,
    ),
    Metric(
        "stream_rtt",
        Unit.SECONDS,
        Better.LOWER,
        _by_phase("stream_rtt", "mean of ten echoes a second; one that is lost has none"),
        title="stream's round trip",
        page=Page.LARGE,
        felt=True,
    ),
    Metric(
        "stream_rtt_p50",
        Unit.SECONDS,
        Better.LOWER,
        _by_phase("stream_rtt_p50", "the same, median"),
        title="stream's p50 round trip",
    ),
    Metric(
        "stream_rtt_p95",
        Unit.SECONDS,
        Better.LOWER,
        _by_phase("stream_rtt_p95", "the same, p95, of 400 echoes or more"),
        title="stream's p95 round trip",
    ),
    Metric(
        "stream_loss",
        Unit.FRACTION,
        Better.LOWER,
        _by_phase("stream_loss", "share of packets that didn't arrive, by their numbers"),
        title="stream's loss",
        felt=True,
    ),
    Metric(
        "stream_frame_rate",
        Unit.PER_SECOND,
        Better.HIGHER,
        _by_phase("stream_frame_rate", "frames of which every packet arrived"),
        title="stream's whole frames",
        page=Page.LARGE,
        felt=True,
    ),
    Metric(
        "stream_late",
        Unit.FRACTION,
        Better.LOWER,
        _by_phase(
            "stream_late",
            "share of whole frames that came more than two frames' time later than the trial's "
            "promptest",
        ),
        title="stream's late frames",
        felt=True,
    ),
    Metric(
        "competitor_bitrate",
        Unit.BITS_PER_SECOND,
        Better.NEITHER,
        "game-stream: what else arrived where the stream does, in the middle third",
        title="competitor's bitrate",
    ),
    Metric(
        "bitrate_difference",
        Unit.FRACTION,
        Better.NEITHER,
        "game-stream, the middle third: (stream's bitrate − competitor's) ÷ the link's",
        title="normalised bitrate difference",
        page=Page.LARGE,
    ),
    Metric(
        "jain_index",
        Unit.FRACTION,
        Better.HIGHER,
        "game-stream, the middle third: (x₁ + x₂)² ÷ 2 (x₁² + x₂²) of the two bitrates: 1 where "
        "they are equal, ½ where one has all",
        title="Jain's index",
        page=Page.LARGE,
    ),
    Metric(
        "stream_response",
        Unit.SECONDS,
        Better.LOWER,
        "game-stream: from the competitor's beginning to the end of the first half second whose "
        "bitrate is within 10 % of the mean of the middle third's second half",
        title="stream's response",
    ),
    Metric(
        "stream_recovery",
        Unit.SECONDS,
        Better.LOWER,
        "game-stream: the same from the competitor's end, in the last third",
        title="stream's recovery",
    ),
)
