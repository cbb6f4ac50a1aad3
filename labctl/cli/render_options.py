"""Request a tuning's domain XML without a run, with the options that shape it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.cli.common import Quantity

if TYPE_CHECKING:
    from collections.abc import Callable

    from labctl.base.tuning import Tuning
    from labctl.domain.render import DomainRequest
    from labctl.host.topology import Topology

_PLACE = Path("/var/lib/labctl")
MEMORY_MIB = 1024
"""Memory of a guest that is only rendered."""
_UUID = "00000000-0000-4000-8000-000000000000"


def host_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option(
            "--accel",
            type=click.Choice(["kvm", "tcg"]),
            help="Accelerator. Default: what the tuning needs, else kvm where /dev/kvm exists, "
            "else tcg. That is a guess, which a sweep checks by booting a kernel.",
        ),
        click.option("--vcpus", type=click.IntRange(1), help="vCPUs. Default: from the topology."),
        click.option(
            *("--memory", "--memory-mib", "memory_mib"),
            type=Quantity("size", is_whole=True, least=64),
            default=MEMORY_MIB,
            show_default=True,
            help="Memory (2G; a number: MiB).",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def machine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that `topology_of` takes."""
    options = (
        click.option(
            "--sysfs",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Plan for the machine of which this is a copy of /sys.",
        ),
        click.option(
            "--cpus",
            metavar="LIST",
            help="Plan as if labctl might use these CPUs only ('0-7,16-23').",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def topology_of(sysfs: Path | None, cpus: str | None) -> Topology:
    """Return this host's topology, or that of a copy of /sys. Raises UsageError where it is none,
    or where the CPUs aren't numbers."""
    from labctl.base.cpus import parse_cpus
    from labctl.base.errors import UsageError
    from labctl.host.topology import SYS, read_topology

    if sysfs is None and cpus is None:
        return read_topology()
    try:
        allowed = None if cpus is None else parse_cpus(cpus)
    except ValueError as error:
        raise UsageError(f"--cpus: {error}", hint="Give numbers and ranges: '0-7,16-23'.") from None
    if sysfs is not None and not (sysfs / "devices/system/cpu").is_dir():
        raise UsageError(
            f"{sysfs} is not a copy of a machine's /sys: it has no folder devices/system/cpu",
            hint="docs/pin-plan.md says how to make one.",
        )
    return read_topology(sysfs or SYS, allowed=allowed)


def domain_request(
    tuning: Tuning, topology: Topology, accel: str | None, vcpus: int, memory_mib: int
) -> DomainRequest:
    """Return a tuning's domain for this host, with paths that stand for those of a run. Raises
    UsageError for a guest that is too large for it."""
    from labctl.domain.pinning.pin_plan import pin_plan
    from labctl.domain.render import DomainRequest
    from labctl.run.planning.fitting import check_memory, host_memory_bytes, rt_runtime_us

    check_memory(memory_mib, host_memory_bytes())

    running = _PLACE / "running"
    return DomainRequest(
        name="labctl-guest",
        uuid=_UUID,
        tuning=tuning,
        plan=pin_plan(topology, vcpus, tuning.iothreads, tuning.pin.strategy),
        accelerator=accel or tuning.requires.accelerator or likely_accelerator(),
        vcpus=vcpus,
        memory_mib=memory_mib,
        kernel=_PLACE / "images/vmlinuz",
        initrd=_PLACE / "images/initrd.img",
        cmdline=" ".join(["root=/dev/vda console=ttyS0", *tuning.guest.command_line]),
        root_disk=running / "root.qcow2",
        data_disks=(running / f"data.{tuning.disk.format}",),
        seed_disk=None,
        console_log=running / "console.log",
        runner_socket=running / "runner.sock",
        agent_socket=running / "agent.sock",
        rt_runtime_us=rt_runtime_us(tuning),
    )


def likely_accelerator() -> str:
    """Return a guess: a sweep boots a kernel to know."""
    return "kvm" if Path("/dev/kvm").exists() else "tcg"
