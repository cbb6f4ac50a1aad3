"""Check whether the programs and packages of a study's workloads exist, as far as this host can
know without building an image."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from labctl.base import process
from labctl.base.errors import LabctlError, UsageError, nearest
from labctl.base.paths import BROUGHT, StatePaths, shipped_data
from labctl.base.process import Deadline
from labctl.guest.apt import host_sources
from labctl.guest.images import find, list_images
from labctl.guest.recipe import Recipe, recipe_names
from labctl.run.planning.files_there import Files, Lack, has_program
from labctl.workloads.registry import checkers
from labctl.workloads.workload import Workload

LISTS = Path("/var/lib/apt/lists")
"""Package lists of apt."""

_APT_S = 30


def check_programs(
    programs: Mapping[str, Workload],
    recipe: Recipe,
    places: StatePaths,
    sources: Mapping[str, Path] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Return sentences on what is only known once the recipe's image is built. `sources`: where the
    files of a command line are on this host, by name. Raises UsageError for a program that the
    image lacks, for a file that cannot run there, and for a package that this host's apt does not
    know."""
    brought = {
        name: Files(program, sources, _owner, _is_package)
        for name, program in programs.items()
        if program.file.files and not _is_shipped(program)
    }
    for files in brought.values():
        files.check_alone()
    doubtful = _check_packages(programs, recipe)
    layered = recipe.with_kernel(None)
    whole = _readable_tree(layered, places)
    if whole is not None:
        doubtful = ()  # its packages are installed
    below = layered.below
    base = _readable_tree(below, places) if whole is None and below is not None else whole
    waiting: list[str] = []
    adds_packages = recipe.layer is not None and bool(recipe.layer.packages)
    is_known = whole is not None or (base is not None and not adds_packages)
    for name, files in brought.items():
        if lacks := files.lacks(base if is_known else None):
            raise _lacking(name, recipe, lacks, is_file=not sources)
        if base is not None and files.too_new(base):
            raise _too_new(name, recipe, files, base, places)
        if not is_known:
            waiting += [lack.what for lack in files.lacks(base)] if base else files.names
    for name, program in programs.items():
        named = [path for path in program.binaries if not path.startswith(f"{BROUGHT}/")]
        missing = [path for path in named if base is None or not has_program(base, path)]
        if not missing or (whole is None and _is_shipped(program)):
            continue
        if is_known:
            raise UsageError(
                f"workload '{name}': program '{missing[0]}' was not found in the image "
                f"'{recipe.name}'",
                hint=_remedy(missing[0]),
            )
        waiting += missing
    if not waiting:
        return doubtful
    quoted = (path if " " in path else f"'{path}'" for path in dict.fromkeys(waiting))
    shown = ", ".join(quoted)
    packages = recipe.layer.packages if recipe.layer else ()
    with_packages = f" with {', '.join(packages)}" if packages else ""
    return (
        *doubtful,
        f"{shown}: checked in the image '{recipe.name}' after the sweep has built "
        f"it{with_packages}",
    )


def _remedy(program: str) -> str:
    """Return how to get a program into an image, by what this host knows of it."""
    if "/" in program and Path(program).is_file() and not Path(program).is_absolute():
        name = Path(program).name
        return (
            f"Add your own program to 'files' of a workload file: files: {{{name}: "
            f"./{name}}}, command: ['{{{{ files }}}}/{name}'] (docs/own-program.md)."
        )
    found = shutil.which(program)
    if found is None and program.startswith("/") and not program.startswith(("/usr/", "/bin/")):
        return "This host has no such file either: check the path."
    package = (_owner(found) or _owner(os.path.realpath(found))) if found else None
    return (
        f"Add the Debian package that has it: --package {package or 'NAME'} ('packages' in a file)."
    )


def _owner(pattern: str) -> str | None:
    """Return the Debian package that has a file on this host, by its path or a pattern; None if
    dpkg does not know it."""
    owner = _said("dpkg", "-S", pattern).partition(":")[0]
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", owner):
        return None
    # Each release has another version of Java, and python3-minimal lacks modules of the standard
    # library.
    return re.sub(r"^openjdk-\d+-", "default-", owner).removesuffix("-minimal")


