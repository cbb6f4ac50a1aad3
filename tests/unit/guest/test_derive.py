"""Images with a kernel of the user's own, made of images that are there. No guest is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.base.events import Event, Warned, silent
from labctl.base.paths import StatePaths
from labctl.guest import build, images
from labctl.guest.images import Image
from labctl.guest.kernels import read_kernel
from labctl.guest.recipe import Recipe

from .kernels import write_kernel, write_modules
from .test_build import FAKES, RECIPE, log_of

RELEASE = "6.1.0-1-amd64"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kernel = write_kernel(tmp_path / "packaged-kernel", "6.1.0-9-cloud-amd64")
    taken = FAKES["mmdebstrap"].replace("echo kernel >", f"cat {kernel} >")
    scripts = FAKES | {"mmdebstrap": taken, "chroot": 'printf "%s\\n" "$@" > "$LOG/chroot"'}
    return log_of(scripts, tmp_path, monkeypatch)


@pytest.fixture
def base(places: StatePaths, log: Path) -> Image:
    return build.build(RECIPE, places, silent)


def with_kernel(kernel: Path, initrd: Path | None, root: Path) -> Recipe:
    return RECIPE.with_kernel(read_kernel(kernel, initrd, root))


def test_it_has_the_kernel_and_the_initrd_and_the_other_images_programs(
    places: StatePaths, base: Image, tmp_path: Path
) -> None:
    kernel, initrd = write_kernel(tmp_path / "k/kernel"), tmp_path / "k/initrd"
    initrd.write_bytes(b"my initrd")
    initrd.chmod(0o600)
    image = build.build(with_kernel(kernel, initrd, tmp_path), places, silent)
    assert image.kernel.read_bytes() == kernel.read_bytes()
    assert image.initrd is not None
    assert image.initrd.read_bytes() == b"my initrd"
    assert image.initrd.stat().st_mode & 0o044 == 0o044
    assert (image.tree / "usr/bin/fio").samefile(base.tree / "usr/bin/fio")
    assert image.command_line == f"{base.command_line} noresume"
    assert images.verify(image) == []
    assert image.given_kernel is not None
    assert image.given_kernel["release"] == RELEASE
    assert image.binaries == base.binaries


def test_the_image_that_it_is_made_of_is_built_first(
    places: StatePaths, log: Path, tmp_path: Path
) -> None:
    kernel = write_kernel(tmp_path / "k/kernel")
    image = build.build(with_kernel(kernel, None, tmp_path), places, silent)
    base = images.find(RECIPE, places)
    assert base is not None
    assert image.manifest["made_of"] == base.dir.name
    assert images.verify(base) == []


def test_modules_go_into_tree_and_disk_and_no_other_image(
    places: StatePaths, base: Image, log: Path, tmp_path: Path
) -> None:
    root = tmp_path / "k"
    kernel = write_kernel(root / "boot/vmlinuz")
    write_modules(root / f"lib/modules/{RELEASE}", indexed=False)
    (log / "mke2fs").unlink()
    image = build.build(with_kernel(kernel, None, tmp_path), places, silent)
    modules = image.tree / "lib/modules" / RELEASE
    assert (modules / "kernel/virtio_console.ko").read_bytes() == b"module"
    assert not (modules / "build").is_symlink()
    assert (log / "chroot").read_text().split()[1:] == ["depmod", RELEASE]
    assert "-d" in (log / "mke2fs").read_text()
    assert not (base.tree / "lib/modules").exists()
    assert images.verify(base) == []


def test_an_index_of_modules_is_not_made_again(
    places: StatePaths, base: Image, log: Path, tmp_path: Path
) -> None:
    write_modules(tmp_path / f"k/lib/modules/{RELEASE}")
    kernel = write_kernel(tmp_path / "k/boot/vmlinuz")
    build.build(with_kernel(kernel, None, tmp_path), places, silent)
    assert not (log / "chroot").exists()


def test_a_disk_without_anything_to_add_is_the_other_images_and_the_lack_is_told(
    places: StatePaths, base: Image, tmp_path: Path
) -> None:
    heard: list[Event] = []
    kernel = write_kernel(tmp_path / "k/kernel")
    image = build.build(with_kernel(kernel, None, tmp_path), places, heard.append)
    assert image.disk.samefile(base.disk)
    (warning,) = (event for event in heard if isinstance(event, Warned))
    assert f"no modules of {RELEASE} found" in warning.text


def test_without_an_initrd_the_root_is_named_by_its_device(
    places: StatePaths, base: Image, tmp_path: Path
) -> None:
    kernel = write_kernel(tmp_path / "k/kernel")
    image = build.build(with_kernel(kernel, None, tmp_path), places, silent)
    assert image.initrd is None
    assert image.command_line.split()[0] == "root=/dev/vda"


def test_the_images_own_initrd_serves_a_kernel_of_its_release(
    places: StatePaths, base: Image, tmp_path: Path
) -> None:
    kernel = write_kernel(tmp_path / "k/kernel", "6.1.0-9-cloud-amd64", more=b"patched")
    image = build.build(with_kernel(kernel, None, tmp_path), places, silent)
    assert image.initrd is not None
    assert base.initrd is not None
    assert image.initrd.read_bytes() == base.initrd.read_bytes()
    assert image.command_line.startswith("root=UUID=")


def test_a_configuration_is_put_where_the_guests_facts_find_it(
    places: StatePaths, base: Image, tmp_path: Path
) -> None:
    kernel = write_kernel(tmp_path / "k/kernel")
    (tmp_path / f"k/config-{RELEASE}").write_text("CONFIG_HZ=1000\n")
    image = build.build(with_kernel(kernel, None, tmp_path), places, silent)
    assert (image.tree / f"boot/config-{RELEASE}").read_text() == "CONFIG_HZ=1000\n"
    assert not (base.tree / f"boot/config-{RELEASE}").exists()


def test_a_kernel_that_vanishes_leaves_nothing_behind(
    places: StatePaths, base: Image, tmp_path: Path
) -> None:
    kernel = write_kernel(tmp_path / "k/kernel")
    recipe = with_kernel(kernel, None, tmp_path)
    kernel.unlink()
    with pytest.raises(UsageError, match="cannot read"):
        build.build(recipe, places, silent)
    assert images.list_images(places) == [base]
    assert not list(places.images.glob(".building-*"))


def test_either_image_can_be_removed_first(places: StatePaths, base: Image, tmp_path: Path) -> None:
    kernel = write_kernel(tmp_path / "k/kernel")
    image = build.build(with_kernel(kernel, None, tmp_path), places, silent)
    images.remove(base, places)
    assert images.verify(image) == []
