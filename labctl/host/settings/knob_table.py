"""List a host's knobs by name: purpose, values, and the changes that each makes."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from labctl.base.cpus import format_cpus, parse_cpus
from labctl.base.errors import HostError, LabctlError
from labctl.base.kernel import DEVICE, Held, in_words, limit_us, limited
from labctl.base.process import Deadline, dies_with_labctl, last_words, run, running
from labctl.base.trust import doubt
from labctl.base.tuning import HostProgram
from labctl.host.settings import tuned
from labctl.host.settings.journal import KnobChange
from labctl.host.settings.knob import (
    Impossible,
    Knob,
    KnobPlace,
    check_writable,
    file_change,
    follower,
    one_file,
)
from labctl.host.settings.tunables import CpuMask, FileValue

# Run a program of the host while a tuning is in force: a scheduler of sched_ext, stalld,
# irqbalance.
#
# It ends with the block, and with labctl however that ends (PR_SET_PDEATHSIG), so that nothing is
# left to undo, and no journal lists it.


_START_S = 10.0
"""Seconds until its check succeeds for the first time."""
_CHECK_S = 10.0
_POLL_S = 0.1


def check_files(program: HostProgram, root: Path = Path("/")) -> None:
    """Raise Impossible if a command's file is missing or writable by others than root, because it
    runs as root. `root`: of the host's files."""
    for argv in (program.command, program.check):
        path = root / argv[0].lstrip("/")
        if not path.is_file():
            raise Impossible(f"there is no {path}")
        if why := doubt(path):
            raise Impossible(f"{path} may not run as root: {why}")


@contextmanager
def program_running(program: HostProgram) -> Iterator[Held]:
    """Run the program inside the block, which starts when its check succeeds.

    Raises HostError with its last output if it ends before that, or the check does not succeed.
    """
    name = shlex.join(program.command)
    with (
        tempfile.TemporaryFile() as said,
        running(
            [*dies_with_labctl(), *program.command], stdout=said, stderr=subprocess.STDOUT
        ) as process,
    ):
        deadline = Deadline.after(_START_S, f"the check of '{name}'")
        while _why_not(program, process, said):
            if process.poll() is not None or deadline.expired:
                raise HostError(
                    f"the host program is not working: {_why_not(program, process, said)}",
                    hint="It must stay in the foreground: a daemon would outlive its trials.",
                )
            time.sleep(_POLL_S)
        yield Held(
            name=f"program {name}",
            before="-",
            now=f"process {process.pid}",
            why_over=lambda: _why_not(program, process, said),
        )


def _why_not(program: HostProgram, process: subprocess.Popen[bytes], said: IO[bytes]) -> str | None:
    """Return why the program is not in force now; None if it is."""
    if (status := process.poll()) is not None:
        said.seek(0)
        words = last_words(said.read()[-4096:])
        return f"'{shlex.join(program.command)}' ended with status {status}: {words or 'no output'}"
    if (failed := _failed(program.check)) is not None:
        return f"its check '{shlex.join(program.check)}' {failed}"
    return None


def _failed(check: Sequence[str]) -> str | None:
    try:
        done = run(check, deadline=Deadline.after(_CHECK_S, shlex.join(check)), check=False)
    except LabctlError as error:
        return f"fails: {error.message}"
    return None if done.returncode == 0 else f"ends with status {done.returncode}"


RT_RUNTIME = "rt-runtime-us"


_CPU = "sys/devices/system/cpu"
_SMT = f"{_CPU}/smt/control"
_GOVERNOR = f"{_CPU}/cpu[0-9]*/cpufreq/scaling_governor"
_STATES = f"{_CPU}/cpu[0-9]*/cpuidle/state[0-9]*/disable"
_INTERRUPTS = "proc/irq/[0-9]*/smp_affinity_list"
_THP = "sys/kernel/mm/transparent_hugepage/enabled"


def _smt(value: str, place: KnobPlace) -> list[KnobChange]:
    control = place.root / _SMT
    found = place.text(_SMT)
    if found not in ("on", "off"):
        # forceoff: by the command line; notsupported, notimplemented (ABI/testing/sysfs-devices-
        # system-cpu).
        raise Impossible(f"{control} says '{found or 'nothing'}'")
    if value == "off" and found == "on" and _cpuset_v1(place):
        # cgroup-v1/cpusets.rst: CPUs lost to hotplug do not come back.
        raise Impossible(
            "CPUs that go offline are lost to the cpusets of cgroup v1, which this host has, "
            "until it reboots"
        )
    # An interrupt whose last CPU goes offline moves to all others, and stays there.
    return [
        *(change for path in place.files(_INTERRUPTS) for change in follower(path)),
        file_change(control, value),
    ]


def _cpuset_v1(place: KnobPlace) -> bool:
    for line in (place.text("proc/mounts") or "").splitlines():
        fields = line.split()
        if fields[2] == "cgroup":
            options = fields[3].split(",")
            if "cpuset" in options and "cpuset_v2_mode" not in options:
                return True
    return False


