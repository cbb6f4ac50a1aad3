"""Describe the virtual machine that `labctl advise` rolls out to: its size, and its pin plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from labctl.base.errors import LabctlError, UsageError

if TYPE_CHECKING:
    from labctl.host.topology import Topology
    from labctl.rollout.fitted import Pins, VirtualMachine
    from labctl.store.run_folder import LoadedRun

SYSTEM = "qemu:///system"

_FACTS = ("cpu_model", "cpus_online", "topology", "numa_nodes")
"""Facts of a host that its pin plans follow from."""


def rollout_target(
    run: LoadedRun, domain: str | None, connect: str | None, vcpus: int | None
) -> tuple[VirtualMachine | None, str | None]:
    """Return the virtual machine that the options name, and the domain's name for the commands.

    The size comes from --vcpus, else from the domain: of a file, or defined at `connect`. A name
    that this host's libvirt doesn't know stays a name: the domain may be on another host. Raises
    UsageError where --vcpus asks for pins of a host that isn't this one, or --connect for a domain
    that isn't there.
    """
    from labctl.run.planning.own_domain import domain_asked_for, is_file

    name, memory_mib, xml = domain, None, None
    if domain is not None and (vcpus is None or is_file(domain)):
        try:
            own = domain_asked_for(domain, connect or SYSTEM)
        except LabctlError:
            if connect is not None or is_file(domain):
                raise
        else:
            name, memory_mib, xml = own.name, own.memory_mib, own.xml
            vcpus = own.vcpus if vcpus is None else vcpus
    if vcpus is None:
        return None, name
    here = other_host(run)
    if here and memory_mib is None:
        raise UsageError(
            f"--vcpus plans pins for this host ({here}), and run {run.name} measured another one",
            hint="Run it on the host where the virtual machine is; a copy of the run's folder "
            "will do.",
        )
    return _machine(vcpus, memory_mib, xml, here), name


def other_host(run: LoadedRun) -> str:
    """Return this host in words where it isn't the one that was measured, else ""."""
    from labctl.host.facts import read_host_files
    from labctl.host.machine_facts import machine_facts

    now, then = machine_facts(read_host_files), run.run.host
    if all(now.get(fact) == then.get(fact) for fact in _FACTS):
        return ""
    return f"{now.get('cpu_model')}, CPUs {now.get('cpus_online')}"


def _machine(vcpus: int, memory_mib: int | None, xml: str | None, here: str) -> VirtualMachine:
    from labctl.domain.pinning.pin_plan import pin_plan
    from labctl.host.topology import read_rt_runtime_us, read_topology
    from labctl.rollout.fitted import VirtualMachine

    topology = read_topology()
    host = pin_plan(topology, vcpus, 1).host
    return VirtualMachine(
        vcpus=vcpus,
        memory_mib=memory_mib,
        pins=_planned(topology, vcpus),
        host=replace(host, rt_runtime_us=read_rt_runtime_us()),
        xml=xml,
        here=here,
    )


def _planned(topology: Topology, vcpus: int) -> Callable[[str | None, int], Pins]:
    from labctl.base.tuning import Strategy
    from labctl.domain.pinning.pin_plan import pin_plan
    from labctl.rollout.fitted import Pins

    def pins(strategy: str | None, iothreads: int) -> Pins:
        if strategy is not None and strategy not in list(Strategy):
            raise UsageError(
                f"the run says that its tuning pins by '{strategy[:60]}', which is no strategy",
                hint=f"Allowed: {', '.join(Strategy)}. The run's folder was changed or damaged.",
            )
        plan = pin_plan(topology, vcpus, iothreads, Strategy(strategy or Strategy.COMPACT))
        return Pins(
            vcpus=plan.vcpus,
            nodes=frozenset(plan.vcpu_nodes),
            guest_topology=plan.guest_topology,
            emulator=plan.emulator,
            iothreads=plan.iothreads,
            online=plan.online,
        )

    return pins
