"""Choose which image a run's guests boot: its recipe, and a kernel of the user's own."""

from __future__ import annotations

from pathlib import Path

from labctl.base.errors import HostError, LabctlError, UsageError
from labctl.base.events import Listener
from labctl.base.paths import StatePaths
from labctl.guest.build import build
from labctl.guest.images import Image, find, list_images
from labctl.guest.kernels import read_kernel
from labctl.guest.recipe import Recipe, load_recipe
from labctl.host.accelerator import Accelerator, Requested, accelerator
from labctl.run.planning.layers import with_what_is_needed
from labctl.store.records.run_record import KernelUsed
from labctl.study.plan import Plan

IMAGE = "debian-13"
"""Image that guests boot where the study names no other."""


def recipe_asked_for(name: str, kernel: Path | None, initrd: Path | None) -> Recipe:
    """Return the recipe of a new run; raises UsageError when its kernel is none."""
    recipe = load_recipe(name)
    if kernel is not None:
        return recipe.with_kernel(read_kernel(kernel.resolve(), initrd and initrd.resolve()))
    if initrd is not None:
        raise UsageError(
            f"an initrd ({initrd}) was given without the kernel that it belongs to",
            hint="Give '--kernel' as well.",
        )
    return recipe


def recipe_of_run(plan: Plan, run: str, recorded: KernelUsed | None) -> Recipe:
    """Return the recipe of the run `run` that is resumed: with what its workloads need and the
    kernel that it began with, or a UsageError."""
    recipe = with_what_is_needed(load_recipe(plan.guest.image), plan)
    if recorded is None:
        return recipe
    kernel = Path(recorded.file)
    try:
        found = read_kernel(kernel, Path(recorded.initrd) if recorded.initrd else None)
    except UsageError as error:
        raise UsageError(
            f"run '{run}' was begun with the kernel {kernel}: {error.message}",
            hint="Put it back, or start a new run.",
        ) from error
    before, now = recorded.sha256, dict(found.digests)
    if changed := sorted(name for name in before | now if before.get(name) != now.get(name)):
        what = {"file": "the kernel itself", "initrd": "its initrd"}
        raise UsageError(
            f"run '{run}' was begun with the kernel {kernel}, of which "
            f"{', '.join(what.get(name, f'its {name}') for name in changed)} changed since",
            hint="Put it back as it was, or start a new run.",
        )
    return recipe.with_kernel(found)


def accelerator_of(
    recipe: Recipe, places: StatePaths, accel: Requested, listener: Listener
) -> Accelerator:
    """Return what guests of that image run under; the image is built now if there is none."""
    return accelerator(accel, built_image(recipe, places, listener).kernel, places)


def built_image(recipe: Recipe, places: StatePaths, listener: Listener) -> Image:
    """Return the recipe's image; built now if there is none."""
    found = find(recipe, places)
    return found if found is not None else build(recipe, places, listener)


def accelerator_here(image: str, places: StatePaths, requested: Requested = "auto") -> Accelerator:
    """Return what guests run under, by booting the kernel of that image, or any other that is at
    hand; raises HostError when there is none."""
    return accelerator(requested, _kernel(image, places), places)


def accelerator_or_error(image: str, places: StatePaths) -> Accelerator | LabctlError:
    """Return the same, or why they are unknown."""
    try:
        return accelerator_here(image, places)
    except LabctlError as error:
        return error


def _kernel(image: str, places: StatePaths) -> Path:
    """Return what the probe boots: the image's kernel, another image's, else this host's own."""
    built = find(load_recipe(image), places) or next(iter(list_images(places)), None)
    if built is not None:
        return built.kernel
    release = Path("/proc/sys/kernel/osrelease").read_text(encoding="utf-8").strip()
    own = Path(f"/boot/vmlinuz-{release}")
    if own.is_file():
        return own
    raise HostError(
        "whether KVM works is tested by booting a kernel, and no guest image is built yet",
        hint=f"labctl image build {image}",
    )
