"""List the virtual machines on this host, whoever started them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base.cpus import CpuSet, parse_cpus
from labctl.base.paths import OWN_NAME
from labctl.host.settings.tunables import selected
from labctl.host.tracers import config_digest, config_paths, config_value

_PROGRAMS = ("qemu-system", "qemu-kvm", "firecracker", "cloud-hypervis", "crosvm", "VBoxHeadless")
"""Prefixes of the programs that run them (the kernel keeps 15 characters)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMachine:
    """Describe a running virtual machine. `name`: the guest's, else its program's. `allowed`: the
    CPUs that it may run on."""

    pid: int
    name: str
    allowed: CpuSet

    @property
    def is_ours(self) -> bool:
        return OWN_NAME.fullmatch(self.name) is not None


def running_machines(root: Path = Path("/")) -> list[RunningMachine]:
    """Return every virtual machine of the host whose /proc lies below `root`, by pid."""
    found = []
    for folder in sorted((root / "proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            program = (folder / "comm").read_text(errors="replace").strip()
            if not program.startswith(_PROGRAMS) and program != "kvm":
                continue
            arguments = (folder / "cmdline").read_text(errors="replace")
            status = (folder / "status").read_text(errors="replace")
        except OSError:
            continue  # it has ended
        # A zombie that was not reaped yet, or a QEMU started only to query its capabilities.
        if not arguments or "\0-machine\0none" in arguments or "\0--version" in arguments:
            continue
        named = re.search(r"\0-name\0(?:guest=)?([^,\0]+)", arguments)
        name = named[1] if named else program
        found.append(RunningMachine(pid=int(folder.name), name=name, allowed=allowed_cpus(status)))
    return found


def allowed_cpus(status: str) -> CpuSet:
    """Return the CPUs that a /proc/PID/status (proc_pid_status(5)) allows; none if it does not list
    them."""
    found = re.search(r"^Cpus_allowed_list:\s*(\d[\d,-]*)$", status, re.MULTILINE)
    return parse_cpus(found[1]) if found else frozenset()


# Identify the host's processes uniquely: a pid alone may belong to a newer one.


def boot_id() -> str:
    """Return the kernel's random id of this boot (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def start_time(pid: int) -> int | None:
    """Return a process's start time, in clock ticks since the boot; None if it is dead or a zombie.

    proc_pid_stat(5): field 3 is the state, field 22 the start time. The command's name in
    parentheses may itself hold spaces and parentheses.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def is_alive(pid: int, started: int) -> bool:
    """Return whether the process that had this pid and start time still runs."""
    return start_time(pid) == started


# Parse facts of one machine, host or guest, from the texts of its kernel's files.
#
# The same code reads both sides, the guest's files through its runner, so that a fact means the
# same on both. An unavailable fact is {"unavailable": reason}.


Facts = dict[str, object]
Texts = Mapping[str, str | None]
"""Path to the file's text, None if it could not be read."""

ReadFiles = Callable[[Sequence[str]], Texts]
"""Reads files of a machine: `host.facts.read_host_files`, or a guest's `Channel.read`."""

_RELEASE = "/proc/sys/kernel/osrelease"
_CPUINFO = "/proc/cpuinfo"
_MEMINFO = "/proc/meminfo"
_OS_RELEASE = "/etc/os-release"
_PARTITIONS = "/proc/partitions"
_COMMAND_LINE = "/proc/cmdline"
_MOUNTS = "/proc/self/mounts"

_CPU = "/sys/devices/system/cpu"
_THP = "/sys/kernel/mm/transparent_hugepage"
_CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

_SETTINGS: Mapping[str, str] = {
    "kernel_release": _RELEASE,
    "kernel_version": "/proc/sys/kernel/version",
    "boot_id": "/proc/sys/kernel/random/boot_id",
    "cpus_online": f"{_CPU}/online",
    "cpus_isolated": f"{_CPU}/isolated",
    "numa_nodes": "/sys/devices/system/node/online",
    "smt": f"{_CPU}/smt/control",
    "governor": f"{_CPU}/cpu0/cpufreq/scaling_governor",
    "frequency_driver": f"{_CPU}/cpu0/cpufreq/scaling_driver",
    "idle_driver": f"{_CPU}/cpuidle/current_driver",
    "thp": f"{_THP}/enabled",
    "thp_defrag": f"{_THP}/defrag",
    "ksm": "/sys/kernel/mm/ksm/run",
    "halt_poll_ns": "/sys/module/kvm/parameters/halt_poll_ns",
    "tuned_profile": "/etc/tuned/active_profile",
    "clocksource": _CLOCKSOURCE,
    "swappiness": "/proc/sys/vm/swappiness",
    "numa_balancing": "/proc/sys/kernel/numa_balancing",
    "sched_ext": "/sys/kernel/sched_ext/state",
    "sched_autogroup": "/proc/sys/kernel/sched_autogroup_enabled",
    "sched_rt_runtime_us": "/proc/sys/kernel/sched_rt_runtime_us",
    "sched_rt_period_us": "/proc/sys/kernel/sched_rt_period_us",
}
"""Facts that are the text of one file (or its selected word)."""

_NO_TURBO = "/sys/devices/system/cpu/intel_pstate/no_turbo"
_BOOST = f"{_CPU}/cpufreq/boost"

_COMMAND_LINE_OPTIONS = re.compile(
    r"(isolcpus|nohz|nohz_full|rcu_nocbs|rcu_nocb_poll|irqaffinity|nosmt|mitigations|idle|skew_tick"
    r"|preempt|threadirqs|nowatchdog|tsc|clocksource|hpet|hugepages|hugepagesz|default_hugepagesz"
    r"|transparent_hugepage|numa_balancing|iommu|intel_iommu|amd_iommu|intel_pstate|amd_pstate"
    r"|noautogroup|rt_group_sched|pti|nopti|spec_store_bypass_disable|spectre_v2|retbleed|nokaslr"
    r"|(?:kvm|kvm_intel|kvm_amd|intel_idle|processor|cpuidle|cpufreq|sched)[._]\w+)(=.*)?"
)
"""Kernel options that affect measurements. Not the whole line: other options hold hosts and
tokens."""

_CONFIG_OPTIONS: Mapping[str, str] = {
    "hz": "CONFIG_HZ",
    "rt_group_sched": "CONFIG_RT_GROUP_SCHED",
    "preempt": "CONFIG_PREEMPT",
    "preempt_dynamic": "CONFIG_PREEMPT_DYNAMIC",
    "no_hz_full": "CONFIG_NO_HZ_FULL",
}

_VULNERABILITIES = tuple(
    f"{_CPU}/vulnerabilities/{name}"
    for name in (
        *("gather_data_sampling", "indirect_target_selection", "itlb_multihit", "l1tf", "mds"),
        *("meltdown", "mmio_stale_data", "old_microcode", "reg_file_data_sampling", "retbleed"),
        *("spec_rstack_overflow", "spec_store_bypass", "spectre_v1", "spectre_v2", "srbds"),
        *("tsa", "tsx_async_abort", "vmscape"),
    )
)
"""Files of Documentation/ABI/testing/sysfs-devices-system-cpu, 6.18. By name, because a guest's
files are read through its runner, which cannot list folders."""

FACT_FILES: tuple[str, ...] = (
    *_SETTINGS.values(),
    *(_NO_TURBO, _BOOST, _CPUINFO, _MEMINFO, _OS_RELEASE, _PARTITIONS, _MOUNTS, _COMMAND_LINE),
    *_VULNERABILITIES,
)


def machine_facts(read: ReadFiles) -> Facts:
    """Return the facts of the machine whose files `read` reads (two calls: some paths depend on
    texts)."""
    texts = dict(read(FACT_FILES))
    release = (texts[_RELEASE] or "").strip()
    more = config_paths(release) + [_scheduler_path(disk) for disk in _disks(texts)]
    texts.update(read(more))
    return facts_from_texts(texts)


def facts_from_texts(texts: Texts) -> Facts:
    """Return the same from the texts alone; a path that is missing from `texts` could not be
    read."""
    facts: Facts = {name: _setting(texts, path) for name, path in _SETTINGS.items()}
    facts["turbo"] = _turbo(texts)
    facts["fair_scheduler"] = _fair_scheduler(release_of(facts))
    facts["kernel_options"] = _kernel_options(texts)
    facts["mitigations"] = _mitigations(texts)
    facts["os"] = _os_name(texts)
    facts["root_file_system"] = _root_file_system(texts)
    facts["block_schedulers"] = {
        disk: _setting(texts, _scheduler_path(disk)) for disk in _disks(texts)
    }
    facts |= _cpu_facts(texts) | _memory_facts(texts) | _config_facts(texts, release_of(facts))
    return dict(sorted(facts.items()))


def unavailable(reason: str) -> dict[str, str]:
    return {"unavailable": reason}


def release_of(facts: Facts) -> str:
    """Return the kernel's release; "" if it could not be read."""
    release = facts.get("kernel_release")
    return release if isinstance(release, str) else ""


def same_kernel(host: Facts, guest: Facts) -> tuple[bool, str]:
    """Return whether native and guest ran on one kernel, and the name of their ratio.

    METHOD rule 3: virtualization overhead if release and configuration agree, else a stack
    difference, because the ratio then includes the difference between two kernels.
    """
    ours, theirs = release_of(host) or "unknown", release_of(guest) or "unknown"
    stack = "the native-versus-guest ratio is a stack difference, not virtualization overhead"
    if ours != theirs or "unknown" in (ours, theirs):
        return False, f"The host runs kernel {ours} and the guest {theirs}: {stack}."
    digests = host.get("kernel_config"), guest.get("kernel_config")
    if not all(isinstance(digest, str) for digest in digests):
        return False, (
            f"Host and guest run kernel {ours}, but the configuration of one of them can't be "
            f"read: {stack}."
        )
    if digests[0] != digests[1]:
        return False, (
            f"Host and guest run kernel {ours} built with different configurations: {stack}."
        )
    return True, (
        f"Host and guest run the same kernel {ours} with the same configuration: the "
        "native-versus-guest ratio is virtualization overhead."
    )


def _setting(texts: Texts, path: str) -> Any:
    text = texts.get(path)
    return unavailable(f"no {path}") if text is None else selected(text)


def _turbo(texts: Texts) -> Any:
    for path, on in ((_NO_TURBO, "0"), (_BOOST, "1")):
        text = texts.get(path)
        if text is not None:
            return "on" if text.strip() == on else "off"
    return unavailable("the frequency driver has no such switch, or there is none")


def _fair_scheduler(release: str) -> Any:
    """Return the scheduler of SCHED_OTHER: EEVDF replaced CFS in Linux 6.6."""
    version = re.match(r"(\d+)\.(\d+)", release)
    if version is None:
        return unavailable("the kernel's release is not known")
    return "EEVDF" if (int(version[1]), int(version[2])) >= (6, 6) else "CFS"


def _kernel_options(texts: Texts) -> Any:
    text = texts.get(_COMMAND_LINE)
    if text is None:
        return unavailable(f"no {_COMMAND_LINE}")
    return [word for word in text.split() if _COMMAND_LINE_OPTIONS.fullmatch(word)]


def _mitigations(texts: Texts) -> Any:
    found = {
        path.rpartition("/")[2]: text.strip()
        for path in _VULNERABILITIES
        if (text := texts.get(path)) is not None
    }
    return found or unavailable(f"no {_CPU}/vulnerabilities")


def _os_name(texts: Texts) -> Any:
    name = re.search(r'^PRETTY_NAME="?([^"\n]*)', texts.get(_OS_RELEASE) or "", re.MULTILINE)
    return name.group(1) if name else unavailable(f"no PRETTY_NAME in {_OS_RELEASE}")


def _root_file_system(texts: Texts) -> Any:
    types = [
        fields[2]
        for line in (texts.get(_MOUNTS) or "").splitlines()
        if len(fields := line.split()) > 2 and fields[1] == "/"
    ]
    # The last mount on a mount point hides the earlier ones.
    return types[-1] if types else unavailable(f"no root in {_MOUNTS}")


_NO_DISK = re.compile(
    r"(?:[hsv]|xv)d[a-z]+\d+|(?:nvme\d+n\d+|mmcblk\d+)p\d+|loop\d+(?:p\d+)?|z?ram\d+"
)
"""Partitions, and devices that are not disks of their own."""


def _disks(texts: Texts) -> list[str]:
    """Return names of whole disks, from /proc/partitions ("major minor #blocks name").

    Loop and RAM disks are left out: they come and go with packages and mounts. Below them lies a
    disk or none, and a state folder on one has its elevator among its own facts.
    """
    names = [
        fields[3]
        for line in (texts.get(_PARTITIONS) or "").splitlines()
        if len(fields := line.split()) == 4 and fields[0].isdecimal()
    ]
    return [name for name in names if not _NO_DISK.fullmatch(name)]


def _scheduler_path(disk: str) -> str:
    return f"/sys/block/{disk}/queue/scheduler"


def _cpu_facts(texts: Texts) -> Facts:
    text = texts.get(_CPUINFO)
    if not text:
        return {
            name: unavailable(f"no {_CPUINFO}")
            for name in ("cpu_model", "microcode", "cpus", "topology", "hypervisor", "cpu_flags")
        }
    cpus = [
        dict(re.findall(r"^([^\n:]+?)\s*: ?(.*)$", block, re.MULTILINE))
        for block in re.split(r"\n\s*\n", text)
        if block.startswith("processor")
    ]
    first = cpus[0] if cpus else {}
    flags = first.get("flags", "").split()
    return {
        "cpus": len(cpus),
        "cpu_model": first.get("model name") or unavailable(f"no model name in {_CPUINFO}"),
        "microcode": first.get("microcode") or unavailable(f"no microcode in {_CPUINFO}"),
        "cpu_flags": flags or unavailable(f"no flags in {_CPUINFO}"),
        "hypervisor": "hypervisor" in flags,
        "topology": _topology(cpus),
    }


def _topology(cpus: Sequence[Mapping[str, str]]) -> Any:
    places = {(cpu.get("physical id"), cpu.get("core id")) for cpu in cpus}
    if not cpus or any(None in place for place in places):
        return unavailable(f"{_CPUINFO} names no packages and cores")
    packages = {package for package, _ in places}
    return {"packages": len(packages), "cores": len(places), "threads": len(cpus)}


def _memory_facts(texts: Texts) -> Facts:
    sizes = dict(re.findall(r"^(\w+):\s+(\d+)", texts.get(_MEMINFO) or "", re.MULTILINE))

    def size(name: str, unit: int) -> Any:
        return int(sizes[name]) * unit if name in sizes else unavailable(f"no {name}: {_MEMINFO}")

    return {
        "memory_bytes": size("MemTotal", 1024),
        "swap_bytes": size("SwapTotal", 1024),
        "huge_pages": size("HugePages_Total", 1),
    }


def _config_facts(texts: Texts, release: str) -> Facts:
    for path in config_paths(release):
        config = texts.get(path)
        # A guest's runner decodes files as text, so that a packed one arrives as garbage.
        if config and "\nCONFIG_" in config:
            return {
                "kernel_config": config_digest(config),
                **{name: config_value(config, key) for name, key in _CONFIG_OPTIONS.items()},
            }
    reason = unavailable("the kernel's configuration can't be read")
    return {"kernel_config": reason, **dict.fromkeys(_CONFIG_OPTIONS, reason)}
