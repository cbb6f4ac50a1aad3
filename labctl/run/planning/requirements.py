"""Compare a tuning's requirements with this host, before anything starts."""

from __future__ import annotations

import re
import resource
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labctl.base.errors import HostError, UsageError
from labctl.base.hostfacts import is_older
from labctl.base.kernel import booted_with, is_booted_with
from labctl.base.paths import StatePaths
from labctl.base.tuning import Kind, Requires, Tuning
from labctl.domain.guestcpu import PAGE_KIB
from labctl.guest.images import Image, find
from labctl.guest.recipe import Recipe, load_recipe
from labctl.host import cgroups, cpu_weight
from labctl.host.cpu_partition import why_no_partition
from labctl.host.facts import QEMU, libvirt_version, read_host_files, tool_version
from labctl.host.own_cgroups import why_no_command_cgroup
from labctl.host.preflight import HEADROOM_BYTES, memory_available
from labctl.host.settings import knobs
from labctl.host.topology import Topology
from labctl.host.tracers import OPTIONS, has_congestion_control, has_tracer, is_built_with
from labctl.run.resources.huge_pages import KIB, MIB, free_pages
from labctl.study.study import Study
from labctl.workloads.registry import workload_of
from labctl.workloads.setting import Value
from labctl.workloads.workload import Workload

_CPUINFO = "/proc/cpuinfo"
_RELEASE = "/proc/sys/kernel/osrelease"
_STATUS = "/proc/self/status"
_CAP_SYS_RESOURCE = 24
"""Its bit in a capability set (linux/capability.h)."""

_ISOLATING = ("isolcpus", "nohz_full")
"""Words of a guest's command line that take CPUs away from the guest's own housekeeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """Name a requirement of a tuning that the host lacks, as a clause, and its remedy. `text` is
    stable over time, because it is part of the plan."""

    text: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """Hold this host's properties, as far as the given tunings need them.

    `accelerator` None: unknown until a kernel is booted. `huge_pages`: free ones by size; sizes
    that the kernel lacks are missing. `knob_problems`: by tuning, why its host settings cannot be
    set.
    """

    accelerator: str | None = None
    cpus: int
    nodes: int
    smt: bool
    vcpus: int
    guest_memory_bytes: int
    memory_bytes: int | None = None
    """Memory available to new work without swapping."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    cpu_flags: frozenset[str] = frozenset()
    huge_pages: Mapping[str, int] = field(default_factory=dict)
    command_line: tuple[str, ...] = ()
    paths: frozenset[str] = frozenset()
    programs: frozenset[str] = frozenset()
    locks_memory: bool = True
    """True if QEMU may lock all of its memory."""
    knob_problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    weight_problems: Mapping[str, str] = field(default_factory=dict)
    """Reasons by tuning why its guest cannot have the requested CPU weight."""
    partition_problem: str | None = None
    """Reason why no guest here can have a cpuset partition, if a tuning requests one."""


def read_offers(
    tunings: Iterable[Tuning],
    topology: Topology,
    *,
    vcpus: int,
    memory_mib: int,
    accelerator: str | None,
) -> Offers:
    """Return this host's properties that `tunings` need. It only reads, and only what is needed,
    because the versions of libvirt and QEMU cost a library and a process.

    Raises UsageError naming the tuning for an unknown knob of the host, or a value that it
    lacks.
    """
    tunings = list(tunings)
    requires = [tuning.requires for tuning in tunings]
    wanted_paths = {path for need in requires for path in need.paths}
    wanted_programs = {program for need in requires for program in need.programs}
    texts = read_host_files([_CPUINFO] if any(need.cpu_flags for need in requires) else [])
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", texts.get(_CPUINFO) or "", re.MULTILINE)
    nodes = {topology.cpu(number).node for number in topology.pinnable} & topology.memory_nodes
    return Offers(
        accelerator=accelerator,
        cpus=len(topology.pinnable),
        nodes=len(nodes),
        smt=any(len(core) > 1 for core in topology.cores(topology.pinnable)),
        vcpus=vcpus,
        guest_memory_bytes=memory_mib * MIB,
        memory_bytes=memory_available(),
        versions={
            name: read()
            for name, read in _VERSIONS.items()
            if any(getattr(need, name) for need in requires)
        },
        cpu_flags=frozenset(flags.group(1).split() if flags else ()),
        huge_pages={s: free for s in PAGE_KIB if (free := free_pages(s)) is not None},
        command_line=tuple(booted_with()) if any(n.command_line for n in requires) else (),
        paths=frozenset(path for path in wanted_paths if Path(path).exists()),
        programs=frozenset(name for name in wanted_programs if shutil.which(name)),
        locks_memory=_may_lock_memory(),
        knob_problems={tuning.name: _knob_problems(tuning) for tuning in tunings if tuning.host},
        weight_problems=_weight_problems([tuning for tuning in tunings if tuning.cpu_weight]),
        partition_problem=why_no_partition(cgroups.detect())
        if any(tuning.pin.partition for tuning in tunings)
        else None,
    )