def _pool(size_kib: int) -> str:
    return f"sys/kernel/mm/hugepages/hugepages-{size_kib}kB/nr_hugepages"


def _hugepages(size_kib: int) -> Callable[[str, KnobPlace], list[KnobChange]]:
    def changes(value: str, place: KnobPlace) -> list[KnobChange]:
        change = file_change(place.root / _pool(size_kib), value)
        more = int(value) - int(place.text(_pool(size_kib)) or 0)
        free = re.search(r"^MemAvailable:\s+(\d+) kB", place.text("proc/meminfo") or "", re.M)
        if free and more * size_kib > int(free.group(1)):
            raise Impossible(
                f"{value} pages of {size_kib // 1024} MiB are more than the memory that is free"
            )
        return [change]

    return changes


def _governor(value: str, place: KnobPlace) -> list[KnobChange]:
    changes: list[KnobChange] = []
    for path in place.files(_GOVERNOR):
        available = place.text(f"{path.relative_to(place.root).parent}/scaling_available_governors")
        if available is not None and value not in available.split():
            raise Impossible(f"{path.parent} offers only the governors {available}")
        # With hardware-managed P-states the governor sets the preference as well
        # (Documentation/admin-guide/pm/intel_pstate.rst).
        changes += follower(path.with_name("energy_performance_preference"))
        changes.append(file_change(path, value))
    if not changes:
        raise Impossible("the kernel doesn't govern the frequency of this host's CPUs (no cpufreq)")
    return changes


def _governors(place: KnobPlace) -> str | None:
    found = {place.text(str(path.relative_to(place.root))) for path in place.files(_GOVERNOR)}
    return ", ".join(sorted(filter(None, found))) or None


def _c_states(value: str, place: KnobPlace) -> list[KnobChange]:
    states = place.files(_STATES)
    if not states:
        raise Impossible("the kernel has no idle states to choose from (no cpuidle)")
    changes = []
    for path in states:
        if value == "all":
            changes.append(file_change(path, "0"))
        elif _latency_us(path, place) > int(value):
            changes.append(file_change(path, "1"))
    return changes


def _c_states_now(place: KnobPlace) -> str | None:
    """Return the longest exit latency of an allowed state, or "all"."""
    states = place.files(_STATES)
    allowed = [path for path in states if place.text(str(path.relative_to(place.root))) == "0"]
    if len(allowed) == len(states):
        return "all" if states else None
    return str(max((_latency_us(path, place) for path in allowed), default=0))


def _latency_us(disable: Path, place: KnobPlace) -> int:
    return int(place.text(f"{disable.relative_to(place.root).parent}/latency") or 0)


def _latency(value: str, place: KnobPlace) -> list[KnobChange]:
    """Hold the latency limit, which needs no undo; raises Impossible if it cannot be held."""
    try:
        limit_us(place.root)
    except FileNotFoundError:
        raise Impossible(f"this kernel has no {place.root / DEVICE} (CONFIG_CPU_IDLE)") from None
    except OSError as error:
        raise Impossible(f"{place.root / DEVICE} can't be opened: {error.strerror}") from error
    return []


def _latency_now(place: KnobPlace) -> str | None:
    try:
        return in_words(limit_us(place.root))
    except OSError:
        return None


def _thp(value: str, place: KnobPlace) -> list[KnobChange]:
    # Switching khugepaged on or off sets the memory that the kernel keeps free (mm/khugepaged.c,
    # set_recommended_min_free_kbytes); seen: 67584 kB with "madvise", 19832 kB with "never".
    return [
        *follower(place.root / "proc/sys/vm/min_free_kbytes"),
        file_change(place.root / _THP, value),
    ]


def _irq_affinity(value: str, place: KnobPlace) -> list[KnobChange]:
    if _process_runs(place, "irqbalance"):
        raise Impossible("irqbalance runs, and moves interrupts back ('systemctl stop irqbalance')")
    default = CpuMask(str(place.root / "proc/irq/default_smp_affinity"))
    check_writable(Path(default.path))
    # The default for new interrupts comes first, so that none is missed.
    changes = [KnobChange(tunable=default, value=_off_isolated(default.read(), place))]
    for tunable, present in _interrupts(place):
        # Timers, and queues that the driver has spread itself, cannot be moved: EIO or EPERM.
        changes.append(
            KnobChange(tunable=tunable, value=_off_isolated(present, place), optional=True)
        )
    return changes


def _interrupts(place: KnobPlace) -> Iterator[tuple[FileValue, str]]:
    """Yield each interrupt's CPUs; skip those that have ended meanwhile or cannot be read."""
    for path in place.files(_INTERRUPTS):
        tunable = FileValue(str(path))
        try:
            yield tunable, tunable.read()
        except OSError:
            continue


def _workqueues(value: str, place: KnobPlace) -> list[KnobChange]:
    changes = []
    for tunable, present in _masks(place):
        check_writable(Path(tunable.path))
        changes.append(KnobChange(tunable=tunable, value=_off_isolated(present, place)))
    if not changes:
        raise Impossible("this kernel has no mask for its work queues")
    return changes


