"""List every step that applies a tuning to the user's own domain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labctl.analysis.answer.view import View
from labctl.base.cpus import CpuSet, parse_cpus
from labctl.base.errors import UsageError
from labctl.base.placement import RT_RUNTIME_US, HostCpus, PinProblem, named_cpus, xml_problems
from labctl.base.tuning import (
    DISK,
    ELEVATOR,
    KERNEL_WORD,
    KNOB_VALUES,
    PLAN,
    SYSFS_PATH,
    SYSFS_VALUE,
    Values,
    named,
)
from labctl.base.wording import counted
from labctl.base.xmldiff import XmlChange
from labctl.rollout.domain_edits import (
    added_words,
    changed_devices,
    domain_changes,
    domain_text,
    edits,
    fragment,
    live_pins,
    new_format,
)
from labctl.rollout.fitted import UnfitError, VirtualMachine, fitted, iothreads_of
from labctl.rollout.host_settings import BOOT, Cpus, guest_steps, host_steps, not_lasting
from labctl.rollout.settings import Setting, named_settings
from labctl.rollout.steps import Command, Machine, Step
from labctl.store.records.run_record import RecordedTuning

# Check a run's record of a tuning against the grammar of each setting before a command, a file or a
# script is made from it: run folders come from anywhere, and root executes the advice.


_SHOWN = 60
"""Characters of a value that an error shows."""

_CONDITION = r"(\[@[a-z]{1,20}='[A-Za-z0-9,-]{1,50}'\])?"
_STEPS = rf"(/@?[A-Za-z0-9-]{{1,40}}{_CONDITION}){{0,6}}"
_DOMAIN = named(
    r"(clock/timer|cpu|cputune|devices/memballoon|features/hyperv|features/kvm|iothreads"
    rf"|memoryBacking|numatune){_CONDITION}{_STEPS}",
    "a part of a domain that tunings change",
)
"""Elements that name no file or program (`emulator`, `loader`, a device's source are not
included)."""

_DEVICE = named(
    rf"@model|(driver|model|target){_CONDITION}{_STEPS}", "a part of a device that tunings change"
)
_XML_VALUE = named(r"[A-Za-z0-9_.,:+ -]{0,200}", "letters, digits, spaces and _.,:+-")


def check_settings(run: str, tuning: str, settings: RecordedTuning) -> None:
    """Raise UsageError naming the first setting of host or guest with an invalid value."""
    _refuse_first(run, tuning, _wrong_settings(settings))


def check_domains(run: str, tuning: str, before: str, after: str) -> None:
    """Raise UsageError naming the first difference of two domains that no tuning makes."""
    _refuse_first(run, tuning, _wrong_changes(before, after))


def _refuse_first(run: str, tuning: str, wrong: Iterator[tuple[str, Any, Values]]) -> None:
    for key, value, takes in wrong:
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
        raise UsageError(
            f"run {run} says that tuning '{tuning}' sets {key} to {shown}, expected "
            f"{takes.text}: it is not used",
            hint="The run's folder was changed or damaged. Copy it again from the original "
            "host, or measure the tuning here.",
        )


def _wrong_settings(settings: RecordedTuning) -> Iterator[tuple[str, Any, Values]]:
    def wrong(key: str, values: Iterable[Any], takes: Values) -> Iterator[tuple[str, Any, Values]]:
        return ((key, value, takes) for value in values if not takes.accepts(str(value)))

    host, guest = settings.host, settings.guest
    for name, value in host.items():
        if value is not None and name in BOOT:
            yield from wrong(f"'host.{name}'", [f"{name}={value}"], KERNEL_WORD)
        elif value is not None and name in KNOB_VALUES:
            yield from wrong(f"'host.{name}'", [value], KNOB_VALUES[name])
    line = "'requires.command_line'"
    yield from wrong(line, settings.requires.command_line, KERNEL_WORD)
    for name, value, takes in (
        ("tuned", guest.tuned, KNOB_VALUES["tuned"]),
        ("elevator", guest.elevator, ELEVATOR),
    ):
        if value:
            yield from wrong(f"'guest.{name}'", [value], takes)
    for path, value in guest.sysfs.items():
        yield from wrong("a path of 'guest.sysfs'", [path], SYSFS_PATH)
        yield from wrong(f"'guest.sysfs' {path}", [value], SYSFS_VALUE)


def _wrong_changes(before: str, after: str) -> Iterator[tuple[str, Any, Values]]:
    for change in domain_changes(before, after):
        if not _DOMAIN.accepts(change.path):
            yield "a part of the domain", change.path, _DOMAIN
        if not _XML_VALUE.accepts(change.after or ""):
            yield change.path, change.after, _XML_VALUE
    for device in changed_devices(before, after):
        if device.target and not DISK.accepts(device.target):
            yield f"a target of {device.tag}", device.target, DISK
        for change in device.changes:
            if device.tag != "controller" and not _DEVICE.accepts(change.path):
                yield f"a part of a {device.tag}", change.path, _DEVICE
            if not _XML_VALUE.accepts(change.after or ""):
                yield f"{device.tag}/{change.path}", change.after, _XML_VALUE
        for element in device.after.iter("target"):
            for name in ("dev", "bus"):
                if not re.fullmatch(r"[a-z0-9]{0,16}", element.get(name) or ""):
                    yield f"a {device.tag}'s target", element.get(name), DISK
    for word in added_words(before, after):
        if not KERNEL_WORD.accepts(word):
            yield "the guest's kernel command line", word, KERNEL_WORD


DEFAULT_DISK = "vda"
_OUTSIDE_XML = {
    "vcpu_slice_ms": "libvirt cannot set the vCPUs' time slice of {value} ms. After each start of "
    "the guest, run this as root for every QEMU thread named 'CPU N/KVM': 'chrt --other "
    "--sched-runtime {ns} --pid 0 TID' (util-linux 2.41, Linux 6.12).",
    "nice": "libvirt has no option for the nice value of QEMU's threads. After each start of the "
    "guest, do this as root: 'ls /proc/PID/task | xargs renice -n {value} -p', PID being QEMU's.",
    "pin.vhost": "libvirt has no option for the CPUs of vhost's workers. After each start of the "
    "guest, do this as root for each thread that is called 'vhost-PID', PID being QEMU's: 'taskset "
    "--cpu-list --pid {value} TID'. They are in /proc/PID/task, before Linux 6.4 processes of "
    "their own.",
    "pin.partition": "libvirt has no option for an isolated partition of the vCPUs' CPUs (cgroup "
    "v2, Linux 6.7). After each start of the guest, do this as root: write the CPUs of all its "
    "vCPUs to cpuset.cpus.exclusive of each folder from /sys/fs/cgroup/machine.slice down to the "
    "guest's 'libvirt'; a folder that several guests share gets the CPUs of all of them. Then, in "
    "each 'vcpuN' below that: 'cat cpuset.cpus >cpuset.cpus.exclusive; echo {value} "
    ">cpuset.cpus.partition; cat cpuset.cpus.partition'. It must print '{value}'.",
    "cpu_weight": "Give the domain the CPU weight {value} with 'virsh schedinfo DOMAIN --live "
    "--config --set cpu_shares={value}' on a host with cgroup v2; with cgroup v1 it is {shares}, "
    "the default being 1024. It counts against guests of the same partition ('<resource>').",
}
"""Settings that a domain's XML cannot hold, to the note of how to make them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSteps:
    """Hold the steps of a tuning. `host`: knobs of the host that take effect without a reboot, with
    their values; `cpus`: the CPUs for them. `fragment`: the domain's changed elements. `live`:
    commands that pin a running domain's threads without a restart, in part. `vcpus`: the domain's
    required number; None: any number. `disk`: the measured guest's name of the changed disk.
    `notes`: cautions. `xml`: the measured guest's domain with the tuning, with the machine's pins;
    None if the run has none. `refused`: why it must not be applied to that machine, with the
    remedy; it then has no steps. `settings`: the same by a tuning's keys."""

    steps: tuple[Step, ...]
    host: tuple[tuple[str, str], ...]
    cpus: Cpus = field(compare=False)
    live: tuple[Command, ...]
    fragment: str
    changes: tuple[XmlChange, ...]
    vcpus: int | None
    disk: str
    notes: tuple[str, ...]
    xml: str | None = field(default=None, compare=False)
    refused: tuple[PinProblem, ...] = ()
    settings: tuple[Setting, ...] = field(default=(), compare=False)

    @property
    def why_refused(self) -> str:
        """Return why it must not be applied, as a clause; "" if it may be."""
        return "; ".join(problem.text for problem in self.refused)

    @property
    def edits_domain(self) -> bool:
        return any(command.edits_domain for step in self.steps for command in step.commands)

    def at(self, machine: Machine) -> list[Step]:
        return [step for step in self.steps if step.machine is machine]