def _is_package(name: str) -> bool:
    """Return whether the package lists of this host have a package."""
    name = name.lower()
    is_name = re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", name) is not None
    return is_name and _has_lists("*") and not _unknown_packages({name})


def _lacking(name: str, recipe: Recipe, lacks: Sequence[Lack], *, is_file: bool) -> UsageError:
    """Return the error for what files lack. `is_file`: whether a workload's file declares them."""
    what = ", ".join(lack.what for lack in lacks)
    remedies = " ".join(dict.fromkeys(lack.remedy for lack in lacks))
    to_file = " (in a workload's file: to 'packages' or 'files')" if is_file else ""
    return UsageError(
        f"workload '{name}': missing in the image '{recipe.name}' and among its files: {what}",
        hint=f"Add {remedies}{to_file}.",
    )


def _too_new(name: str, recipe: Recipe, files: Files, tree: Path, places: StatePaths) -> UsageError:
    """Return the error for files that were built for newer libraries than the image's."""
    file, library, version = files.too_new(tree)[-1]
    hint = f"Build it on a system as old as '{recipe.name}', or link it statically."
    for image in list_images(places):
        is_other = image.name != recipe.name and image.name in recipe_names() and not image.layer
        if is_other and os.access(image.tree, os.X_OK) and not files.too_new(image.tree):
            hint = (
                f"The image '{image.name}' has it: take a study with 'guest: {{image: "
                f"{image.name}}}'. Or build it on an older system, or link it statically."
            )
            break
    return UsageError(
        f"workload '{name}': {file} needs {version} of {library}, and that of the image "
        f"'{recipe.name}' is older",
        hint=hint,
    )


def _check_packages(programs: Mapping[str, Workload], recipe: Recipe) -> tuple[str, ...]:
    """Return sentences on packages that this host's apt does not know and the image's release may
    have. Raises UsageError for an unknown one if host and image share their lists."""
    suite = recipe.spec.suite
    is_shared = suite is not None and bool(host_sources(suite)) and _has_lists(suite)
    doubtful = []
    for name, program in programs.items():
        file = program.file
        wanted = {*file.packages, *(file.build.packages if file.build else ())}
        wanted -= {*recipe.spec.packages}
        if _is_shipped(program) or not wanted:
            continue
        for package in sorted(_unknown_packages(wanted)):
            known = _said("apt-cache", "pkgnames", package[:2]).split()
            near = "".join(nearest(package, known).partition("?")[:2]) if known else ""
            if is_shared:
                raise UsageError(
                    f"workload '{name}': no package '{package}' in the package lists of this "
                    f"host, which the image '{recipe.name}' also uses",
                    hint=near or "If it is new, update the lists with 'apt-get update'.",
                )
            doubtful.append(
                f"package '{package}' is not in this host's package lists; those of "
                f"'{recipe.name}' are read when it is built. {near}".rstrip()
            )
    return tuple(doubtful)


def _has_lists(suite: str) -> bool:
    return any(LISTS.glob(f"*_dists_{suite}_main_binary-*_Packages*"))


def _unknown_packages(names: Collection[str]) -> set[str]:
    """Return those that apt does not have; none if it has no lists."""
    if not _has_lists("*"):
        return set()
    shown = _said("apt-cache", "show", "--no-all-versions", *sorted(names))
    return set(names) - set(re.findall(r"^Package: (\S+)$", shown, re.MULTILINE))


def _said(*argv: str) -> str:
    """Return the output of a program of the package system, whatever its status: apt-cache ends
    with 100 for an unknown package; "" if it cannot be run."""
    try:
        return process.run(argv, deadline=Deadline.after(_APT_S, argv[0]), check=False).stdout
    except LabctlError:
        return ""


def _readable_tree(recipe: Recipe, places: StatePaths) -> Path | None:
    """Return the tree of the image built from a recipe; None without one that this user may
    read."""
    image = find(recipe, places)
    return image.tree if image and os.access(image.tree, os.R_OK | os.X_OK) else None


def _is_shipped(program: Workload) -> bool:
    """Return whether it is one of labctl's own, whose packages are known to have its programs."""
    known = checkers()
    path = known.file_of(program.name)
    is_ours = path is not None and path.is_relative_to(shipped_data())
    return is_ours and known[program.name].definition == program.definition
