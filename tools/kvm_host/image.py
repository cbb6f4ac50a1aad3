"""Make what the emulated machine's two disks are made of: a Debian host, and a built guest
image."""

from __future__ import annotations

import os
from pathlib import Path

from labctl.base import process, yaml
from labctl.base.deadline import Deadline
from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths
from labctl.guest.build import build
from labctl.guest.images import Image, images_lock
from labctl.guest.recipe import Recipe, RecipeFile, load_recipe
from labctl.run.guests.base_guest import prepared_disk, prepared_path
from tools.bench.benchmark import IMAGE, Benchmark

RECIPE = Path(__file__).parent / "guest-images" / "kvm-host.yaml"
PACKAGES = Path(__file__).parents[1] / "packages.txt"

LEFT_OUT = frozenset(
    {
        *("chromium", "gcc", "libvirt-dev", "pkg-config", "python3-dev", "shellcheck", "virtinst"),
        *("librsvg2-bin", "strace"),
    }
)
"""Packages of packages.txt that make or check the checkout, whose .venv comes along, or that no
test in the machine needs."""

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
    disk = host.dir / f"{guest.dir.name}-{prepared_path(guest).stem}.raw"
    if not disk.is_file():
        with images_lock(places):
            # Another may have made it until now, and have booted from it.
            if not disk.is_file():
                listener(Note(text=f"Copying the image {guest.dir.name} to a disk"))
                _copy(guest, disk)
    return disk


def _copy(guest: Image, disk: Path) -> None:
    for outdated in disk.parent.glob(f"{IMAGE}-*.raw*"):
        outdated.unlink()
    new = disk.with_name(f"{disk.name}.new")
    deadline = Deadline.after(600, "copying the guest image")
    size = f"{_mib(guest.dir) * 11 // 10 + _FREE_MIB}M"
    try:
        make = ["mke2fs", "-q", "-t", "ext4", "-d", str(guest.dir), str(new), size]
        process.run(make, deadline=deadline)
        new.rename(disk)
    finally:
        new.unlink(missing_ok=True)


def _mib(folder: Path) -> int:
    """Return what a folder's files take on the disk; of several links to a file, each."""
    paths = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sum(path.lstat().st_blocks for path in paths) * 512 // 2**20 + 1
