"""Where files lie. The only module that knows.

Data folders (`domains templates guest-images benchmarks`): a user's own lab folder (the present
folder, or $LABCTL_LAB) shadows a file of the same name that labctl brings; a checkout uses its
own folders; an installed wheel carries them in `labctl/data`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DATA_FOLDERS = ("domains", "templates", "guest-images", "benchmarks")

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parent


def shipped_data() -> Path:
    """The folder that holds labctl's own four data folders."""
    inside = _PACKAGE / "data"
    return inside if inside.is_dir() else _CHECKOUT


def lab_folder() -> Path:
    """The user's own lab folder."""
    return Path(os.environ.get("LABCTL_LAB", ".")).resolve()


def data_folders(kind: str) -> list[Path]:
    """The folders of `kind` (one of DATA_FOLDERS) that exist, the one that shadows first."""
    candidates = [lab_folder() / kind, shipped_data() / kind]
    found: list[Path] = []
    for folder in candidates:
        if folder.is_dir() and folder.resolve() not in found:
            found.append(folder.resolve())
    return found


def data_files(kind: str, suffix: str = ".yaml") -> dict[str, Path]:
    """Name (without suffix) to path of every file of `kind`, shadowed ones left out."""
    files: dict[str, Path] = {}
    for folder in data_folders(kind):
        for name in os.listdir(folder):
            if name.endswith(suffix):
                files.setdefault(name.removesuffix(suffix), folder / name)
    return dict(sorted(files.items()))


def results_folder() -> Path:
    """Where runs are kept: $LABCTL_RESULTS, else `results/` of the lab folder or checkout."""
    if configured := os.environ.get("LABCTL_RESULTS"):
        return Path(configured).resolve()
    return lab_folder() / "results"


@dataclass(frozen=True, slots=True)
class StatePlaces:
    """Where labctl keeps what it builds and what it must undo: outside the repository."""

    root: Path

    @classmethod
    def default(cls) -> StatePlaces:
        """$LABCTL_STATE_DIR, /var/lib/labctl for root, else $XDG_STATE_HOME/labctl."""
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
        """Verified files that images are made from."""
        return self.root / "downloads"

    @property
    def cache(self) -> Path:
        """Derived values that may be deleted: probe answers, instruction counts."""
        return self.root / "cache"

    @property
    def work(self) -> Path:
        """What runs need while they run: overlays, save files, sockets."""
        return self.root / "running"

    @property
    def libvirt_root(self) -> Path:
        """Root of the embedded libvirt driver. Short: socket paths end at 107 bytes (unix(7))."""
        return self.root / "lv"

    @property
    def hugetlbfs(self) -> Path:
        """Where labctl mounts file systems of huge pages for its guests."""
        return self.root / "hugetlbfs"

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def restore_checks(self) -> Path:
        """What runs have shown of restored guests: hours of measuring, so not in the cache."""
        return self.root / "restore-checks.json"

    @property
    def collecting_costs(self) -> Path:
        """What collecting was measured to cost here."""
        return self.root / "collecting-costs.json"

    @property
    def exit_prices(self) -> Path:
        """What VM exits cost on this host."""
        return self.root / "exit-prices.json"


def host_lock() -> Path:
    """One run at a time per host: the file whose lock says who runs."""
    if os.geteuid() == 0:
        return Path("/run/labctl.lock")
    return Path(f"/tmp/labctl-{os.getuid()}.lock")
