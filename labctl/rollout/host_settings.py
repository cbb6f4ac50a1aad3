"""Make settings outside the domain's XML permanent, on the host and inside the guest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

from jinja2.exceptions import TemplateNotFound

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.kernel import in_full
from labctl.base.templates import lab_template_environment
from labctl.rollout.steps import Command, Done, InForce, Machine, Step, TextFile
from labctl.store.records.run_record import RecordedGuest

_PREFIX = "90-labctl-"
"""Prefix that sorts after a distribution's files, which mostly have lower numbers."""

_HEAD = "# Of labctl's tuning '{tuning}'. Remove this file to undo it.\n"


_SYSCTL = {
    "swappiness": "vm.swappiness",
    "numa-balancing": "kernel.numa_balancing",
    "rt-runtime-us": "kernel.sched_rt_runtime_us",
    "sched-autogroup": "kernel.sched_autogroup_enabled",
    "timer-migration": "kernel.timer_migration",
    "watchdog": "kernel.watchdog",
}
_HALT_POLL = "halt-poll-ns"
_SYSFS = {
    "smt": "/sys/devices/system/cpu/smt/control",
    "hugepages-1G": "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
    "hugepages-2M": "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    "governor": "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    "thp": "/sys/kernel/mm/transparent_hugepage/enabled",
    "thp-defrag": "/sys/kernel/mm/transparent_hugepage/defrag",
    "ksm": "/sys/kernel/mm/ksm/run",
    _HALT_POLL: "/sys/module/kvm/parameters/halt_poll_ns",
}
"""Knob of the host, by its name in tunings, to its path."""

BOOT = ("mitigations", "isolcpus", "nohz_full", "rcu_nocbs")
"""Knobs that are words of the kernel's command line."""

_LATENCY = "cpu-dma-latency"
_SPECIAL = ("tuned", "c-states", _LATENCY, "workqueues", "irq-affinity")
KNOBS = (*_SYSCTL, *_SYSFS, *BOOT, *_SPECIAL)
"""Knobs that can be made permanent; a test compares this list with labctl.host's."""


@dataclass(frozen=True, slots=True)
class Cpus:
    """Hold the CPUs that the run's host had online, and those of the vCPUs."""

    online: CpuSet
    vcpus: CpuSet

    @property
    def others(self) -> CpuSet:
        return self.online - self.vcpus or self.online


def host_steps(
    tuning: str, host: Mapping[str, str], command_line: Sequence[str], cpus: Cpus
) -> Iterator[Step]:
    """Yield the steps for a tuning's host settings: knobs to their values, words of its kernel's
    `command_line`.

    Knobs that `not_lasting` names are left out.
    """
    host = {name: value for name, value in host.items() if name not in not_lasting(host, cpus)}
    words = in_full(command_line, cpus.vcpus) if cpus.vcpus else list(command_line)
    words += [f"{name}={host[name]}" for name in BOOT if name in host]
    words = list(dict.fromkeys(words))
    if "irq-affinity" in host:
        # Interrupts keep no affinity over a reboot, but the kernel's default lasts.
        words.append(f"irqaffinity={format_cpus(cpus.others)}")
    if words:
        yield _command_line(tuning, words, Machine.HOST)
    if "tuned" in host:
        # First, because single knobs may override the profile.
        yield from _own_profile(host["tuned"], cpus)
        yield _tuned(host["tuned"], Machine.HOST)
    if settings := {_SYSCTL[name]: host[name] for name in _SYSCTL if name in host}:
        yield _sysctl(tuning, settings)
    files = {_SYSFS[name]: host[name] for name in _SYSFS if name in host}
    if "workqueues" in host:
        mask = _mask(cpus.others)
        files["/sys/devices/virtual/workqueue/cpumask"] = mask
        files["/sys/devices/virtual/workqueue/*/cpumask"] = mask
    if files:
        yield _written_at_boot(tuning, files, Machine.HOST)
    if _HALT_POLL in host:
        yield Step(
            title=f"Load the module kvm with halt_poll_ns={host[_HALT_POLL]}",
            machine=Machine.HOST,
            in_force=InForce.HOST_REBOOT,
            file=TextFile(
                f"/etc/modprobe.d/{_PREFIX}{tuning}.conf",
                _HEAD.format(tuning=tuning) + f"options kvm halt_poll_ns={host[_HALT_POLL]}\n",
            ),
        )
    if "c-states" in host:
        yield _idle_states(tuning, host["c-states"])
    if _LATENCY in host:
        yield _held_latency(tuning, host[_LATENCY])


