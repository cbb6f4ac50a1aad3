"""A host of four CPUs, two hardware threads each core, as a folder of files."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "proc/sys/vm/swappiness": "60",
    "proc/sys/vm/min_free_kbytes": "67584",
    "proc/sys/kernel/numa_balancing": "1",
    "proc/sys/kernel/sched_rt_runtime_us": "950000",
    "proc/sys/kernel/sched_autogroup_enabled": "1",
    "proc/sys/kernel/timer_migration": "1",
    "proc/sys/kernel/watchdog": "1",
    "proc/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0",
    "proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable:    4194304 kB",
    "proc/irq/default_smp_affinity": "f",
    "proc/irq/9/smp_affinity_list": "0-3",
    "proc/irq/10/smp_affinity_list": "2-3",
    "proc/1/comm": "systemd",
    "sys/kernel/mm/transparent_hugepage/enabled": "madvise",
    "sys/kernel/mm/transparent_hugepage/defrag": "madvise",
    "sys/kernel/mm/ksm/run": "0",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0",
    "sys/module/kvm/parameters/halt_poll_ns": "200000",
    "sys/devices/virtual/workqueue/cpumask": "f",
    "sys/devices/virtual/workqueue/writeback/cpumask": "f",
    "sys/devices/system/cpu/smt/control": "on",
    **{
        f"sys/devices/system/cpu/cpu{cpu}/{name}": text
        for cpu in range(4)
        for name, text in {
            "cpufreq/scaling_governor": "powersave",
            "cpufreq/scaling_available_governors": "performance powersave",
            "cpufreq/energy_performance_preference": "balance_power",
            "cpuidle/state0/disable": "0",
            "cpuidle/state0/latency": "0",
            "cpuidle/state1/disable": "0",
            "cpuidle/state1/latency": "2",
            "cpuidle/state2/disable": "0",
            "cpuidle/state2/latency": "133",
        }.items()
    },
}


def make(root: Path) -> Path:
    """The host's files below `root`."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def values(root: Path) -> dict[str, str]:
    """Every file with the first line of its text: unlike the kernel's, these keep what isn't
    written over."""
    return {name: (root / name).read_text().splitlines()[0] for name in FILES}
