"""Make the emulated machine's three disks: a Debian host, a built guest image, and a .venv for the
host's Python."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from labctl.base import process, yaml
from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths
from labctl.base.process import Deadline
from labctl.guest.build import build
from labctl.guest.images import DIGEST_LENGTH, Image, images_lock
from labctl.guest.recipe import Recipe, RecipeFile, load_recipe
from labctl.run.guests.base_guest import prepared_disk, prepared_path
from tools.bench.benchmark import IMAGE, Benchmark

RECIPE = Path(__file__).parent / "guest-images" / "kvm-host.yaml"
PACKAGES = Path(__file__).parents[2] / "labctl" / "host" / "packages.txt"

LEFT_OUT = frozenset({"chromium", "librsvg2-bin", "mandoc", "shellcheck", "strace", "virtinst"})
"""Packages of packages.txt that check the checkout, or that no test in the machine needs."""

MAKE_VENV = Path(__file__).with_name("make_venv.sh")

LOCKS = ("requirements-build.lock", "requirements.lock")

_NAMESPACES = ("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child")

_FREE_MIB = 512
"""Room for what the tests write beside the guest image."""


def host_recipe() -> Recipe:
    """Return the Debian host, with the packages that labctl needs now."""
    spec = yaml.load(RecipeFile, RECIPE)
    lines = PACKAGES.read_text(encoding="utf-8").splitlines()
    needed = {line.split()[0] for line in lines if line and not line.startswith("#")} - LEFT_OUT
    packages = sorted({*spec.packages, *needed})
    return Recipe("kvm-host", spec.model_copy(update={"packages": packages}))


def built_host(places: StatePaths, listener: Listener) -> Image:
    """Kept among labctl's images: 'labctl image list' shows it, 'labctl image rm' removes it."""
    return build(host_recipe(), places, listener)


def prepared_guest(places: StatePaths, listener: Listener) -> Image:
    """Return the guest image, booted once here: a first boot would take minutes in the emulated
    host."""
    guest = build(load_recipe(IMAGE), places, listener)
    if not prepared_path(guest).is_file():
        benchmark = Benchmark(places, listener, command="the emulated KVM host")
        planned = benchmark.planned()
        with benchmark.open_lab(planned) as lab:
            prepared_disk(lab, planned.tunings["baseline"])
    return guest


def guest_disk(guest: Image, host: Image, places: StatePaths, listener: Listener) -> Path:
    """Return a disk with the guest image's folder, made now if there is none of this very image. It
    lies in the host image's folder, and goes with it."""

    def make(disk: Path) -> None:
        listener(Note(text=f"Copying the image {guest.dir.name} to a disk"))
        _copy(guest.dir, disk)

    name = f"{guest.dir.name}-{prepared_path(guest).stem}"
    return _made_once(host.dir / f"{name}.raw", IMAGE, places, make)


def venv_disk(checkout: Path, host: Image, places: StatePaths, listener: Listener) -> Path:
    """Return a disk with a .venv for the checkout, made by the host's own Python, now if there is
    none of these locks. The checkout's own .venv is another Python's, or another release's. It
    lies in the host image's folder, and goes with it."""

    def make(disk: Path) -> None:
        listener(Note(text="Making the .venv of the emulated KVM host"))
        scratch = host.dir / "venv.scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        try:
            process.run(
                [*_NAMESPACES, "sh", MAKE_VENV, host.tree, checkout, scratch],
                deadline=Deadline.after(1800, "making the .venv of the emulated KVM host"),
                hint="pip must reach a package index: see 'python3 -m pip config list'.",
            )
            _copy(scratch / "venv", disk)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    return _made_once(host.dir / f"venv-{_venv_digest(checkout)}.raw", "venv", places, make)


def _venv_digest(checkout: Path) -> str:
    """Return what stands for the .venv that these locks make there: its scripts hold their path."""
    # What pyproject.toml says of the tools, at its end, changes nothing in it.
    project = (checkout / "pyproject.toml").read_bytes().partition(b"\n[tool.")[0]
    locks = [(checkout / name).read_bytes() for name in LOCKS]
    parts = [os.fsencode(checkout), project, *locks]
    whole = b"".join(hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(whole).hexdigest()[:DIGEST_LENGTH]


def _made_once(disk: Path, name: str, places: StatePaths, make: Callable[[Path], None]) -> Path:
    """Return a disk, made now if it isn't there; outdated ones of that name go."""
    if not disk.is_file():
        with images_lock(places):
            # Another may have made it until now, and have booted from it.
            if not disk.is_file():
                for outdated in disk.parent.glob(f"{name}-*.raw*"):
                    outdated.unlink()
                make(disk)
    return disk


def _copy(folder: Path, disk: Path) -> None:
    new = disk.with_name(f"{disk.name}.new")
    deadline = Deadline.after(600, f"copying {folder} to a disk")
    size = f"{_mib(folder) * 11 // 10 + _FREE_MIB}M"
    try:
        make = ["mke2fs", "-q", "-t", "ext4", "-d", str(folder), str(new), size]
        process.run(make, deadline=deadline)
        new.rename(disk)
    finally:
        new.unlink(missing_ok=True)


def _mib(folder: Path) -> int:
    """Return what a folder's files take on the disk; of several links to a file, each."""
    paths = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sum(path.lstat().st_blocks for path in paths) * 512 // 2**20 + 1