def _masks(place: KnobPlace) -> Iterator[tuple[CpuMask, str]]:
    folder = "sys/devices/virtual/workqueue"
    for path in [*place.files(f"{folder}/cpumask"), *place.files(f"{folder}/*/cpumask")]:
        tunable = CpuMask(str(path))
        yield tunable, tunable.read()


def _together(found: Iterable[tuple[object, str]]) -> str | None:
    return format_cpus(cpu for _, cpus in found for cpu in parse_cpus(cpus)) or None


def _off_isolated(cpus: str, place: KnobPlace) -> str:
    left = parse_cpus(cpus) - place.isolated or place.housekeeping - place.isolated
    return format_cpus(left) or cpus


def _process_runs(place: KnobPlace, name: str) -> bool:
    return any(
        place.text(str(path.relative_to(place.root))) == name
        for path in place.files("proc/[0-9]*/comm")
    )


def _program(value: str, place: KnobPlace) -> list[KnobChange]:
    """Return no changes: the program leaves nothing to undo. Raises Impossible as `check_files`."""
    check_files(HostProgram.of(value), place.root)
    return []


TABLE: tuple[Knob, ...] = (
    # In the order in which they are set; they are undone in reverse. SMT first: files of its CPUs
    # come and go with it.
    Knob(
        name="smt",
        what="the second hardware thread of each core",
        changes=_smt,
        now=lambda place: place.text(_SMT),
    ),
    # Then contiguous memory, the larger pages first, before anything else fragments it.
    Knob(
        name="hugepages-1G",
        what="how many huge pages of 1 GiB are set aside",
        changes=_hugepages(1024 * 1024),
        now=lambda place: place.text(_pool(1024 * 1024)),
    ),
    Knob(
        name="hugepages-2M",
        what="how many huge pages of 2 MiB are set aside",
        changes=_hugepages(2048),
        now=lambda place: place.text(_pool(2048)),
    ),
    # Single knobs override tuned's profiles.
    tuned.knob(),
    Knob(
        name="governor",
        what="how the kernel chooses a CPU's frequency",
        changes=_governor,
        now=_governors,
    ),
    Knob(
        name="c-states",
        what="how long a CPU may take to leave an idle state, in microseconds",
        changes=_c_states,
        now=_c_states_now,
    ),
    Knob(
        name="thp",
        what="who gets transparent huge pages",
        changes=_thp,
        now=lambda place: place.value(_THP),
    ),
    one_file(
        "thp-defrag",
        "how far the kernel goes to make a transparent huge page",
        "sys/kernel/mm/transparent_hugepage/defrag",
    ),
    one_file(
        "ksm",
        "whether equal pages are merged (2: stop, and take merged ones apart)",
        "sys/kernel/mm/ksm/run",
    ),
    one_file("swappiness", "how readily memory is swapped out", "proc/sys/vm/swappiness"),
    one_file(
        "numa-balancing",
        "whether memory follows its tasks between NUMA nodes (2: between tiers of memory)",
        "proc/sys/kernel/numa_balancing",
    ),
    one_file(
        "halt-poll-ns",
        "how long KVM waits for a halted vCPU before it lets its CPU go, in nanoseconds",
        "sys/module/kvm/parameters/halt_poll_ns",
    ),
    one_file(
        RT_RUNTIME,
        "how much of each second real-time tasks may take, in microseconds (-1: all)",
        "proc/sys/kernel/sched_rt_runtime_us",
    ),
    one_file(
        "sched-autogroup",
        "whether a session's tasks weigh as one",
        "proc/sys/kernel/sched_autogroup_enabled",
    ),
    one_file(
        "timer-migration",
        "whether timers move from idle CPUs to busy ones",
        "proc/sys/kernel/timer_migration",
    ),
    one_file(
        "watchdog",
        "whether the kernel watches for CPUs that hang (soft and hard lockups)",
        # The master switch: it leaves soft_watchdog's and nmi_watchdog's own settings alone.
        "proc/sys/kernel/watchdog",
    ),
    # Last, after everything that adds CPUs, interrupts and work queues.
    Knob(
        name="workqueues",
        what="the CPUs that the kernel's own unbound work runs on",
        changes=_workqueues,
        now=lambda place: _together(_masks(place)),
    ),
    Knob(
        name="irq-affinity",
        what="the CPUs that take interrupts",
        changes=_irq_affinity,
        now=lambda place: _together(_interrupts(place)),
    ),
    # Held: it ends with the process, so it must not outlast the knobs that are set and restored.
    Knob(
        name="cpu-dma-latency",
        what="how long an idle CPU may take to wake up, in microseconds, while labctl holds it",
        changes=_latency,
        now=_latency_now,
        held=lambda value, place: limited(int(value), place.root),
    ),
    Knob(
        name="program",
        what="a program of the host's that runs while the tuning is in force",
        changes=_program,
        now=lambda place: "none",
        held=lambda value, place: program_running(HostProgram.of(value)),
    ),
)