def rollout_steps(
    view: View, tuning: str, folder: Path, machine: VirtualMachine | None = None
) -> RolloutSteps:
    """Return how to apply `tuning`, as far as the run in `folder` has recorded it.

    If `machine` is given, pins and numbers of vCPUs fit that one, else the measured guest. Raises
    UsageError if the run's record of it is impossible for a tuning.
    """
    before, after = (domain_text(view.run, name, folder) for name in (view.baseline, tuning))
    recorded = view.run.run.tunings
    settings = recorded.get(tuning) or RecordedTuning()
    former = recorded.get(view.baseline) or RecordedTuning()
    check_settings(view.run.name, tuning, settings)
    unfit = ""
    if before is not None and after is not None:
        check_domains(view.run.name, tuning, before, after)
        if machine is not None:
            try:
                before, after = _fitted(view, machine, (before, former), (after, settings))
            except UnfitError as why:
                machine, unfit = None, str(why)
    host = _added(settings.host, former.host)
    cpus = _cpus(view, settings, machine)
    steps = list(host_steps(tuning, host, settings.requires.command_line, cpus))
    notes = list(_not_recorded(before, after, is_recorded=tuning in recorded))
    if program := host.pop("program", None):
        notes.append(
            f"A program ran on the host during the measurement ({program}): install it as a "
            "service (systemd.service(5))."
        )
    notes += [
        f"labctl cannot make the host setting '{name}: {host[name]}' permanent; 'labctl "
        f"host tune {tuning}' sets it until it is restored."
        for name in not_lasting(host, cpus)
    ]
    vhost = _vhost_cpus(view, settings, machine)
    all_settings = named_settings(before, after, settings, former, host=host, vhost=vhost)
    outside = {one.key: one for one in all_settings if one.key in _OUTSIDE_XML}
    notes += [
        text.format(value=outside[key].value, **outside[key].words)
        for key, text in _OUTSIDE_XML.items()
        if key in outside
    ]
    runtime_us = host.get("rt-runtime-us")
    refused = _refused(view, settings, after, machine, runtime_us)
    if refused:
        return RolloutSteps(
            steps=(),
            host=(),
            cpus=cpus,
            live=(),
            fragment="",
            changes=(),
            vcpus=None,
            disk=DEFAULT_DISK,
            notes=(),
            refused=refused,
        )
    changed: list[XmlChange] = []
    disk = DEFAULT_DISK
    if before is not None and after is not None:
        steps += edits(before, after)
        changed = domain_changes(before, after)
        devices = changed_devices(before, after)
        disks = [device.target for device in devices if device.tag == "disk"]
        disk = disks[-1] if disks else DEFAULT_DISK
        notes += _notes(view, changed, disks, any(d.tag == "interface" for d in devices), machine)
        if unfit:
            notes.append(f"The steps are not fitted to your virtual machine: {unfit}.")
        if image := new_format(before, after):
            notes.append(
                f"Its disk's image is in the format {image}, which these commands do not "
                f"create: use 'qemu-img convert -O {image}', then 'virt-xml --edit --disk "
                f"driver.type={image}'."
            )
        steps += guest_steps(tuning, settings.guest, added_words(before, after))
    if any(step.file is not None and "/grub.d/" in step.file.path for step in steps):
        notes.append(
            "The kernel command line is set the way of Debian and Ubuntu; on Fedora and "
            "RHEL use 'grubby --update-kernel=ALL --args=…'."
        )
    return RolloutSteps(
        steps=tuple(steps),
        host=tuple((name, value) for name, value in host.items() if name not in BOOT),
        cpus=cpus,
        live=tuple(live_pins(before, after)) if before and after else (),
        fragment=fragment(before, after) if before and after else "",
        changes=tuple(changed),
        vcpus=_vcpus(view, machine) if any(_by_vcpu(change.path) for change in changed) else None,
        disk=disk,
        notes=tuple(notes),
        xml=after,
        settings=all_settings,
    )