def unmet(tuning: Tuning, offers: Offers) -> list[Unmet]:
    """Return all unmet requirements of the tuning; [] if the host supports it. Pure."""
    need = tuning.requires
    return [
        *_accelerator(tuning, offers),
        *_versions(need, offers),
        *_counts(need, offers),
        *_missing(need, offers, tuning.name),
        *_huge_pages(need, offers),
        *_isolation(tuning, offers),
        *_locking(tuning, offers),
        *_weight(tuning, offers),
        *_partition(tuning, offers),
        *(
            Unmet(text=problem, remedy="'labctl host status' shows what can be set here.")
            for problem in offers.knob_problems.get(tuning.name, ())
        ),
    ]


def refuse(tuning: Tuning, problems: Iterable[Unmet]) -> None:
    """Raise HostError with all of `problems` and their remedies; do nothing if there are none."""
    problems = list(problems)
    if problems:
        raise HostError(
            f"this host can't run '{tuning.name}': " + "; ".join(p.text for p in problems),
            hint=" ".join(dict.fromkeys(problem.remedy for problem in problems)),
        )


def _accelerator(tuning: Tuning, offers: Offers) -> Iterator[Unmet]:
    # libvirt ignores vhost for an emulated guest (qemuInterfaceOpenVhostNet).
    wanted = "kvm" if tuning.network.vhost else tuning.requires.accelerator
    if wanted is None or offers.accelerator in (None, wanted):
        return
    if wanted == "kvm":
        yield Unmet(
            text="it needs KVM, and guests are emulated (TCG) here",
            remedy="'labctl host accel' shows why guests are emulated.",
        )
    else:
        yield Unmet(
            text="it needs emulated guests (TCG), and they run under KVM here",
            remedy="Give '--accel tcg'.",
        )


def _versions(need: Requires, offers: Offers) -> Iterator[Unmet]:
    for name, words in (("libvirt", "libvirt"), ("qemu", "QEMU"), ("kernel", "Linux")):
        wanted = getattr(need, name)
        if wanted is None:
            continue
        found = offers.versions.get(name)
        if found is None:
            text = f"it needs {words} {wanted}, and this host's version is not known"
        elif is_older(found, wanted):
            text = f"it needs {words} {wanted}, this host has {found}"
        else:
            continue
        yield Unmet(text=text, remedy=f"Install {words} {wanted} or newer.")


def _counts(need: Requires, offers: Offers) -> Iterator[Unmet]:
    if need.cpus is not None and offers.cpus < need.cpus:
        yield Unmet(
            text=f"it needs {need.cpus} usable CPUs, this host has {offers.cpus}",
            remedy="Widen labctl's affinity or cpuset, or take a larger host.",
        )
    if need.nodes is not None and offers.nodes < need.nodes:
        yield Unmet(
            text=f"it needs {need.nodes} NUMA nodes with memory and usable CPUs, this host has "
            f"{offers.nodes}",
            remedy="Take a host with more nodes ('labctl pins' shows them).",
        )
    if need.smt and not offers.smt:
        yield Unmet(
            text="it needs cores with two usable hardware threads",
            remedy="Switch SMT on in the firmware, or 'echo on > /sys/devices/system/cpu/smt/"
            "control'.",
        )


