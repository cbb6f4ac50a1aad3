"""Render domain XML from `templates/domain.xml.j2`: one value in, one text out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from jinja2 import Environment
from jinja2.exceptions import TemplateError

from labctl.base.cpus import format_cpus
from labctl.base.errors import UsageError
from labctl.base.paths import data_folders, mac_of
from labctl.base.placement import refuse, xml_problems
from labctl.base.templates import lab_template_environment
from labctl.base.tuning import Disk, Kind, Policy, Sched, Tuning
from labctl.domain.guestcpu import PAGE_KIB, cpu_element, memory_nodes
from labctl.domain.pinning.pin_plan import PinPlan, placement

RUNNER_PORT = "org.labctl.runner.0"
AGENT_PORT = "org.qemu.guest_agent.0"

DOMAIN_TYPES = {"kvm": "kvm", "tcg": "qemu"}
"""Names of accelerators in libvirt."""

# Characters that XML 1.0 cannot hold, not even escaped.
_NOT_XML = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainRequest:
    """Request a guest: `accelerator` is 'kvm' or 'tcg'; paths are the host's.

    `root_disk` is a qcow2 overlay (vda), `data_disks` in the tuning's format (from vdb on, or from
    sda on SCSI), `seed_disk` cloud-init's read-only `cidata` image, the last. In the guest they are
    /dev/disk/by-id/virtio-labctl-{root,data,data2,seed}, and `guest_data_paths` on either bus.
    """

    name: str
    uuid: str
    tuning: Tuning
    plan: PinPlan
    accelerator: str
    disabled_features: tuple[str, ...] = ()
    """CPU features that host-passthrough must leave out to start on this host."""
    vcpus: int
    memory_mib: int
    kernel: Path
    initrd: Path | None
    cmdline: str
    root_disk: Path
    data_disks: Sequence[Path]
    seed_disk: Path | None
    console_log: Path
    runner_socket: Path
    agent_socket: Path
    tap: str | None = None
    """The tap device that its network card is plugged into; None: a network of QEMU's own."""

    rt_runtime_us: int | None = None
    """sched_rt_runtime_us while the guest runs; None: the kernel's default."""

    keeps_owners: bool = False
    """True if libvirt must not change the root disk's owner: it would permanently change that of
    all files below the overlay as well."""

    @property
    def mac(self) -> str:
        """Return a MAC address that is the domain's own: a restored guest must keep its earlier
        one.

        52:54:00 is the prefix that QEMU and libvirt use.
        """
        return mac_of(self.uuid)


def guest_data_paths(disk: Disk, count: int) -> tuple[str, ...]:
    """Return the paths in a guest of so many such data disks: udev's names of their serials on
    their bus."""
    bus = {"virtio": "virtio-", "scsi": "scsi-0QEMU_QEMU_HARDDISK_"}[disk.bus]
    serials = ("labctl-data", *(f"labctl-data{number}" for number in range(2, count + 1)))
    return tuple(f"/dev/disk/by-id/{bus}{serial}" for serial in serials)


def render(request: DomainRequest) -> str:
    """Return the domain's XML, which passes `base/placement.py` on the plan's host.

    Raises UsageError as `compared_xml` does, and for pins and policies that would hang the guest,
    starve the host or keep libvirt from starting it.
    """
    xml = compared_xml(request)
    host = request.plan.host
    if request.rt_runtime_us is not None:
        host = replace(host, rt_runtime_us=request.rt_runtime_us)
    refuse(request.tuning.name, xml_problems(xml, host))
    return xml


def compared_xml(request: DomainRequest) -> str:
    """Return the domain's XML unchecked: only for comparisons, never for libvirt or a user.

    Raises UsageError for a native tuning, an unknown accelerator, a plan for another number of
    vCPUs, a memory policy that the plan's nodes do not support, text that XML cannot hold, and a
    template that does not render.
    """
    tuning = request.tuning
    _check(request)
    confined = request.plan.usable != request.plan.online
    scheds = {
        "vcpu": _explicit(tuning.vcpu_sched),
        "iothread": _explicit(tuning.iothread_sched),
        "emulator": _explicit(tuning.emulator_sched),
    }
    pins = placement(tuning, request.plan)
    kvm_features = {key.replace("_", "-"): on for key, on in asdict(tuning.kvm).items()}
    hyperv = {key: value for key, value in asdict(tuning.hyperv).items() if value is not None}
    try:
        return (
            _environment(tuple(data_folders("templates")))
            .get_template("domain.xml.j2")
            .render(
                request=request,
                tuning=tuning,
                domain_type=DOMAIN_TYPES[request.accelerator],
                # libvirt gives a free thread every CPU of the host, not those of its own cpuset.
                confined_to=request.plan.usable if confined else None,
                pins=pins,
                scheds=scheds,
                tuned=pins.vcpus or pins.emulator or pins.iothreads or any(scheds.values()),
                cpu=cpu_element(
                    tuning,
                    request.plan,
                    accelerator=request.accelerator,
                    disabled_features=request.disabled_features,
                    memory_mib=request.memory_mib,
                ),
                kvm_features={key: on for key, on in kvm_features.items() if on is not None},
                hyperv=hyperv,
                page_kib=PAGE_KIB.get(tuning.memory.hugepages or ""),
                memory_nodes=memory_nodes(tuning, request.plan),
            )
        )
    except TemplateError as error:
        raise UsageError(f"the domain template does not render: {error}") from error


def _explicit(sched: Sched | None) -> Sched | None:
    # SCHED_OTHER is the default, and libvirt has no word for it.
    return None if sched is None or sched.policy is Policy.OTHER else sched


def _check(request: DomainRequest) -> None:
    name = request.tuning.name
    if request.tuning.kind is Kind.NATIVE:
        raise UsageError(
            f"tuning '{name}' is native: it has no guest, so no domain XML",
            hint="'labctl tuning list' shows which tunings have a guest.",
        )
    if request.accelerator not in DOMAIN_TYPES:
        raise UsageError(
            f"no accelerator '{request.accelerator}'", hint=f"Allowed: {', '.join(DOMAIN_TYPES)}."
        )
    if request.vcpus != len(request.plan.vcpus):
        raise UsageError(
            f"the guest has {request.vcpus} vCPUs and the pin plan places {len(request.plan.vcpus)}"
        )
    paths = map(str, (request.root_disk, *request.data_disks))
    for text in (request.name, request.cmdline, *paths):
        if found := _NOT_XML.search(text):
            raise UsageError(f"{text!r} holds {found.group()!r}, which XML cannot hold")


@cache
def _environment(folders: tuple[Path, ...]) -> Environment:
    """Cached for these folders, because compiling a template costs more than rendering it; a
    changed file is read again."""
    environment = lab_template_environment("", escapes=True)
    environment.filters["cpus"] = format_cpus
    return environment