def _refused(
    view: View,
    settings: RecordedTuning,
    xml: str | None,
    machine: VirtualMachine | None,
    runtime_us: str | None,
) -> tuple[PinProblem, ...]:
    """Return why the tuning's domain must not run: the refusals of a sweep there. On the machine's
    host, else on the measured one as the run recorded it, because run folders come from anywhere.
    `runtime_us`: sched_rt_runtime_us if the tuning sets it."""
    if xml is None:
        return ()
    if machine is None:
        host, vcpus, below = _measured_host(view, settings, xml), view.run.run.vcpus, None
    else:
        host, vcpus, below = machine.host, machine.vcpus, machine.xml
    if runtime_us is not None and runtime_us.removeprefix("-").isdecimal():
        host = replace(host, rt_runtime_us=int(runtime_us))
    found = xml_problems(xml, host, below=below, vcpus=vcpus)
    return tuple(problem for problem in found if problem.refused)


def _measured_host(view: View, settings: RecordedTuning, xml: str) -> HostCpus:
    """Return the CPUs of the measured host; if the run has not recorded them, those that the
    domain's pins name."""
    plan, facts = view.run.run.pins_of(settings.pin.strategy).data, view.run.run.host
    online = _recorded_cpus(plan.online) or _recorded_cpus(facts.get("cpus_online"))
    online = online or named_cpus(xml) or frozenset({0})
    usable = (_recorded_cpus(plan.usable) or online) & online
    isolated = _recorded_cpus(facts.get("cpus_isolated")) & online
    runtime_us = str(facts.get("sched_rt_runtime_us", ""))
    return HostCpus(
        present=online,
        online=online,
        usable=usable,
        pinnable=online,
        isolated=isolated,
        housekeeping=_recorded_cpus(plan.housekeeping) or frozenset({min(online)}),
        memory_nodes=None,
        rt_runtime_us=int(runtime_us) if runtime_us.isdecimal() else RT_RUNTIME_US,
    )


