"""Find what tunings run in place of the run's: QEMU binaries, kernels and images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from labctl.base import process
from labctl.base.errors import LabctlError, UsageError
from labctl.base.process import Deadline
from labctl.base.trust import doubt
from labctl.base.tuning import Kind, Tuning
from labctl.guest.kernels import read_kernel, release_of
from labctl.guest.recipe import Recipe
from labctl.store.records.plan_record import BuildFile

_VERSION_S = 30


def read_builds(tunings: Iterable[Tuning]) -> dict[str, BuildFile]:
    """Return the QEMU binaries, kernels and initrds of tunings by path, with their SHA-256. Raises
    UsageError for a file that cannot be read or run, and for one that others than the caller and
    root can change: root starts it."""
    found: dict[str, BuildFile] = {}
    for tuning in tunings:
        for key in ("emulator", "kernel", "initrd"):
            path = getattr(tuning, key)
            if path is not None and path not in found:
                found[path] = _read(Path(path), key, tuning.name)
    return found


def _read(path: Path, key: str, tuning: str) -> BuildFile:
    where = f"tuning '{tuning}': {key}"
    if not path.is_file():
        raise UsageError(f"{where}: no file {path}")
    if why := doubt(path):
        raise UsageError(
            f"{where}: {path} is not trusted: {why}",
            hint="Copy it to a folder that only root can write to, such as /usr/local/lib.",
        )
    version = None
    if key == "kernel":
        version = release_of(path)
    elif key == "emulator":
        if is_script(path):
            raise UsageError(
                f"{where}: {path} is a script, and each trial reads back the binary that runs",
                hint="Name the binary that it starts. If that needs its own libraries, set its "
                "loader and library path with patchelf (docs/ab.md).",
            )
        version = _version(path, where)
    return BuildFile(sha256=_digest(path), version=version)


def is_script(path: Path) -> bool:
    """Return whether a file starts another program (execve(2))."""
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def _version(path: Path, where: str) -> str:
    """Return the first line that a QEMU binary says of itself. Raises UsageError if it is none."""
    said = ""
    # A study may come from anywhere: no other program is run to see what it is.
    if path.name.startswith("qemu") and os.access(path, os.X_OK):
        try:
            deadline = Deadline.after(_VERSION_S, f"{path} --version")
            said = process.run((str(path), "--version"), deadline=deadline, check=False).stdout
        except LabctlError:
            said = ""
    first = said.partition("\n")[0]
    if not first.startswith("QEMU emulator version"):
        raise UsageError(
            f"{where}: {path} is not a QEMU binary that runs here",
            hint="Name one such as /usr/bin/qemu-system-x86_64; its file's name begins with qemu.",
        )
    return first.removeprefix("QEMU emulator version ")[:200]


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_builds(run: str, before: Mapping[str, BuildFile], now: Mapping[str, BuildFile]) -> None:
    """Raise UsageError if a file of a resumed run is another one now."""
    changed = sorted(path for path in before if now.get(path) != before[path])
    if changed:
        raise UsageError(
            f"{', '.join(changed)}: changed since run '{run}' was planned",
            hint="Restore the file, or start a new run.",
        )


def with_kernel_of(recipe: Recipe, tuning: Tuning) -> Recipe:
    """Return the recipe with the kernel that a tuning boots; the same for one that boots the
    run's."""
    if tuning.kernel is None:
        return recipe
    initrd = None if tuning.initrd is None else Path(tuning.initrd)
    return recipe.with_kernel(read_kernel(Path(tuning.kernel), initrd))


def recipes_of(
    recipe_named: Callable[[str], Recipe],
    image: str,
    baseline: Tuning,
    tunings: Mapping[str, Tuning],
) -> dict[str, Recipe]:
    """Return the recipes of arms with another image than the baseline, or another kernel in their
    guests, by tuning. `recipe_named`: returns an image's recipe as the run uses it; `image`: the
    study's."""

    def runs_in(tuning: Tuning) -> tuple[str | None, ...]:
        # A native arm has no kernel of its own.
        is_guest = tuning.kind is Kind.GUEST
        kernel = (tuning.kernel, tuning.initrd) if is_guest else (baseline.kernel, baseline.initrd)
        return (tuning.image or image, *kernel)

    return {
        name: with_kernel_of(recipe_named(tuning.image or image), tuning)
        for name, tuning in tunings.items()
        if runs_in(tuning) != runs_in(baseline)
    }
