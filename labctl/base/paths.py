"""Define where files lie, and the names of labctl's guests. No other module does."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labctl.base.errors import UsageError
from labctl.base.trust import doubt

# Define where files lie. No other module does.
#
# Data folders (`domains templates guest-images benchmarks`): a lab folder shadows a file of the
# same name that labctl brings; a checkout uses its own folders; an installed wheel carries them in
# `labctl/data`. A lab folder is one that was named, or the current folder if it has the marker; in
# either case only the caller and root may be able to write to it.


DATA_FOLDERS = ("domains", "templates", "guest-images", "benchmarks")

MARKER = ".labctl-lab"
"""The file that makes a folder a lab folder; `labctl init` writes it."""

RUN_ARCHIVE = ".tar.xz"
"""Suffix of a run's archive."""

LATEST = "latest"
"""Name of the newest run, which every command accepts."""

OWN_TEMPLATES = ("report", "advice")
"""Folders of templates/ that no lab folder shadows: they become a page, or a script for root."""

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parent

_named: Path | None = None
"""Folder from --lab, for this process."""


def shipped_data() -> Path:
    """Return the folder that holds labctl's own four data folders."""
    inside = _PACKAGE / "data"
    return inside if inside.is_dir() else _CHECKOUT


def recorded_runs() -> dict[str, Path]:
    """Return the archives of the recorded runs that labctl brings, by the runs' names."""
    found = (shipped_data() / "results").glob(f"example*{RUN_ARCHIVE}")
    return dict(sorted((path.name.removesuffix(RUN_ARCHIVE), path) for path in found))


def run_names(results: Path) -> list[str]:
    """Return the names of the runs in a folder, sorted, without reading them."""
    folders = (path.parent.name for path in results.glob("*/run.json"))
    archives = (path.name.removesuffix(RUN_ARCHIVE) for path in results.glob(f"*{RUN_ARCHIVE}"))
    return sorted({*folders, *archives})


@dataclass(frozen=True, slots=True)
class Lab:
    """Hold the lab's place. `folder`: the user's own lab folder, if there is one. `ignored`: why
    the current folder is not used although it has the marker."""

    folder: Path | None = None
    ignored: str | None = None


@contextmanager
def naming_lab(folder: Path | None) -> Iterator[None]:
    """Use the lab folder that --lab names inside the block; None: the environment's."""
    global _named
    before, _named = _named, folder
    try:
        yield
    finally:
        _named = before


def lab() -> Lab:
    """Return the lab folder: --lab, else $LABCTL_LAB, else the current folder if it has the marker
    or is the checkout that labctl runs from.

    Raises UsageError for one that is named and cannot be trusted.
    """
    if _named is not None:
        return Lab(_believed(_named, f"--lab {_named}"))
    if variable := os.environ.get("LABCTL_LAB"):
        return Lab(_believed(Path(variable), f"$LABCTL_LAB ({variable})"))
    try:
        present = Path.cwd()
    except OSError:
        return Lab()  # the folder was removed
    if present == shipped_data():
        return Lab(present)  # as trusted as the code from there
    if not os.path.lexists(present / MARKER):
        return Lab()
    if why := lab_doubt(present):
        return Lab(ignored=f"the lab folder {present} is ignored: {why}")
    return Lab(present)


def _believed(folder: Path, what: str) -> Path:
    if not folder.is_dir():
        raise UsageError(
            f"{what}: no such folder", hint=f"'labctl init {folder}' makes a lab folder."
        )
    if folder.resolve() != shipped_data() and (why := lab_doubt(folder)):
        raise UsageError(
            f"{what} is not trusted: {why}",
            hint="A lab folder, its parents and its data folders must be owned by you or root "
            f"and writable by no one else: 'chmod -R go-w {folder}' removes write access "
            "for others.",
        )
    return folder.resolve()


