"""Check how the host's CPUs are set up: how many, how fast, how steady."""

from __future__ import annotations

import re

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.kernel import DEVICE, NO_LIMIT_US, limit_us
from labctl.host.doctor.check import Check, Result, Scope, fine, some, unknown, warn
from labctl.host.doctor.reader import Reader

GROUP = "CPUs"
_CPU = "/sys/devices/system/cpu"
_CLOCK = "/sys/devices/system/clocksource/clocksource0"
_NO_TURBO = f"{_CPU}/intel_pstate/no_turbo"
_BOOST = f"{_CPU}/cpufreq/boost"
_SHALLOW_US = 10
"""A wake-up from a deeper idle state than this shows in a p95 of some tens of microseconds."""

_NO_DRIVER = "no cpufreq driver: the hypervisor or the firmware sets the frequency"


def count(reader: Reader, scope: Scope) -> Result:
    online = reader.cpus(f"{_CPU}/online")
    if not online:
        return unknown(f"no {_CPU}/online")
    present = reader.cpus(f"{_CPU}/present") or online
    allowed = parse_cpus(reader.process_status("Cpus_allowed_list") or format_cpus(online))
    usable = online & allowed
    value = {name: format_cpus(cpus) for name, cpus in (("online", online), ("usable", usable))}
    limits = [
        *([f"{format_cpus(present - online)} offline"] if present - online else []),
        *([f"{format_cpus(online - allowed)} not allowed for labctl"] if online - allowed else []),
    ]
    shown = f"CPUs {format_cpus(usable)} usable" + (f" ({', '.join(limits)})" if limits else "")
    if len(usable) <= 2:
        return warn(
            f"{shown}: too few to keep one for the host, one for QEMU and two for vCPUs",
            "Use a host with four CPUs or more, or expect one vCPU and wide intervals.",
            value,
        )
    return fine(shown, value)


def smt(reader: Reader, scope: Scope) -> Result:
    control = reader.text(f"{_CPU}/smt/control")
    if control is None:
        return unknown("not reported by the kernel (older than 4.19, or another architecture)")
    if control != "on":
        return fine(f"{control}: each CPU is a core, as far as this host shows", control)
    lone = sorted(cpu for cpu in scope.cpus if not _siblings(reader, cpu) <= scope.cpus)
    if not lone:
        return fine("on; vCPUs have whole cores", control)
    return warn(
        f"on, and CPU {format_cpus(lone)} shares its core with CPUs without a vCPU",
        "labctl pins --vcpus N  # an even N fills cores",
        control,
    )


def _siblings(reader: Reader, cpu: int) -> CpuSet:
    folder = f"{_CPU}/cpu{cpu}/topology"
    found = reader.cpus(f"{folder}/core_cpus_list") or reader.cpus(f"{folder}/thread_siblings_list")
    return found or frozenset({cpu})


def governor(reader: Reader, scope: Scope) -> Result:
    names = {
        cpu: text
        for cpu in reader.names(_CPU, "cpu[0-9]*")
        if (text := reader.text(f"{_CPU}/{cpu}/cpufreq/scaling_governor")) is not None
    }
    if not names:
        return unknown(_NO_DRIVER)
    found = sorted(set(names.values()))
    if found == ["performance"]:
        return fine("performance", found)
    driver = reader.text(f"{_CPU}/cpu0/cpufreq/scaling_driver") or "an unknown driver"
    return warn(
        f"{' and '.join(found)} ({driver})",
        f"for f in {_CPU}/cpu*/cpufreq/scaling_governor; do echo performance > $f; done",
        found,
    )


def turbo(reader: Reader, scope: Scope) -> Result:
    for path, on, off in ((_NO_TURBO, "0", "1"), (_BOOST, "1", "0")):
        text = reader.text(path)
        if text == on:
            return warn("on", f"echo {off} > {path}", "on")
        if text == off:
            return fine("off", "off")
    return unknown("no frequency driver, or the driver cannot switch it")


def idle_states(reader: Reader, scope: Scope) -> Result:
    states = reader.names(f"{_CPU}/cpu0/cpuidle", "state[0-9]*")
    if not states:
        return unknown(
            "no cpuidle states: the hypervisor controls idling, or the kernel runs with 'idle=poll'"
        )
    latencies: dict[str, int] = {}
    for state in states:
        folder = f"{_CPU}/cpu0/cpuidle/{state}"
        latency = reader.number(f"{folder}/latency")
        if latency is not None and reader.number(f"{folder}/disable") != 1:
            latencies[reader.text(f"{folder}/name") or state] = latency
    if not latencies:
        return unknown("no idle state is enabled, or none reports its latency")
    name, latency = max(latencies.items(), key=lambda item: item[1])
    shown = f"the deepest is {name}: {latency} µs to wake up"
    value = {"deepest": name, "latency_us": latency}
    if latency <= _SHALLOW_US:
        return fine(shown, value)
    return warn(shown, f"cpupower idle-set --disable-by-latency {_SHALLOW_US}", value)


def latency_limit(reader: Reader, scope: Scope) -> Result:
    try:
        limit = limit_us(reader.root)
    except OSError as error:
        return unknown(f"/{DEVICE} can't be read: {error.strerror}")
    if limit >= NO_LIMIT_US:
        return fine("no process limits how long an idle CPU may take to wake up")
    shown = f"a program limits the wake-up latency of idle CPUs to {limit} µs"
    if reader.text(f"{_CPU}/cpuidle/current_driver") in (None, "none"):
        return fine(f"{shown}, which has no effect without cpuidle", limit)
    return warn(shown, f"fuser -v /{DEVICE}  # shows the program", limit)


