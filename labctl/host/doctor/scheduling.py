"""Check how the host's scheduler shares CPUs: cgroups, real-time policies, autogroups."""

from __future__ import annotations

from labctl.base.errors import BrokenError
from labctl.base.tuning import Tuning
from labctl.host import cgroups
from labctl.host.doctor.check import Check, Result, Scope, block, fine, some, unknown, warn
from labctl.host.doctor.reader import Reader
from labctl.host.topology import read_rt_runtime_us

GROUP = "scheduling"
_KERNEL = "/proc/sys/kernel"
_RT_PERIOD_US = 1_000_000
_CAP_SYS_NICE = 23


def control_groups(reader: Reader, scope: Scope) -> Result:
    layout = cgroups.detect(reader.root)
    versions = {name: found.version for name, found in sorted(layout.controllers.items())}
    shown = f"{layout.name}, with {', '.join(versions) or 'no controllers'}"
    value = {"layout": layout.name, "controllers": versions}
    if "memory" not in versions:
        return block(
            f"{shown}: no memory controller",
            "Boot the host with 'cgroup_enable=memory' (in a container: mount cgroups).",
            value,
        )
    missing = [name for name in ("cpu", "cpuset") if name not in versions]
    if missing:
        return warn(
            f"{shown}: no {' and no '.join(missing)}",
            "Boot a kernel that has them (in a container: mount them).",
            value,
        )
    return fine(shown, value)


def rt_groups(reader: Reader, scope: Scope) -> Result:
    layout = cgroups.detect(reader.root)
    if not layout.rt_group_sched:
        return fine("real-time policies do not depend on a cgroup's budget", False)
    if problem := cgroups.realtime_problem(layout, reader.root):
        return block(problem.message, problem.hint or "", True)
    inside = _own_cpu_cgroup(reader, layout)
    where = f"; labctl itself is in the cpu cgroup {inside}" if inside not in ("/", "") else ""
    setting = cgroups.libvirt_setting(layout)
    return warn(
        f"CONFIG_RT_GROUP_SCHED: a cpu cgroup without a budget refuses FIFO and RR{where}",
        f"echo '{setting}' >> /etc/libvirt/qemu.conf  # for '--connect qemu:///system'; it "
        "affects all its guests; restart libvirtd",
        True,
    )


def rt_throttling(reader: Reader, scope: Scope) -> Result:
    runtime = read_rt_runtime_us(reader.path("/proc"))
    period = reader.number(f"{_KERNEL}/sched_rt_period_us") or _RT_PERIOD_US
    value = {"runtime_us": runtime, "period_us": period}
    reset = "sysctl -w kernel.sched_rt_runtime_us=950000"
    if not reader.exists(f"{_KERNEL}/sched_rt_runtime_us"):
        return unknown("not reported by the kernel")
    if runtime == 0:
        return warn("0: real-time threads get no CPU time at all", reset, value)
    if runtime < 0:
        return warn("off: a FIFO thread that spins may stop its CPU, and the host", reset, value)
    if runtime >= period:
        return warn("real-time threads may take all of each second", reset, value)
    stall_ms = (period - runtime) / 1000
    using = scope.using(_is_realtime)
    shown = f"real-time threads stop for {stall_ms:g} ms in each {period / 1e6:g} s at the latest"
    if not using:
        return fine(shown, value)
    return warn(
        f"{shown}: affects {some(using)}",
        "Consider this when you read maxima. Do not disable it: it keeps the host responsive.",
        value,
    )


def rt_right(reader: Reader, scope: Scope) -> Result:
    if reader.has_capability(_CAP_SYS_NICE):
        return fine("CAP_SYS_NICE is available", True)
    return warn(
        "CAP_SYS_NICE is missing: no thread can be given FIFO or RR",
        "Run labctl as root (in a container: with --cap-add SYS_NICE).",
        False,
    )


def autogroup(reader: Reader, scope: Scope) -> Result:
    enabled = cgroups.autogroup_enabled(reader.root)
    sharing = cgroups.cpu_sharing(cgroups.detect(reader.root), enabled)
    shown = f"{'on' if enabled else 'off'}. {sharing.sentence}"
    if sharing.by_cgroup or enabled:
        return fine(shown.rstrip("."), enabled)
    return warn(shown.rstrip("."), "sysctl -w kernel.sched_autogroup_enabled=1", enabled)


def timer_migration(reader: Reader, scope: Scope) -> Result:
    value = reader.number(f"{_KERNEL}/timer_migration")
    isolated = reader.cpus("/sys/devices/system/cpu/isolated")
    if value is None:
        return unknown("not reported by the kernel")
    if value == 1 and isolated:
        return warn(
            "on, and busy CPUs may move their timers to isolated CPUs",
            "sysctl -w kernel.timer_migration=0",
            value,
        )
    return fine("on, the kernel's default" if value else "off", value)


def _is_realtime(tuning: Tuning) -> bool:
    scheds = (tuning.vcpu_sched, tuning.emulator_sched, tuning.iothread_sched)
    return any(sched is not None and sched.policy.realtime for sched in scheds)


def _own_cpu_cgroup(reader: Reader, layout: cgroups.Layout) -> str:
    try:
        found = cgroups.placement("self", reader.root)
    except BrokenError:
        return ""
    return cgroups.cpu_group(layout, found, reader.root) or ""


CHECKS = (
    Check(
        "cgroups",
        GROUP,
        "A cgroup limits native runs to the guest's memory; cpu cgroups give equal weights "
        "if possible.",
        control_groups,
    ),
    Check(
        "rt-group-sched",
        GROUP,
        "In such a cgroup 'vcpusched' fails with \"Cannot set scheduler parameters … "
        "Operation not permitted\". labctl's own libvirt does not use the cpu controller, "
        "and on cgroup v2 no controller.",
        rt_groups,
    ),
    Check(
        "rt-throttling",
        GROUP,
        "It throttles FIFO vCPUs, which stall each second; without it, a FIFO vCPU on the "
        "last housekeeping CPU hangs the host.",
        rt_throttling,
    ),
    Check("rt-right", GROUP, "The real-time tunings and their native twins need it.", rt_right),
    Check(
        "autogroup",
        GROUP,
        "A neighbour must compete like another VM: hogs of one session may share one weight.",
        autogroup,
    ),
    Check(
        "timer-migration",
        GROUP,
        "An idle CPU moves its timers to a busy one: unplanned work on a vCPU's CPU.",
        timer_migration,
    ),
)