def lab_doubt(folder: Path) -> str | None:
    """Return why others than the caller and root can change the files that labctl reads in a lab
    folder; None if they cannot."""
    marker = folder / MARKER
    if why := doubt(folder) or (doubt(marker) if os.path.lexists(marker) else None):
        return why
    kinds = (folder / kind for kind in DATA_FOLDERS)
    found = (doubt(kind, below=True) for kind in kinds if os.path.lexists(kind))
    return next((why for why in found if why), None)


def data_folders(kind: str) -> list[Path]:
    """Return the folders of `kind` (one of DATA_FOLDERS) that exist, the shadowing one first.

    Raises UsageError as `lab` does.
    """
    own = lab().folder
    candidates = [*([own / kind] if own else []), shipped_data() / kind]
    found: list[Path] = []
    for folder in candidates:
        if folder.is_dir() and folder.resolve() not in found:
            found.append(folder.resolve())
    return found


def data_files(kind: str, suffix: str = ".yaml") -> dict[str, Path]:
    """Return name (without suffix) to path of every file of `kind`, without shadowed ones."""
    files: dict[str, Path] = {}
    for folder in data_folders(kind):
        for name in os.listdir(folder):
            # Editors' backup files begin with a dot.
            if name.endswith(suffix) and not name.startswith("."):
                files.setdefault(name.removesuffix(suffix), folder / name)
    return dict(sorted(files.items()))


def is_shadowing(path: Path) -> bool:
    """Return whether a data file shadows one of labctl's own."""
    shipped = shipped_data() / path.parent.name / path.name
    return path != shipped and shipped.is_file()


def shadowing() -> list[Path]:
    """Return the lab folder's files that shadow labctl's own of the same name, relative to it."""
    shadows: list[Path] = []
    for kind in DATA_FOLDERS:
        *own, shipped = data_folders(kind)
        for folder in own:
            files = (path.relative_to(folder) for path in sorted(folder.rglob("*")))
            shadows += [Path(kind) / file for file in files if (shipped / file).is_file()]
    own_templates = tuple(Path("templates") / name for name in OWN_TEMPLATES)
    return [path for path in shadows if path.parent not in own_templates]


def results_folder(state: StatePaths) -> Path:
    """Return the folder of runs: $LABCTL_RESULTS, else `results/` of the lab folder or of the
    checkout that labctl is called in, else `results/` of the state folder.

    A folder that was not named must belong to the caller or root, with all folders above it, and
    must not be writable by everyone: if it is a link or another user's folder, that user decides
    which runs are the caller's. Raises UsageError for one that does not, and as `lab` does.
    """
    if configured := os.environ.get("LABCTL_RESULTS"):
        return Path(configured).resolve()
    own = lab().folder
    folder = (own or state.root) / "results"
    # The checkout is as trusted as the code. Groups of one user are common, and labctl makes the
    # folder with the caller's umask.
    if own == shipped_data() or not os.path.lexists(folder):
        return folder
    if why := doubt(folder, group=False):
        raise UsageError(
            f"the folder of runs {folder} is not trusted: {why}",
            hint=f"To use it anyway, pass --results {folder}.",
        )
    return folder