def not_lasting(host: Mapping[str, str], cpus: Cpus) -> list[str]:
    """Return the knobs without a known step, or without enough data in the run."""
    unknown = {name for name in host if name not in KNOBS}
    if not cpus.online:
        unknown |= {"workqueues", "irq-affinity"}
    for name, values in (("c-states", r"all|\d+"), (_LATENCY, r"\d+")):
        if name in host and not re.fullmatch(values, host[name]):
            unknown.add(name)
    return [name for name in host if name in unknown]


def guest_steps(tuning: str, guest: RecordedGuest, words: Sequence[str]) -> Iterator[Step]:
    """Yield the steps for a tuning's settings inside the guest; `words` are those of its kernel's
    command line."""
    if words:
        yield _command_line(tuning, words, Machine.GUEST)
    if guest.tuned:
        yield _tuned(guest.tuned, Machine.GUEST)
    if guest.elevator:
        yield Step(
            title=f"Set the I/O scheduler of its disks to '{guest.elevator}'",
            machine=Machine.GUEST,
            in_force=InForce.AT_ONCE,
            file=TextFile(
                f"/etc/udev/rules.d/{_PREFIX}{tuning}.rules",
                _HEAD.format(tuning=tuning)
                + 'ACTION=="add|change", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", '
                + f'ATTR{{queue/scheduler}}="{guest.elevator}"\n',
            ),
            commands=(
                Command(argv=("udevadm", "control", "--reload")),
                Command(argv=("udevadm", "trigger", "--subsystem-match=block")),
            ),
        )
    if guest.sysfs:
        yield _written_at_boot(tuning, guest.sysfs, Machine.GUEST)


def _command_line(tuning: str, words: Sequence[str], machine: Machine) -> Step:
    """Set it through GRUB as Debian and Ubuntu configure it; elsewhere a note names grubby."""
    line = " ".join(words)
    return Step(
        title=f"Boot the {machine}'s kernel with '{line}'",
        machine=machine,
        in_force=InForce.HOST_REBOOT if machine is Machine.HOST else InForce.GUEST_REBOOT,
        file=TextFile(
            f"/etc/default/grub.d/{_PREFIX}{tuning}.cfg",
            _HEAD.format(tuning=tuning)
            + f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {line}"\n',
        ),
        commands=(Command(argv=("update-grub",)),),
    )


def _sysctl(tuning: str, settings: Mapping[str, str]) -> Step:
    path = f"/etc/sysctl.d/{_PREFIX}{tuning}.conf"
    lines = [f"{name} = {value}\n" for name, value in settings.items()]
    return Step(
        title="Set " + ", ".join(f"{name} = {value}" for name, value in settings.items()),
        machine=Machine.HOST,
        in_force=InForce.AT_ONCE,
        file=TextFile(path, _HEAD.format(tuning=tuning) + "".join(lines)),
        commands=(Command(argv=("sysctl", "--load", path)),),
    )


def _own_profile(profile: str, cpus: Cpus) -> Iterator[Step]:
    """Install a profile of labctl's own where tuned looks for it."""
    try:
        # For a name that leads elsewhere Jinja also reports that there is none.
        template = lab_template_environment("tuned", escapes=False).get_template(
            f"{profile}/tuned.conf.j2"
        )
    except TemplateNotFound:
        return
    text = template.render(not_isolated_mask=_mask(cpus.others))
    yield Step(
        title=f"Install labctl's profile '{profile}' for tuned",
        machine=Machine.HOST,
        in_force=InForce.AT_ONCE,
        file=TextFile(f"/etc/tuned/{profile}/tuned.conf", text.rstrip() + "\n"),
        commands=(Command(argv=("sh", "-c", _LINK_PROFILE.format(profile=quote(profile)))),),
    )


