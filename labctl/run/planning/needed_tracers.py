"""Check what workloads need of kernels: a tracer of those that they would run under, a congestion
control of the host's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import HostError
from labctl.base.paths import StatePaths
from labctl.base.tuning import Kind
from labctl.guest.images import Image, find
from labctl.guest.recipe import Recipe, load_recipe
from labctl.host import cgroups
from labctl.host.congestion import has_congestion_control
from labctl.host.own_cgroups import why_no_command_cgroup
from labctl.host.tracers import OPTIONS, has_tracer, is_built_with
from labctl.run.planning.requirements import Unmet
from labctl.study.study import Study
from labctl.workloads.registry import workload_of
from labctl.workloads.setting import Value
from labctl.workloads.workload import Workload

_OF_DEBIAN = "of Debian's, linux-image-rt-amd64 has it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Hold what a study would run under: the host's kernel natively, in guests that of an image, or
    of a foreign domain. `image`: None where it isn't built."""

    recipe: Recipe
    image: Image | None
    is_own_domain: bool = False

    @classmethod
    def here(cls, image: str, places: StatePaths) -> Kernels:
        """Return those of an image of labctl's by its name."""
        return cls.of(load_recipe(image), places)

    @classmethod
    def of(cls, recipe: Recipe, places: StatePaths, *, is_own_domain: bool = False) -> Kernels:
        return cls(recipe=recipe, image=find(recipe, places), is_own_domain=is_own_domain)

    @property
    def guests_are_unknown(self) -> bool:
        """Return whether building the image would tell more."""
        return self.image is None and self.recipe.kernel is None and not self.is_own_domain

    def have(self, side: Kind, tracer: str) -> bool | None:
        """Return None where nothing tells."""
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
    """Return the tracers that workloads of a study need, by the names of those that need any."""
    needed = {name: workload_of(item).tracers for name, item in study.workloads.items()}
    return {name: tracers for name, tracers in needed.items() if tracers}


def lacking(
    study: Study, sides: Collection[Kind], kernels: Kernels
) -> dict[str, dict[Kind, Unmet]]:
    """Return by workload and side why it can't run there. An unknown kernel is left to the
    trial.
    """
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
    """Return why its peer or competitor can't have TCP's congestion control; None where it can, or
    where nothing tells."""
    control = workload.congestion_control(workload.check_parameters(given))
    if not control or has_congestion_control(control) is not False:
        return None
    return Unmet(
        text=f"it needs TCP's congestion control {control} (CONFIG_TCP_CONG_{control.upper()}), "
        "which this host's kernel doesn't have",
        remedy=f"Boot the host with a kernel that has it, or the module tcp_{control}.",
    )


def _without_cgroups(study: Study) -> dict[str, str]:
    """Return by workload why this host can't limit its command as its file asks for."""
    found = {}
    for name, item in study.workloads.items():
        controllers = workload_of(item).controllers(item.parameters)
        if controllers and (why := why_no_command_cgroup(cgroups.detect(), controllers)):
            found[name] = why
    return found


def untraceable(
    study: Study, sides: Collection[Kind], kernels: Kernels, asked_for: Collection[str]
) -> dict[str, dict[str, str]]:
    """Return what `lacking` says, as a plan has it. Raises HostError for a workload that is asked
    for by name and can run on none of the sides."""
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
