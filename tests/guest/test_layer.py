"""A layer made with the host's real package sources, compiler and disk tools. No guest is
started."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.base.events import silent
from labctl.base.paths import StatePaths
from labctl.guest import images
from labctl.guest.build import build
from labctl.guest.images import Image
from labctl.guest.layer import Brought, Build, Layer, Wheel
from labctl.guest.recipe import load_recipe

SOURCE = b"""\
#include <unistd.h>
int main(void) { return write(1, "built\\n", 6) == 6 && getuid() == 0 ? 0 : 1; }
"""
LOOKS = "test $(id -u) != 0 && test $(grep -c : /proc/net/dev) = 1"


def made_in(tree: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["chroot", tree, *argv], capture_output=True, text=True, check=False)


@pytest.fixture
def places(built: Image) -> Iterator[StatePaths]:
    """A state folder in memory, as trees have many files; the image's are there as well, so that
    the layer can share its kernel."""
    with TemporaryDirectory(prefix="layer-test-", dir=StatePaths.default().root) as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=711", "tmpfs", folder], check=True)
        try:
            places = StatePaths(Path(folder))
            own = places.images / built.dir.name
            shutil.copytree(built.dir, own, ignore=lambda folder, names: [built.tree.name])
            (own / built.tree.name).symlink_to(built.tree.resolve())
            yield places
        finally:
            subprocess.run(["umount", folder], check=True)


def test_a_layer_has_its_packages_and_what_was_built_and_starts_nothing(
    places: StatePaths, built: Image
) -> None:
    steps = (("gcc", "-O2", "-static", "-o", "says", "says.c"), ("sh", "-c", LOOKS))
    compiled = Build(argv=steps, outputs=("says",), packages=("gcc", "libc6-dev"))
    brought = Brought(workload="says", files={"says.c": SOURCE}, build=compiled)
    layer = Layer(packages=("redis-server",), brought=(brought,))
    base_files = dict(built.manifest["files"])
    layered = build(load_recipe(built.name).with_layer(layer), places, silent)

    assert images.verify(layered) == []
    assert layered.layer["added"].keys() >= {"redis-server", "redis-tools"}
    assert "gcc" not in layered.manifest["packages"]
    assert "redis-server" not in built.manifest["packages"]
    assert made_in(layered.tree, "redis-server", "--version").stdout.startswith("Redis server v=")
    assert made_in(layered.tree, "/usr/local/lib/labctl/workloads/says/says").stdout == "built\n"
    assert not list(layered.tree.glob("usr/bin/*gcc*"))
    # Debian enables it, and the guest's systemd finds /dev/null in its place.
    units = layered.tree / "etc/systemd/system"
    assert (units / "multi-user.target.wants/redis-server.service").is_symlink()
    assert (units / "redis-server.service").readlink() == Path("/dev/null")
    asked = ("redis-server.service", "redis.service", "redis-server@6379.service")
    told = made_in(layered.tree, "systemctl", "is-enabled", *asked)
    assert told.stdout.split() == ["masked"] * len(asked)
    assert "redis-server.service" in layered.layer["masked"]

    info = subprocess.run(
        ["qemu-img", "info", "--output=json", layered.disk], capture_output=True, check=True
    )
    assert b'"format": "qcow2"' in info.stdout
    assert dict(built.manifest["files"]) == base_files
    assert images.verify(built) == []


def test_a_wheel_s_program_runs_out_of_the_tree_as_pip_brought_it(
    places: StatePaths, built: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    path = tmp_path / "tool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        program = zipfile.ZipInfo("tool/says")
        program.external_attr = 0o100755 << 16
        made.writestr(program, "#!/bin/sh\necho brought\n")
        made.writestr("tool-1.0.dist-info/METADATA", "Name: tool\nVersion: 1.0\n")
        made.writestr("tool-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        made.writestr("tool-1.0.dist-info/RECORD", "")
    right = hashlib.sha256(path.read_bytes()).hexdigest()

    def layered(sha256: str) -> Layer:
        wheel = Wheel(name="tool", requirement="tool==1.0", sha256=sha256)
        return Layer(brought=(Brought(workload="says", files={}, wheels=(wheel,)),))

    recipe = load_recipe(built.name)
    with pytest.raises(BrokenError, match="no file of it has the SHA-256 0000"):
        build(recipe.with_layer(layered("0" * 64)), places, silent)
    image = build(recipe.with_layer(layered(right)), places, silent)
    says = "/usr/local/lib/labctl/workloads/says/wheels/tool/tool/says"
    assert made_in(image.tree, says).stdout == "brought\n"
    assert images.verify(image) == []
    assert [found.name for found in places.downloads.iterdir()] == [f"{right}.whl"]


def test_a_misspelt_package_is_told_with_the_one_that_was_meant(
    places: StatePaths, built: Image
) -> None:
    recipe = load_recipe(built.name).with_layer(Layer(packages=("redis-tool",)))
    with pytest.raises(
        UsageError, match="no package 'redis-tool' in trixie; did you mean 'redis-tools'?"
    ):
        build(recipe, places, silent)
    assert [found.dir.name for found in images.list_images(places)] == [built.dir.name]