def _missing(need: Requires, offers: Offers, name: str) -> Iterator[Unmet]:
    if flags := [flag for flag in need.cpu_flags if flag not in offers.cpu_flags]:
        yield Unmet(
            text=f"it needs the CPU's {_and(flags)}, which /proc/cpuinfo does not list",
            remedy="Take a host whose CPU has it, or pass it on to this one if it is a guest.",
        )
    if paths := [path for path in need.paths if path not in offers.paths]:
        yield Unmet(
            text=f"it needs {_and(paths)}, which this host doesn't have",
            remedy="Load the kernel module, or boot the kernel, that brings it.",
        )
    if programs := [program for program in need.programs if program not in offers.programs]:
        yield Unmet(
            text=f"it needs {_and([repr(program) for program in programs])}, not installed here",
            remedy="Install it.",
        )
    words = [word for word in need.command_line if not is_booted_with(word, offers.command_line)]
    if words:
        yield Unmet(
            text=f"it needs a host kernel booted with {_and([repr(word) for word in words])}",
            remedy=f"'labctl host tune {name}' prints how to boot it so; it changes nothing.",
        )


def _huge_pages(need: Requires, offers: Offers) -> Iterator[Unmet]:
    if need.hugepages is None:
        return
    size = PAGE_KIB[need.hugepages] * KIB
    count = -(-offers.guest_memory_bytes // size)
    if need.hugepages not in offers.huge_pages:
        yield Unmet(
            text=f"it needs huge pages of {need.hugepages}, which this host's CPU or kernel "
            "doesn't have",
            remedy="Take a host that has them.",
        )
    elif offers.guest_memory_bytes < size:
        # QEMU: "memory size must be equal to or larger than page size".
        yield Unmet(
            text=f"it needs a guest with at least the {need.hugepages} of one huge page, this one "
            f"has {offers.guest_memory_bytes // MIB} MiB",
            remedy=f"Give the guest {size // MIB} MiB or more ('--memory').",
        )
    elif offers.guest_memory_bytes % size:
        # QEMU 10: "memory size must be multiple of"; older ones leave the last page's rest unused.
        yield Unmet(
            text=f"it needs a guest with whole huge pages of {need.hugepages}, this one has "
            f"{offers.guest_memory_bytes // MIB} MiB",
            remedy=f"Give the guest {count * size // MIB} MiB ('--memory').",
        )
    elif offers.huge_pages[need.hugepages] < count and not _room_for(count * size, offers):
        yield Unmet(
            text=f"it needs {count} huge pages of {need.hugepages} for the guest's memory: "
            "neither are so many free, nor is there the memory to make them of",
            remedy="Give the guest less memory ('--memory'), end what uses the host's, or "
            f"reserve the pages when it boots: hugepagesz={need.hugepages} hugepages={count}.",
        )


def _room_for(size_bytes: int, offers: Offers) -> bool:
    return offers.memory_bytes is None or offers.memory_bytes >= size_bytes + HEADROOM_BYTES


def _isolation(tuning: Tuning, offers: Offers) -> Iterator[Unmet]:
    isolating = [w for w in tuning.guest.command_line if w.partition("=")[0] in _ISOLATING]
    if isolating and offers.vcpus < 2:
        yield Unmet(
            text=f"{_and([repr(word) for word in isolating])} leaves the first vCPU to the "
            "guest's own housekeeping, and there is only one",
            remedy="Give the guest two vCPUs ('--vcpus 2').",
        )


def _locking(tuning: Tuning, offers: Offers) -> Iterator[Unmet]:
    if tuning.memory.locked and not offers.locks_memory:
        yield Unmet(
            text="it needs CAP_SYS_RESOURCE, or no limit on locked memory: labctl has neither here",
            remedy="Start labctl from a root that may lift the limit ('ulimit -l unlimited').",
        )


def _weight(tuning: Tuning, offers: Offers) -> Iterator[Unmet]:
    if text := offers.weight_problems.get(tuning.name):
        yield Unmet(text=text, remedy="Run 'sysctl -w kernel.sched_autogroup_enabled=1'.")


def _partition(tuning: Tuning, offers: Offers) -> Iterator[Unmet]:
    if tuning.pin.partition and offers.partition_problem:
        yield Unmet(
            text=offers.partition_problem,
            remedy="Boot a kernel without CONFIG_RT_GROUP_SCHED with "
            "'systemd.unified_cgroup_hierarchy=1'.",
        )


def _weight_problems(tunings: Sequence[Tuning]) -> dict[str, str]:
    if not tunings:
        return {}
    layout, autogroups = cgroups.detect(), cgroups.autogroup_enabled()
    found = {one.name: cpu_weight.why_no_weight(layout, autogroups, one.host) for one in tunings}
    return {name: why for name, why in found.items() if why is not None}


def _may_lock_memory() -> bool:
    """Return whether QEMU may lock memory. libvirt lifts the limit of a QEMU with <locked/>
    (virProcessSetMaxMemLock); a process without CAP_SYS_RESOURCE can only do that if the value
    stays the same (setrlimit(2))."""
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] == resource.RLIM_INFINITY:
        return True
    status = Path(_STATUS).read_text(encoding="ascii", errors="replace")
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(found and int(found[1], 16) >> _CAP_SYS_RESOURCE & 1)


