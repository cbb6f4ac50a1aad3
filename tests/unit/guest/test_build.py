"""The build with tools that only pretend: what they are asked for, what a failure leaves."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.base.events import Event, silent
from labctl.base.paths import StatePaths
from labctl.guest import build, images
from labctl.guest.recipe import Recipe, RecipeFile

RECIPE = Recipe(
    "small",
    RecipeFile(
        description="small",
        suite="bookworm",
        kernel="linux-image-cloud-amd64",
        packages=["fio", "udev"],
        size_mib=512,
        command_line="rw quiet",
        user="lab",
        binaries={"fio": "/usr/bin/fio"},
        exclude=["/usr/share/doc/*"],
        mask=["fstrim.timer"],
        mask_generators=["systemd-sysv-generator"],
        files={"/etc/motd": "hello\n"},
    ),
)

# What mmdebstrap leaves: a tree with traces of the host, which the build takes out again.
MMDEBSTRAP = """\
printf '%s\\n' "$@" > "$LOG/mmdebstrap"; cat > "$LOG/sources"
tree=$(printf '%s\\n' "$@" | grep '/tree$')
mkdir -p "$tree/boot" "$tree/usr/bin" "$tree/etc/apt/apt.conf.d" "$tree/etc/systemd/system"
echo kernel > "$tree/boot/vmlinuz-6.1"; echo initrd > "$tree/boot/initrd.img-6.1"
chmod 600 "$tree/boot/initrd.img-6.1"
echo fio > "$tree/usr/bin/fio"
echo 'Acquire::http::Proxy "http://proxy.example";' > "$tree/etc/apt/apt.conf.d/99mmdebstrap"
echo 'deb http://mirror.example/debian bookworm main' > "$tree/etc/apt/sources.list"
echo host > "$tree/etc/hostname"; echo 0123 > "$tree/etc/machine-id"
"""
FAKES = {
    "mmdebstrap": MMDEBSTRAP,
    "apt-config": "echo 'Acquire::Retries \"3\";'",
    "dpkg-query": "echo 'udev 252'; echo 'fio 3.33-3'",
    "mke2fs": 'printf "%s\\n" "$@" > "$LOG/mke2fs"; for last; do :; done\n'
    'set -- "$@"; while [ $# -gt 2 ]; do shift; done; echo raw > "$1"',
    "qemu-img": 'for last; do :; done; echo qcow2 > "$last"',
}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return log_of(FAKES, tmp_path, monkeypatch)


def log_of(scripts: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts fakes on PATH; each writes its arguments into the folder that is returned."""
    for name in ("bin", "log"):
        (folder / name).mkdir()
    for name, script in scripts.items():
        fake(folder, name, script)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(folder / "log"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return folder / "log"


def fake(folder: Path, name: str, script: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\nset -e\n{script}\n")
    path.chmod(0o755)


def test_a_built_image_is_whole_and_verifies(places: StatePaths, log: Path) -> None:
    heard: list[Event] = []
    image = build.build(RECIPE, places, heard.append)
    assert image.dir.name == f"small-{RECIPE.digest[:12]}"
    assert images.verify(image) == []
    assert image.manifest["packages"] == {"fio": "3.33-3", "udev": "252"}
    assert image.command_line.startswith("root=UUID=")
    assert image.command_line.endswith(" rw quiet")
    assert image.command_line.split()[0].removeprefix("root=UUID=") in (log / "mke2fs").read_text()
    assert heard
    assert sorted(path.name for path in image.dir.iterdir()) == [
        "disk.qcow2",
        "initrd.img",
        "manifest.json",
        "tree",
        "vmlinuz",
    ]


def test_qemus_user_may_read_kernel_and_initrd(places: StatePaths, log: Path) -> None:
    image = build.build(RECIPE, places, silent)
    assert image.initrd.stat().st_mode & 0o044 == 0o044


def test_the_tree_keeps_nothing_of_the_host(places: StatePaths, log: Path) -> None:
    tree = build.build(RECIPE, places, silent).tree
    kept = "".join(path.read_text() for path in tree.rglob("*") if path.is_file())
    assert ".example" not in kept
    assert not (tree / "etc/hostname").exists()
    assert (tree / "etc/machine-id").read_text() == ""


def test_what_the_recipe_says_reaches_the_tree_and_mmdebstrap(
    places: StatePaths, log: Path
) -> None:
    tree = build.build(RECIPE, places, silent).tree
    assert os.readlink(tree / "etc/systemd/system/fstrim.timer") == "/dev/null"
    generator = tree / "etc/systemd/system-generators/systemd-sysv-generator"
    assert os.readlink(generator) == "/dev/null"
    asked = (log / "mmdebstrap").read_text().splitlines()
    assert "--include=linux-image-cloud-amd64,fio,udev" in asked
    assert "--dpkgopt=path-exclude=/usr/share/doc/*" in asked
    assert '--aptopt=Acquire::Retries "3";' in asked


def test_an_image_that_is_there_is_not_built_again(places: StatePaths, log: Path) -> None:
    first = build.build(RECIPE, places, silent)
    (log / "mmdebstrap").unlink()
    assert build.build(RECIPE, places, silent) == first
    assert not (log / "mmdebstrap").exists()


@pytest.mark.parametrize("tool", ["mmdebstrap", "mke2fs", "qemu-img"])
def test_a_tool_that_fails_leaves_nothing_behind(places: StatePaths, log: Path, tool: str) -> None:
    fake(log.parent, tool, "echo 'E: it broke' >&2; exit 1")
    with pytest.raises(BrokenError, match="E: it broke"):
        build.build(RECIPE, places, silent)
    assert [path.name for path in places.images.iterdir()] == [".lock"]


def test_a_program_that_the_packages_lack_is_named(places: StatePaths, log: Path) -> None:
    lacking = RECIPE.spec.model_copy(update={"binaries": {"fio": "/usr/bin/other"}})
    with pytest.raises(BrokenError, match="no file /usr/bin/other for 'fio'"):
        build.build(Recipe("small", lacking), places, silent)


def test_what_an_interrupted_build_left_is_removed_by_the_next(
    places: StatePaths, log: Path
) -> None:
    left = places.images / ".building-small-000000000000"
    (left / "tree").mkdir(parents=True)
    build.build(RECIPE, places, silent)
    assert not left.exists()


def test_without_root_nothing_is_started(
    places: StatePaths, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostError) as caught:
        build.build(RECIPE, places, silent)
    assert "as root" in (caught.value.hint or "")
    assert not places.images.exists()


def test_a_full_disk_is_told_before_anything_is_started(
    places: StatePaths, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**40, 2**40, 100 * 2**20))
    with pytest.raises(HostError, match="needs 2048 MiB, but .* has 100 MiB free"):
        build.build(RECIPE, places, silent)
    assert not (log / "mmdebstrap").exists()


def test_the_manifest_is_plain_json(places: StatePaths, log: Path) -> None:
    image = build.build(RECIPE, places, silent)
    manifest = json.loads((image.dir / images.MANIFEST).read_text())
    assert manifest["schema"] == 1
    assert manifest["digest"] == RECIPE.digest