def _recorded_cpus(text: object) -> CpuSet:
    try:
        return parse_cpus(str(text or ""))
    except ValueError:
        return frozenset()


def _added(host: Mapping[str, object], former: Mapping[str, object]) -> dict[str, str]:
    """Return knobs that the tuning sets differently from baseline."""
    return {
        name: str(value)
        for name, value in host.items()
        if value is not None and former.get(name) != value
    }


def _vcpus(view: View, machine: VirtualMachine | None) -> int | None:
    return view.run.run.vcpus if machine is None else machine.vcpus


def _fitted(
    view: View, machine: VirtualMachine, *domains: tuple[str, RecordedTuning]
) -> tuple[str, ...]:
    """Return the domains with as many vCPUs as the machine has. Raises UnfitError."""
    measured = view.run.run.vcpus
    if measured is None:
        raise UnfitError("the run did not record how many vCPUs it measured")
    return tuple(
        fitted(
            xml,
            measured,
            settings.pin,
            machine.pins(settings.pin.strategy, max(1, iothreads_of(xml))),
        )
        for xml, settings in domains
    )


def _cpus(view: View, settings: RecordedTuning, machine: VirtualMachine | None) -> Cpus:
    """Return the CPUs of the pin plan for the machine; without one, of the plan that the tuning
    used, or of the run's only one."""
    if machine is not None:
        pins = machine.pins(settings.pin.strategy, 1)
        return Cpus(pins.online, frozenset(pins.vcpus))
    plan = view.run.run.pins_of(settings.pin.strategy).data
    return Cpus(_recorded_cpus(plan.online), frozenset(plan.vcpus.values()))