def _knob_problems(tuning: Tuning) -> tuple[str, ...]:
    try:
        return tuple(knobs.problems(tuning.host))
    except UsageError as error:
        raise UsageError(f"tuning '{tuning.name}': {error.message}", hint=error.hint) from error


def _tool_version(argv: list[str]) -> str | None:
    version = tool_version(argv)
    return version if isinstance(version, str) else None


def _libvirt_version() -> str | None:
    version = libvirt_version()
    return version if isinstance(version, str) else None


def _kernel_version() -> str | None:
    return (read_host_files([_RELEASE])[_RELEASE] or "").strip() or None


_VERSIONS: Mapping[str, Callable[[], str | None]] = {
    "libvirt": _libvirt_version,
    "qemu": lambda: _tool_version([QEMU, "--version"]),
    "kernel": _kernel_version,
}


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# Check workloads' requirements for kernels: a tracer of the kernel that they run under, a
# congestion control of the host's.


_OF_DEBIAN = "of Debian's, linux-image-rt-amd64 has it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Hold the kernels of a study: the host's natively, in guests that of an image or of a foreign
    domain. `image`: None if it is not built."""

    recipe: Recipe
    image: Image | None
    is_own_domain: bool = False

    @classmethod
    def here(cls, image: str, places: StatePaths) -> Kernels:
        """Return the kernels of this host and of labctl's image of that name."""
        return cls.of(load_recipe(image), places)

    @classmethod
    def of(cls, recipe: Recipe, places: StatePaths, *, is_own_domain: bool = False) -> Kernels:
        return cls(recipe=recipe, image=find(recipe, places), is_own_domain=is_own_domain)

    @property
    def guests_are_unknown(self) -> bool:
        """Return whether building the image would show more."""
        return self.image is None and self.recipe.kernel is None and not self.is_own_domain

    def have(self, side: Kind, tracer: str) -> bool | None:
        """Return whether the kernel of that side has the tracer; None if that is unknown."""
        if side is Kind.NATIVE:
            return has_tracer(tracer)
        config = self._guest_config()
        return None if config is None else is_built_with(config, tracer)

    def _guest_config(self) -> str | None:
        if self.is_own_domain:
            return None
        files: list[Path] = []
        if self.recipe.kernel is not None:
            files += [self.recipe.kernel.config] if self.recipe.kernel.config else []
        elif self.image is not None:
            files += (self.image.tree / "boot").glob("config-*")
        return files[0].read_text(encoding="utf-8") if len(files) == 1 else None

    def unmet(self, side: Kind, tracer: str) -> Unmet:
        needs = f"it needs the kernel's {tracer} tracer ({OPTIONS[tracer]}), which "
        if side is Kind.NATIVE:
            return Unmet(
                text=f"{needs}this host's kernel doesn't have",
                remedy=f"Boot the host with a kernel that has it ({_OF_DEBIAN}).",
            )
        if self.recipe.kernel is not None:
            return Unmet(
                text=f"{needs}{self.recipe.kernel.file} doesn't have",
                remedy=f"Give another kernel with --kernel ({_OF_DEBIAN}).",
            )
        return Unmet(
            text=f"{needs}the kernel of the image '{self.recipe.name}' doesn't have",
            remedy="Let the study say 'image: debian-13-rt', or give a kernel that has it with "
            "--kernel.",
        )


