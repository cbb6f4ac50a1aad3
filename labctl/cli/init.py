"""Run `labctl setup` and `labctl init`: the first commands on a new host."""

from __future__ import annotations

import os
from pathlib import Path

import click

from labctl.base import interpreter
from labctl.base.errors import HostError, UsageError
from labctl.base.paths import DATA_FOLDERS, MARKER, lab_doubt

_FILES = {
    MARKER: "This folder is a lab folder of labctl. See 'labctl init --help'.\n",
    ".gitignore": "/results/\n",
    "README.md": """\
# A lab folder

labctl reads it if it is the current folder, or if `--lab` or `$LABCTL_LAB` names it. A file here
replaces labctl's own of the same name.

| folder | holds |
|---|---|
| `domains/` | tunings, one YAML file each |
| `benchmarks/` | studies, one YAML file each |
| `benchmarks/workloads/` | programs of your own (`labctl workload`) |
| `guest-images/` | recipes of images |
| `templates/` | templates of the domain XML, of cloud-init's seed and of tuned's profiles |
| `results/` | runs |

Only its owner and root may be able to write to it, otherwise labctl does not use it: `chmod
-R go-w .` removes write access for others.
""",
}
_MOST_NAMED = 5
_SCRIPT = Path(__file__).parents[1] / "host" / "install.sh"
"""Script that `make setup` runs too."""


@click.command("init")
@click.argument("folder", metavar="[FOLDER]", default=".", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(folder: Path, as_json: bool) -> None:
    """Make a lab folder for your own tunings, studies, programs and images.

    FOLDER (default: the current one) must be new or empty. labctl reads it if it is the current
    folder, or if --lab or $LABCTL_LAB names it, and if it is owned by you or root and
    writable by no one else. Its files replace labctl's own of the same name, and runs go to its
    results/.
    """
    try:
        is_new = _made(folder)
        _check_believed(folder, is_new)
        for name in (*DATA_FOLDERS, "benchmarks/workloads"):
            (folder / name).mkdir(mode=0o755)
        for name, text in _FILES.items():
            with open(folder / name, "x", encoding="utf-8", opener=never_through_a_link) as file:
                file.write(text)
    except OSError as error:
        raise HostError(f"cannot make the lab folder {folder}: {error}") from error
    place = folder.resolve()
    if as_json:
        from labctl.cli.parts.common import print_json

        files = sorted(str(path.relative_to(place)) for path in place.rglob("*"))
        print_json({"schema": 1, "lab": str(place), "made": files})
        return
    click.echo(f"Made the lab folder {place}.")
    click.echo("\nWrite domains/mine.yaml there:\n")
    click.echo("    description: Pinned, with the data disk past the host's page cache.")
    click.echo("    extends: pinned\n    disk:\n      cache: none")
    click.echo("\nThen\n")
    if place != Path.cwd():
        click.echo(f"    cd {place}")
    click.echo("    labctl tuning validate mine\n    labctl sweep pinning --quick --tuning mine")
    click.echo(f"\nFrom other folders: labctl --lab {place} ...")


def _made(folder: Path) -> bool:
    """Return whether the folder had to be made; raises UsageError where something is there."""
    try:
        folder.mkdir(mode=0o755)
        return True
    except FileExistsError:
        pass
    except FileNotFoundError as error:
        raise UsageError(
            f"cannot make a lab folder: there is no folder {folder.parent}", hint="Create it first."
        ) from error
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file", hint="Name a new folder: 'labctl init lab'.")
    if os.path.lexists(folder / MARKER):
        raise UsageError(f"{folder.resolve()} is a lab folder already")
    if found := sorted(os.listdir(folder)):
        more = ", ..." if len(found) > _MOST_NAMED else ""
        raise UsageError(
            f"{folder.resolve()} is not empty: {', '.join(found[:_MOST_NAMED])}{more}",
            hint="Name a new folder: 'labctl init lab'.",
        )
    return False


def _check_believed(folder: Path, is_new: bool) -> None:
    """Raise UsageError for a place where labctl would never read it."""
    if why := lab_doubt(folder):
        if is_new:
            folder.rmdir()
        raise UsageError(
            f"labctl would not use a lab folder at {folder}: {why}",
            hint="Create it in a folder that only you and root can write to.",
        )


def never_through_a_link(path: str, flags: int) -> int:
    """Open a new file of a lab folder."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


@click.command("setup")
@click.option("--list", "only_list", is_flag=True, help="Only list the missing packages.")
def setup(only_list: bool) -> None:
    """Install the system packages that labctl needs, and create the account of QEMU.

    On Debian, missing packages are installed with apt-get, as root or with sudo. Elsewhere the
    command lists their names for apt or dnf. It skips what is installed and starts no service.
    """
    argv = ["bash", str(_SCRIPT), *(["--list"] if only_list else [])]
    # The script takes this process's place, so that sudo can ask for a password.
    os.execvpe("bash", argv, interpreter.users_environment())
