"""Choose the image of a run's guests: its recipe, and a kernel of the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import HostError, LabctlError, UsageError
from labctl.base.events import Listener
from labctl.base.paths import StatePaths
from labctl.guest.build import build
from labctl.guest.images import Image, find, list_images, mark_used
from labctl.guest.kernels import read_kernel
from labctl.guest.layer import Brought, Build, Large, Wheel, joined
from labctl.guest.layers import refuse_what_cannot_be_layered
from labctl.guest.recipe import Recipe, load_recipe
from labctl.host.accelerator import Accelerator, Requested, accelerator
from labctl.host.guest_memory import MIB, needed_bytes
from labctl.run.planning.conditions import most_guests, programs_beside
from labctl.run.resources.disks import disk_bytes_needed
from labctl.store.records.run_record import KernelUsed
from labctl.study.plan import Plan
from labctl.study.study import GuestShape, Study, StudyWorkload
from labctl.workloads.registry import workload_of
from labctl.workloads.workload import Workload
from labctl.workloads.workload_file import HostFile, bytes_of

# Find what a study's workloads add to the image of its guests.


def with_what_is_needed(recipe: Recipe, what: Plan | Study) -> Recipe:
    """Return the recipe with a layer of what workloads, neighbours' included, need beyond its own
    packages. Raises UsageError for an image that cannot have a layer."""
    programs = [*map(workload_of, what.workloads.values()), *programs_beside(what)]
    return _with_layer(recipe, programs)


def with_what_neighbours_need(recipe: Recipe, what: Plan | Study) -> Recipe:
    """Return the same for neighbours' workloads alone, for guests that are not made from the
    image."""
    return _with_layer(recipe, programs_beside(what))


def _with_layer(recipe: Recipe, programs: Iterable[Workload]) -> Recipe:
    parts = []
    for program in programs:
        packages = set(program.file.packages) - set(recipe.spec.packages)
        parts.append((tuple(packages), _brought(program)))
    layer = joined(parts)
    if not layer:
        return recipe
    refuse_what_cannot_be_layered(recipe, layer)
    return recipe.with_layer(layer)


def refuse_files(workloads: Mapping[str, StudyWorkload], domain: str) -> None:
    """Raise UsageError for workloads that bring files into an image; a user's own VM is not
    one."""
    for name, declared in workloads.items():
        if _brought(workload_of(declared)) is not None:
            raise UsageError(
                f"workload '{name}' needs files, which labctl does not copy to '{domain}'",
                hint="Install its programs in that VM and name them in 'command', or leave "
                "--domain out.",
            )


def _brought(program: Workload) -> Brought | None:
    file = program.file
    build = file.build
    if not file.files and build is None and not file.wheels:
        return None
    return Brought(
        workload=program.name,
        files={
            name: Large(path=Path(brought.path), sha256=brought.sha256)
            if isinstance(brought, HostFile)
            else bytes_of(brought)
            for name, brought in file.files.items()
        },
        build=None
        if build is None
        else Build(
            argv=tuple(tuple(argv) for argv in build.argv),
            outputs=tuple(build.outputs),
            packages=tuple(build.packages),
        ),
        wheels=tuple(
            Wheel(name=name, requirement=one.requirement, sha256=one.sha256)
            for name, one in file.wheels.items()
        ),
    )


IMAGE = "debian-13"
"""Image of the guests if the study names no other."""


def recipe_asked_for(name: str, kernel: Path | None, initrd: Path | None) -> Recipe:
    """Return the recipe of a new run; raises UsageError if its kernel is not usable."""
    recipe = load_recipe(name)
    if kernel is not None:
        return recipe.with_kernel(read_kernel(kernel.resolve(), initrd and initrd.resolve()))
    if initrd is not None:
        raise UsageError(
            f"--initrd needs --kernel (got only {initrd})",
            hint="Add '--kernel'.",
        )
    return recipe


def recipe_of_run(plan: Plan, image: str, run: str, recorded: KernelUsed | None) -> Recipe:
    """Return the recipe of an image of the resumed run `run`, with its workloads' needs and the
    kernel that it was started with, or raise UsageError."""
    recipe = with_what_is_needed(load_recipe(image), plan)
    if recorded is None:
        return recipe
    kernel = Path(recorded.file)
    try:
        found = read_kernel(kernel, Path(recorded.initrd) if recorded.initrd else None)
    except UsageError as error:
        raise UsageError(
            f"run '{run}' was started with the kernel {kernel}: {error.message}",
            hint="Restore it, or start a new run.",
        ) from error
    before, now = recorded.sha256, dict(found.digests)
    if changed := sorted(name for name in before | now if before.get(name) != now.get(name)):
        what = {"file": "the kernel itself", "initrd": "its initrd"}
        raise UsageError(
            f"run '{run}' was started with the kernel {kernel}, but "
            f"{', '.join(what.get(name, f'its {name}') for name in changed)} changed since "
            "then",
            hint="Restore it, or start a new run.",
        )
    return recipe.with_kernel(found)


def accelerator_of(
    recipe: Recipe, places: StatePaths, accel: Requested, listener: Listener
) -> Accelerator:
    """Return the accelerator of that image's guests; the image is built now if there is none."""
    return accelerator(accel, built_image(recipe, places, listener).kernel, places)