def tracers_of(study: Study) -> dict[str, tuple[str, ...]]:
    """Return the tracers that workloads of a study need, by the workloads' names."""
    needed = {name: workload_of(item).tracers for name, item in study.workloads.items()}
    return {name: tracers for name, tracers in needed.items() if tracers}


def lacking(
    study: Study, sides: Collection[Kind], kernels: Kernels
) -> dict[str, dict[Kind, Unmet]]:
    """Return by workload and side why it cannot run there. An unknown kernel is left to the
    trial."""
    found: dict[str, dict[Kind, Unmet]] = {}
    for name, item in study.workloads.items():
        left_out = workload_of(item).left_out(item.parameters)
        for side in (side for side in Kind if side in sides and str(side) in left_out):
            unmet = Unmet(text=left_out[str(side)], remedy="Leave the workload or that side out.")
            found.setdefault(name, {})[side] = unmet
        control = _lacking_control(workload_of(item), item.parameters)
        if control is not None:
            found[name] = dict.fromkeys(sides, control)
    for name, text in _without_cgroups(study).items() if Kind.NATIVE in sides else ():
        unmet = Unmet(
            text=text,
            remedy="Boot the host with cgroup v1, or with all controllers of v2 and "
            "'rt_group_sched=0' (Linux 6.16 or newer).",
        )
        found.setdefault(name, {}).setdefault(Kind.NATIVE, unmet)
    for name, tracers in tracers_of(study).items():
        for side in (side for side in Kind if side in sides):
            missing = [tracer for tracer in tracers if kernels.have(side, tracer) is False]
            if missing:
                found.setdefault(name, {})[side] = kernels.unmet(side, missing[0])
    return found


def _lacking_control(workload: Workload, given: Mapping[str, Value]) -> Unmet | None:
    """Return why its peer or competitor cannot have TCP's congestion control; None if it can, or if
    that is unknown."""
    control = workload.congestion_control(workload.check_parameters(given))
    if not control or has_congestion_control(control) is not False:
        return None
    return Unmet(
        text=f"it needs TCP's congestion control {control} (CONFIG_TCP_CONG_{control.upper()}), "
        "which this host's kernel doesn't have",
        remedy=f"Boot the host with a kernel that has it, or the module tcp_{control}.",
    )


def _without_cgroups(study: Study) -> dict[str, str]:
    """Return by workload why this host cannot limit its command as its file requests."""
    found = {}
    for name, item in study.workloads.items():
        controllers = workload_of(item).controllers(item.parameters)
        if controllers and (why := why_no_command_cgroup(cgroups.detect(), controllers)):
            found[name] = why
    return found


def untraceable(
    study: Study, sides: Collection[Kind], kernels: Kernels, asked_for: Collection[str]
) -> dict[str, dict[str, str]]:
    """Return the result of `lacking` in a plan's form. Raises HostError for a workload that is
    requested by name and can run on no side."""
    found = lacking(study, sides, kernels)
    for name in asked_for:
        reasons = found.get(name, {})
        if reasons and len(reasons) == len(set(sides)):
            raise HostError(
                f"workload '{name}' can't run here: {'; '.join(u.text for u in reasons.values())}",
                hint=" ".join(dict.fromkeys(u.remedy for u in reasons.values())),
            )
    return {
        name: {str(side): reason.text for side, reason in reasons.items()}
        for name, reasons in found.items()
    }
