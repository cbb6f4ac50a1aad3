"""Say what a study's workloads add to the image that its guests boot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from labctl.base.errors import UsageError
from labctl.guest.add_layer import refuse_what_cannot_be_layered
from labctl.guest.layer import Brought, Build, Wheel, joined
from labctl.guest.recipe import Recipe
from labctl.run.planning.planned_conditions import programs_beside
from labctl.study.plan import Plan
from labctl.study.study import Study, StudyWorkload
from labctl.workloads.registry import workload_of
from labctl.workloads.workload import Workload
from labctl.workloads.workload_file import bytes_of


def with_what_is_needed(recipe: Recipe, what: Plan | Study) -> Recipe:
    """Return the recipe with a layer of what workloads, neighbours' too, need beside its own
    packages. Raises UsageError for an image that gets none."""
    programs = [*map(workload_of, what.workloads.values()), *programs_beside(what)]
    return _with_layer(recipe, programs)


def with_what_neighbours_need(recipe: Recipe, what: Plan | Study) -> Recipe:
    """Return the same without the workloads', for guests that are not made of the image."""
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
    """Raise UsageError for workloads that bring files into an image, which a user's own VM is
    not."""
    for name, declared in workloads.items():
        if _brought(workload_of(declared)) is not None:
            raise UsageError(
                f"workload '{name}' brings files, and '{domain}' gets none",
                hint="Put its programs into that VM and name them in 'command', or leave --domain "
                "out.",
            )


def _brought(program: Workload) -> Brought | None:
    file = program.file
    build = file.build
    if not file.files and build is None and not file.wheels:
        return None
    return Brought(
        workload=program.name,
        files={name: bytes_of(brought) for name, brought in file.files.items()},
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