def built_image(recipe: Recipe, places: StatePaths, listener: Listener) -> Image:
    """Return the recipe's image; built now if there is none."""
    found = find(recipe, places)
    if found is None:
        return build(recipe, places, listener)
    mark_used(found)
    return found


def accelerator_here(image: str, places: StatePaths, requested: Requested = "auto") -> Accelerator:
    """Return the guests' accelerator, by booting the kernel of that image, or any other available
    one; raises HostError if there is none."""
    return accelerator(requested, _kernel(image, places), places)


def accelerator_or_error(image: str, places: StatePaths) -> Accelerator | LabctlError:
    """Return the accelerator, or why it is unknown."""
    try:
        return accelerator_here(image, places)
    except LabctlError as error:
        return error


def _kernel(image: str, places: StatePaths) -> Path:
    """Return the kernel to probe with: the image's, another image's, else this host's own."""
    built = find(load_recipe(image), places) or next(iter(list_images(places)), None)
    if built is not None:
        return built.kernel
    release = Path("/proc/sys/kernel/osrelease").read_text(encoding="utf-8").strip()
    own = Path(f"/boot/vmlinuz-{release}")
    if own.is_file():
        return own
    raise HostError(
        "testing KVM needs a kernel to boot, but no guest image is built yet",
        hint=f"labctl image build {image}",
    )


# Compute how much of the host's memory and disk the guests of a plan take.


OF_NO_STUDY = GuestShape(image=IMAGE, vcpus=None, memory_mib=1024)
"""Shape of a guest without a study, with the studies' default memory."""


@dataclass(frozen=True, slots=True)
class GuestNeeds:
    """Hold the memory and the disk space below the state folder that must be free."""

    memory_bytes: int
    disk_bytes: int


def guest_needs(
    guest: GuestShape,
    what: Plan | Study | None,
    *,
    image_is_built: bool,
    has_clones: bool = False,
) -> GuestNeeds:
    """Return the needs of a measured guest with the guests that run beside it. `what`: the owner of
    these conditions; None if there are none. `has_clones`: the measured guests are copies, whatever
    runs beside them."""
    memory_bytes = guest.memory_mib * MIB
    beside = most_guests(what) if what else 0
    return GuestNeeds(
        memory_bytes=memory_bytes + needed_bytes(beside, memory_bytes),
        disk_bytes=disk_bytes_needed(
            memory_bytes,
            data_disks=guest.data_disks,
            image_is_built=image_is_built,
            has_clones=has_clones or beside > 0,
        ),
    )