@dataclass(frozen=True, slots=True)
class StatePaths:
    """Name the places of labctl's builds and of its undo data: outside the repository. Also of
    runs, without a lab folder."""

    root: Path

    @classmethod
    def default(cls) -> StatePaths:
        """Return $LABCTL_STATE_DIR, /var/lib/labctl for root, else $XDG_STATE_HOME/labctl."""
        if configured := os.environ.get("LABCTL_STATE_DIR"):
            return cls(Path(configured).resolve())
        if os.geteuid() == 0:
            return cls(Path("/var/lib/labctl"))
        home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        return cls(Path(home) / "labctl")

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def downloads(self) -> Path:
        """Return the folder of verified files for making images."""
        return self.root / "downloads"

    @property
    def cache(self) -> Path:
        """Return the folder of derived values that may be deleted: probe answers, instruction
        counts.
        """
        return self.root / "cache"

    @property
    def work(self) -> Path:
        """Return the folder of a run's temporary files: overlays, save files, sockets."""
        return self.root / "running"

    @property
    def data(self) -> Path:
        """Return the data disk, and its pristine copy."""
        return self.root / "data"

    @property
    def libvirt_root(self) -> Path:
        """Return the root of the embedded libvirt driver. It is short: socket paths end at 107
        bytes (unix(7)).
        """
        return self.root / "lv"

    @property
    def hugetlbfs(self) -> Path:
        """Return the folder in which labctl mounts huge pages for its guests."""
        return self.root / "hugetlbfs"

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def restore_checks(self) -> Path:
        """Return the file of runs' results about restored guests: hours of measuring, so not in the
        cache."""
        return self.root / "restore-checks.json"

    @property
    def collecting_costs(self) -> Path:
        """Return the file of the measured cost of collecting."""
        return self.root / "collecting-costs.json"

    @property
    def exit_prices(self) -> Path:
        """Return the file of the cost of VM exits on this host."""
        return self.root / "exit-prices.json"


def host_lock() -> Path:
    """Return the file whose lock allows one run at a time on this host.

    It is in a folder of the caller's own, because anyone who can open a file can lock it
    (flock(2)).
    """
    if os.geteuid() == 0:
        return Path("/run/labctl/host.lock")
    if own := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(own, "labctl", "host.lock")
    return StatePaths.default().root / "locks" / "host.lock"


# Name the places on a measured machine, the same natively and in a guest: a command's arguments
# must not reveal its side.


WORK: Final = "/tmp/labctl"  # a tmpfs of the machine's own, and the folder is ours
"""A trial's folder, which a server and its clients share."""

CWD: Final = f"{WORK}/run"
"""Working folder of a command; empty for each run."""

DISK: Final = "/tmp/labctl-disk"
"""Mount point of a file system on the data disk."""

BROUGHT: Final = "/usr/local/lib/labctl/workloads"
"""Files that workloads bring into an image."""

DATA_DISK_BYTES: Final = 256 << 20
"""Size of each data disk; natively it is a file."""

NOBODY: Final = 64_917
"""User and group of programs that need no privilege, from the range that Debian reserves for
packages, which get ids on demand (Debian policy, 9.2.2)."""


def brought_folder(workload: str) -> str:
    """Return the folder of a workload's own files."""
    return f"{BROUGHT}/{workload}"


# Name labctl's own guests, so that any labctl recognizes them.


MEASURED_SEATS = 2
"""Seats of measured guests. A host has one run at a time. Two of its measured guests may boot at
once, and the saved state of either is restored under its own name; further seats are
neighbours'."""

MOST_NEIGHBOURS = 1000

OWN_NAME = re.compile(r"labctl-(guest|guest-2|noisy-\d{1,4})")
"""Names of the domains that labctl starts."""


def guest_name(seat: int) -> str:
    """Return the domain name of a seat, from 0."""
    if seat < MEASURED_SEATS:
        return f"labctl-guest-{seat + 1}" if seat else "labctl-guest"
    return f"labctl-noisy-{seat - MEASURED_SEATS + 1}"


def neighbour_seat(number: int) -> int:
    """Return the seat of a neighbour, by its number from 0."""
    return MEASURED_SEATS + number


def guest_uuid(work: Path, seat: int) -> str:
    """Return the UUID of the guest in a seat, for a run in that folder."""
    which = f":{seat + 1}" if seat else ""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"labctl:{work}{which}"))


def mac_of(uuid: str) -> str:
    """Return the MAC address of the network card of a guest with that UUID."""
    digits = uuid.replace("-", "")[:6].lower()
    return ":".join(["52:54:00", *(digits[at : at + 2] for at in (0, 2, 4))])