def _vhost_cpus(view: View, settings: RecordedTuning, machine: VirtualMachine | None) -> CpuSet:
    """Return the CPUs that vhost's workers are pinned to, by a plan for the machine or as the run
    has recorded them; none if they are free."""
    pin = settings.pin
    if pin.vhost != PLAN:
        return _recorded_cpus(pin.vhost)
    if machine is not None:
        return machine.pins(pin.strategy, 1).emulator
    return _recorded_cpus(view.run.run.pins_of(pin.strategy).data.emulator)


def _by_vcpu(path: str) -> bool:
    return path.startswith(("cputune/vcpu", "cpu/topology", "cpu/numa"))


def _not_recorded(before: str | None, after: str | None, *, is_recorded: bool) -> Iterator[str]:
    if before is None or after is None:
        yield (
            "The run has no domain XML for this tuning and baseline, so its changes to the "
            "domain are unknown."
        )
    if not is_recorded:
        yield (
            "Its settings on the host and inside the guest are not recorded: the run was "
            "imported, or made by an older labctl."
        )


def _notes(
    view: View,
    changed: list[XmlChange],
    disks: list[str],
    network: bool,
    machine: VirtualMachine | None,
) -> Iterator[str]:
    host = view.run.run.host
    vcpus, mib = view.run.run.vcpus, view.run.run.memory_mib
    pinned = any("cpuset" in change.path or "nodeset" in change.path for change in changed)
    if pinned and machine is not None:
        yield (
            "CPU and node numbers come from a new pin plan for this host and "
            f"{counted(machine.vcpus, 'vCPU')}. For several guests: 'labctl pins --guests'."
        )
    elif pinned:
        yield (
            "CPU and node numbers come from the run's pin plan and apply to its host "
            f"({host.get('cpu_model', 'CPU not recorded')}, CPUs "
            f"{host.get('cpus_online', 'not recorded')}). For another host or guest, use "
            "'labctl pins' and measure there."
        )
    if machine is None and any(_by_vcpu(change.path) for change in changed):
        yield f"The steps fit a domain with {vcpus} vCPU(s), as measured."
    if any(change.path.startswith("cpu/numa") for change in changed):
        yield (
            f"The NUMA cells add up to the measured guest's {mib} MiB: change them to your "
            "domain's memory."
        )
    if any(change.path.startswith("memoryBacking/hugepages") for change in changed):
        yield (
            f"Huge pages for all of the guest's memory ({mib} MiB as measured) must be free "
            "before it starts: check 'grep -i huge /proc/meminfo' and raise "
            "vm.nr_hugepages."
        )
    if disks:
        yield (
            f"In the measured guest {disks[-1]} is the disk that workloads use; 'virsh "
            "domblklist' lists your domain's disks; pass --disk for the one to change."
        )
    if others := disks[:-1]:
        yield f"Its {' and '.join(others)} changed as well: see the XML."
    if network:
        yield "The first network card is changed; vhost works only with a card on a tap device."
