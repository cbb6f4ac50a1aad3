"""Know where runs may lie, and say why a name is none and what it is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from labctl.base.errors import UsageError
from labctl.base.nearest import nearest
from labctl.store.archive import SUFFIX
from labctl.store.kept_text import looked_at

DENSITY = "density.json"
"""Record of a density run (`store.density_record`)."""


def candidates(results: Path, name: str) -> list[Path]:
    """Return where a run of that name may lie. A bare name never leads into the present folder,
    where another user may have put a run of that name."""
    found = [results / name] if "/" not in name else [Path(name), results / name]
    for path in found:
        for one in (path, path / "run.json", packed(path)):
            looked_at(one)
    return found


def packed(path: Path) -> Path:
    """Return where the archive of a run lies that would be a folder at `path`."""
    return Path(f"{path}{SUFFIX}")


def is_there(path: Path) -> bool:
    """Return whether there is such a file or folder."""
    looked_at(path)
    return path.exists()


def run_folders(results: Path) -> list[Path]:
    """Return the folders in `results` that are runs."""
    for entry in results.glob("*"):  # a run may be yet to come, or what a link leads to
        looked_at(entry)
        looked_at(entry / "run.json")
    return [path.parent for path in results.glob("*/run.json")]


def refuse_no_run(folder: Path) -> None:
    """Raise UsageError for a density run, with the command that reads it, and for a folder of
    trials that lost its run.json."""
    if (folder / DENSITY).is_file():
        raise UsageError(
            f"{folder} is a density run, which has no trials",
            hint=f"labctl density --show {shlex.quote(str(folder))}",
        )
    if (folder / "trials").is_dir():
        raise UsageError(
            f"{folder} holds trials and no run.json, which makes a folder a run",
            hint="Copy the whole folder of the run.",
        )


def not_found(results: Path, name: str, names: Sequence[str]) -> UsageError:
    """Return the refusal of a name that no run has, with the nearest of the `names` there are."""
    hint = nearest(name, names)
    if "/" not in name and (
        (Path(name) / "run.json").is_file() or (name.endswith(SUFFIX) and Path(name).is_file())
    ):
        hint = f"The run in the present folder is './{name}'."
    elif Path(name).is_file():
        hint = f"A run is a folder, or an archive whose name ends in {SUFFIX}."
    return UsageError(f"no run '{name}' in {results}", hint=hint)