_LINK_PROFILE = (
    "[ ! -d /etc/tuned/profiles ] || ln -sfnr /etc/tuned/{profile} /etc/tuned/profiles/{profile}"
)
"""tuned 2.25 (Debian 13) looks for profiles in /etc/tuned/profiles, older ones in /etc/tuned."""


def _idle_states(tuning: str, value: str) -> Step:
    """cpupower-idle-set(1): -D disables states with a latency of that many microseconds or more."""
    action = "--enable-all" if value == "all" else f"--disable-by-latency {int(value) + 1}"
    return _service(
        title="Allow all idle states" if value == "all" else f"Allow idle states up to {value} µs",
        tuning=tuning,
        unit=f"labctl-{tuning}.service",
        service="Type=oneshot\nRemainAfterExit=yes\n"
        f"ExecStart=/usr/bin/cpupower idle-set {action}\n",
    )


def _held_latency(tuning: str, value: str) -> Step:
    """Hold the limit while the service runs: the kernel keeps it while the device is open. As text
    it is hexadecimal, and longer than the four bytes that count as a number
    (kernel/power/qos.c)."""
    hold = f"exec 3>/dev/cpu_dma_latency && echo 0x{int(value):08x} >&3 && exec sleep infinity"
    return _service(
        title=f"Limit the wake-up latency of idle CPUs to {value} µs",
        tuning=tuning,
        # Apart from the idle states' unit: one tuning may set both.
        unit=f"labctl-{tuning}-latency.service",
        service=f"ExecStart=/bin/sh -c '{hold}'\n",
    )


def _service(*, title: str, tuning: str, unit: str, service: str) -> Step:
    return Step(
        title=title,
        machine=Machine.HOST,
        in_force=InForce.AT_ONCE,
        file=TextFile(
            f"/etc/systemd/system/{unit}",
            _HEAD.format(tuning=tuning)
            + f"[Service]\n{service}[Install]\nWantedBy=multi-user.target\n",
        ),
        commands=(
            Command(argv=("systemctl", "daemon-reload")),
            Command(argv=("systemctl", "enable", unit)),
            Command(argv=("systemctl", "restart", unit)),
        ),
    )


def _mask(cpus: CpuSet) -> str:
    """Return a mask in the kernel's format: hexadecimal, a comma before each 32 bits."""
    bits = sum(1 << cpu for cpu in cpus)
    words: list[int] = []
    while bits or not words:
        words.append(bits & 0xFFFFFFFF)
        bits >>= 32
    first, *rest = reversed(words)
    return ",".join([f"{first:x}", *(f"{word:08x}" for word in rest)])


def _tuned(profile: str, machine: Machine) -> Step:
    return Step(
        title=f"Switch tuned to the profile '{profile}'",
        machine=machine,
        in_force=InForce.AT_ONCE,
        commands=(
            Command(
                argv=("tuned-adm", "profile", profile),
                unless=Done(
                    ("tuned-adm", "active"), f"Current active profile: {profile}", whole_line=True
                ),
            ),
        ),
    )


def _written_at_boot(tuning: str, files: Mapping[str, str], machine: Machine) -> Step:
    """Return files of /sys, which systemd-tmpfiles(8) writes at each boot (`w-`: a failed write,
    because a kernel lacks the file or has the value anyway, does not stop the others)."""
    path = f"/etc/tmpfiles.d/{_PREFIX}{tuning}.conf"
    lines = [f"w- {name} - - - - {value}\n" for name, value in files.items()]
    return Step(
        title="Write to files in /sys, now and at each boot",
        machine=machine,
        in_force=InForce.AT_ONCE,
        file=TextFile(path, _HEAD.format(tuning=tuning) + "".join(lines)),
        commands=(Command(argv=("systemd-tmpfiles", "--create", path)),),
    )