def mitigations(reader: Reader, scope: Scope) -> Result:
    folder = f"{_CPU}/vulnerabilities"
    texts = {name: reader.text(f"{folder}/{name}") or "" for name in reader.names(folder)}
    if not texts:
        return unknown(f"no {folder}")
    # "Mitigation: …; BHI: Vulnerable" is vulnerable as well.
    exposed = sorted(name for name, text in texts.items() if "Vulnerable" in text)
    options = [
        word
        for word in (reader.text("/proc/cmdline") or "").split()
        if re.match(r"(mitigations|nopti|pti|spectre_v2|retbleed|mds|l1tf|srbds)(=|$)", word)
    ]
    booted = f"; booted with {' '.join(options)}" if options else ""
    value = {"vulnerable": exposed, "options": options}
    if not exposed and not options:
        return fine("the kernel's defaults; nothing is vulnerable", value)
    state = f"vulnerable: {some(exposed)}" if exposed else "nothing is vulnerable"
    return warn(
        f"{state}{booted}",
        "Boot without those options if the result is meant for hosts with the defaults."
        if options
        else "Update the CPU's microcode and the kernel.",
        value,
    )


def isolation(reader: Reader, scope: Scope) -> Result:
    isolated = reader.cpus(f"{_CPU}/isolated") or frozenset()
    tickless = reader.cpus(f"{_CPU}/nohz_full") or frozenset()
    value = {"isolated": format_cpus(isolated), "nohz_full": format_cpus(tickless)}
    if not isolated and not tickless:
        return fine("none: other tasks may run on the vCPUs' CPUs", value)
    shown = f"isolated: {value['isolated'] or 'none'}; nohz_full: {value['nohz_full'] or 'none'}"
    outside = scope.cpus - isolated
    if isolated and outside and scope.cpus:
        return warn(
            f"{shown}; the pin plan's CPU {format_cpus(outside)} is not isolated",
            "Pin by hand ('pin.vcpus' of a tuning) to the isolated CPUs.",
            value,
        )
    if tickless - isolated:
        return warn(
            f"{shown}: CPU {format_cpus(tickless - isolated)} is tickless but not isolated",
            f"Boot with isolcpus={value['nohz_full']} as well.",
            value,
        )
    return fine(shown, value)


def clocksource(reader: Reader, scope: Scope) -> Result:
    current = reader.text(f"{_CLOCK}/current_clocksource")
    if current is None:
        return unknown(f"no {_CLOCK}")
    available = (reader.text(f"{_CLOCK}/available_clocksource") or "").split()
    if current in ("tsc", "arch_sys_counter"):
        return fine(current, current)
    if "tsc" in available:
        remedy = f"echo tsc > {_CLOCK}/current_clocksource"
    else:
        remedy = "dmesg | grep -i tsc  # why the kernel does not trust it"
    return warn(f"{current} (there are: {', '.join(available)})", remedy, current)


def core_kinds(reader: Reader, scope: Scope) -> Result:
    kinds = {
        kind: cpus
        for kind, device in (("performance", "cpu_core"), ("efficient", "cpu_atom"))
        if (cpus := reader.cpus(f"/sys/devices/{device}/cpus"))
    }
    if len(kinds) < 2:
        return fine("one kind of core", [])
    value = {kind: format_cpus(cpus) for kind, cpus in kinds.items()}
    mixed = all(scope.cpus & cpus for cpus in kinds.values())
    shown = "; ".join(f"{kind} cores: CPUs {cpus}" for kind, cpus in value.items())
    if mixed:
        return warn(f"{shown}; the vCPUs use both", "labctl pins --vcpus N", value)
    return fine(shown, value)


CHECKS = (
    Check(
        "cpus",
        GROUP,
        "The host's own work, QEMU's helper threads and the vCPUs need separate CPUs; "
        "sharing makes every comparison noisier.",
        count,
    ),
    Check(
        "core-kinds",
        GROUP,
        "A vCPU on an efficient core is slower: speed would depend on the vCPU's number.",
        core_kinds,
    ),
    Check(
        "smt",
        GROUP,
        "A task on a vCPU's sibling thread takes part of its core.",
        smt,
    ),
    Check(
        "governor",
        GROUP,
        "Other governors change the frequency with the load, so tunings run at different "
        "frequencies.",
        governor,
    ),
    Check(
        "turbo",
        GROUP,
        "The boosted frequency depends on temperature and on what the other cores do.",
        turbo,
    ),
    Check(
        "c-states",
        GROUP,
        "Each wake-up from a deep idle state adds its latency, mostly in a guest that idles.",
        idle_states,
    ),
    Check(
        "latency-limit",
        GROUP,
        "Programs may keep CPUs out of deep idle states while they run: the baseline then "
        "already has the effect of such a tuning.",
        latency_limit,
    ),
    Check(
        "mitigations",
        GROUP,
        "They make VM exits and system calls more expensive: a result holds only for these "
        "settings.",
        mitigations,
    ),
    Check(
        "isolated-cpus",
        GROUP,
        "No other task is scheduled on isolated CPUs; pins to other CPUs do not benefit.",
        isolation,
    ),
    Check(
        "clocksource",
        GROUP,
        "Any other clock than the TSC is slower to read, often through an exit, and calibrated IPC "
        "needs the TSC's rate.",
        clocksource,
    ),
)
