"""Check whether this host can count and trace: PMU, perf, tracefs, debugfs."""

from __future__ import annotations

from labctl.host.doctor.check import Check, Result, Scope, fine, unknown, warn
from labctl.host.doctor.reader import Reader
from labctl.host.settings.tunables import selected

GROUP = "measuring"
_TRACEFS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_FTRACE = "/proc/sys/kernel/ftrace_enabled"


def pmu(reader: Reader, scope: Scope) -> Result:
    argv = ["perf", "stat", "-x,", "-e", "instructions", "true"]
    done = reader.run(argv)
    if done is None:
        return warn("perf is not installed", "labctl setup")
    # "value,unit,event,…" (perf-stat(1), "CSV FORMAT").
    lines = [line.split(",") for line in done.text.splitlines()]
    counts = [fields[0] for fields in lines if len(fields) > 2 and "instructions" in fields[2]]
    if not counts:
        return unknown(f"perf printed: {_last_line(done.text)}", " ".join(argv))
    if counts[0].isdecimal():
        return fine("instructions are counted", True)
    return warn(
        f"perf counts no instructions: {counts[0]}",
        "Ask the operator of the hypervisor for a virtual PMU."
        if "hypervisor" in (reader.flags() or ())
        else "Check whether the kernel found a PMU: dmesg | grep -i 'performance events'",
        False,
    )


def paranoid(reader: Reader, scope: Scope) -> Result:
    level = reader.number("/proc/sys/kernel/perf_event_paranoid")
    if level is None:
        return warn("the kernel has no perf events", "Boot a kernel with CONFIG_PERF_EVENTS=y.")
    if reader.is_root() or level < 0:
        return fine(f"{level}, which does not apply to root", level)
    return warn(
        f"{level}: without root, perf sees only one's own processes (below 0: everything)",
        "sysctl -w kernel.perf_event_paranoid=-1",
        level,
    )


def tracefs(reader: Reader, scope: Scope) -> Result:
    mounted = [folder for folder in _TRACEFS if reader.exists(f"{folder}/events")]
    if mounted:
        sched = reader.exists(f"{mounted[0]}/events/sched/sched_switch")
        value = {"folder": mounted[0], "sched_events": sched}
        if sched:
            return fine(f"mounted at {mounted[0]}, with the scheduler's events", value)
        return warn(
            f"mounted at {mounted[0]}, without events of the scheduler that can be read",
            "Run labctl as root, on a kernel with CONFIG_SCHED_TRACER or CONFIG_FTRACE.",
            value,
        )
    if "tracefs" not in (reader.text("/proc/filesystems") or "").split():
        return warn("the kernel has no tracefs", "Boot a kernel with CONFIG_TRACING=y.")
    return warn("not mounted", "mount -t tracefs tracefs /sys/kernel/tracing")


def ftrace(reader: Reader, scope: Scope) -> Result:
    access = reader.access(_FTRACE)
    if access is None:
        return warn(
            f'no {_FTRACE}: trace-cmd says "Can\'t enable ftrace"',
            "Record with perf: perf record -a -e sched:sched_switch -- sleep 1",
            None,
        )
    if not access.mode & 0o200:
        return warn(
            f'{_FTRACE} is read-only: trace-cmd says "Can\'t enable ftrace"',
            "Record with perf: perf record -a -e sched:sched_switch -- sleep 1",
            False,
        )
    return unknown(
        f"its mode is {access.mode:04o}, but some kernels refuse the write anyway; only a "
        "write shows it",
        f"cat {_FTRACE} | tee {_FTRACE}  # writes the current value; check whether it fails",
    )


def debugfs(reader: Reader, scope: Scope) -> Result:
    lockdown = selected(reader.text("/sys/kernel/security/lockdown") or "")
    if lockdown not in ("", "none"):
        return warn(
            f"the kernel is locked down ({lockdown}): debugfs can't be read",
            "Use tracefs and query-stats; lockdown comes with Secure Boot or 'lockdown='.",
            lockdown,
        )
    if reader.names("/sys/kernel/debug"):
        return fine("mounted, and the kernel is not locked down", "none")
    if "debugfs" not in (reader.text("/proc/filesystems") or "").split():
        return warn("the kernel has no debugfs", "Boot a kernel with CONFIG_DEBUG_FS=y.")
    return warn("not mounted or not readable", "mount -t debugfs debugfs /sys/kernel/debug")


def bpf(reader: Reader, scope: Scope) -> Result:
    argv = ["bpftrace", "-e", "BEGIN { exit(); }"]
    done = reader.run(argv)
    if done is None:
        return warn("bpftrace is not installed", "labctl setup")
    if done.returncode == 0:
        return fine("a BPF program can be loaded", True)
    return warn(
        f"bpftrace printed: {_last_line(done.text)}",
        "Run labctl as root, on a kernel with CONFIG_BPF_SYSCALL that is not locked down.",
        False,
    )


def watchdog(reader: Reader, scope: Scope) -> Result:
    nmi = reader.number("/proc/sys/kernel/nmi_watchdog")
    if nmi == 1:
        return warn("on: it takes one counter of each CPU", "sysctl -w kernel.nmi_watchdog=0", 1)
    return fine("off" if nmi == 0 else "the kernel has none", nmi)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "nothing"


CHECKS = (
    Check(
        "pmu",
        GROUP,
        "Without counters IPC is calibrated, which is the throughput in another unit, and cache "
        "misses are unavailable.",
        pmu,
    ),
    Check("perf-paranoid", GROUP, "It limits what perf shows to each user.", paranoid),
    Check(
        "tracefs",
        GROUP,
        "perf and trace-cmd read the scheduler's and KVM's events through it. Record them with "
        "'perf record -a' and a filter: 'perf -t' misses switch-ins.",
        tracefs,
    ),
    Check(
        "ftrace",
        GROUP,
        "If this is not writable, trace-cmd refuses to record; perf does not need it.",
        ftrace,
    ),
    Check(
        "bpf",
        GROUP,
        "VM exits by reason are counted by BPF in the kernel. Without it perf records each one, "
        "which slows the guest more.",
        bpf,
    ),
    Check("debugfs", GROUP, "It has statistics of KVM and of the scheduler.", debugfs),
    Check(
        "nmi-watchdog",
        GROUP,
        "It uses a counter, so perf may multiplex, which makes IPC unavailable.",
        watchdog,
    ),
)
