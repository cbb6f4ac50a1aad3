from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, BusyError, HostError, UsageError
from labctl.base.paths import StatePaths
from labctl.guest import images
from labctl.guest.images import Image
from labctl.guest.recipe import load_recipe
from labctl.store.jsonfile import write_json

MANIFEST = {
    "schema": 1,
    "name": "debian-13",
    "description": "a test image",
    "built_at": "2025-01-01T00:00:00+00:00",
    "build_s": 60.0,
    "command_line": "root=UUID=1 rw",
    "tree_bytes": 3,
    "packages": {"fio": "3.33-3"},
}


@pytest.fixture
def places(tmp_path: Path) -> StatePaths:
    return StatePaths(tmp_path)


def make_image(folder: Path, digest: str, recipe: str = "debian-13") -> Image:
    files = {images.DISK: b"disk", images.KERNEL: b"kernel", images.INITRD: b"initrd"}
    (folder / "tree/usr/bin").mkdir(parents=True)
    (folder / "tree/usr/bin/fio").write_bytes(b"fio")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    write_json(
        folder / images.MANIFEST,
        {
            **MANIFEST,
            "name": recipe,
            "digest": digest,
            "files": {
                name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                for name, data in files.items()
            },
            "binaries": {
                "fio": {"path": "/usr/bin/fio", "sha256": hashlib.sha256(b"fio").hexdigest()}
            },
        },
    )
    return Image.load(folder)


@pytest.fixture
def image(places: StatePaths) -> Image:
    return make_image(places.images / "debian-13-0123456789ab", "0123456789ab" * 4)


def test_an_image_is_found_by_the_digest_of_its_recipe(places: StatePaths) -> None:
    recipe = load_recipe("debian-13")
    assert images.find(recipe, places) is None
    make_image(images.image_dir(recipe, places), recipe.digest)
    found = images.find(recipe, places)
    assert found is not None
    assert found.digest == recipe.digest


def test_an_image_of_a_changed_recipe_is_not_taken(places: StatePaths, image: Image) -> None:
    assert images.find(load_recipe("debian-13"), places) is None


def test_half_an_image_is_none(places: StatePaths, image: Image) -> None:
    make_image(places.images / ".building-debian-13-ffffffffffff", "f" * 64)
    (places.images / "debian-13-eeeeeeeeeeee").mkdir()
    assert images.list_images(places) == [image]


def test_an_image_as_it_was_built_has_no_problems(image: Image) -> None:
    assert images.verify(image) == []


@pytest.mark.parametrize("name", [images.DISK, images.KERNEL, images.INITRD, "tree/usr/bin/fio"])
def test_a_changed_or_missing_file_is_named(image: Image, name: str) -> None:
    (image.dir / name).write_bytes(b"other")
    (changed,) = images.verify(image)
    assert name in changed
    assert "SHA-256" in changed
    (image.dir / name).unlink()
    (missing,) = images.verify(image)
    assert f"{name} cannot be read" in missing


def test_a_manifest_that_is_cut_off_is_an_error_with_a_remedy(image: Image) -> None:
    (image.dir / images.MANIFEST).write_text('{"name": "debian-13"}')
    with pytest.raises(BrokenError) as caught:
        Image.load(image.dir)
    assert "labctl image rm" in (caught.value.hint or "")


def test_an_image_is_got_by_its_folder_or_its_recipes_name(
    places: StatePaths, image: Image
) -> None:
    assert images.get("debian-13", places) == image
    assert images.get("debian-13-0123456789ab", places) == image


def test_a_name_that_several_images_share_is_refused_with_the_choices(
    places: StatePaths, image: Image
) -> None:
    make_image(places.images / "debian-13-ba9876543210", "ba9876543210" * 4)
    with pytest.raises(UsageError) as caught:
        images.get("debian-13", places)
    assert "debian-13-ba9876543210" in (caught.value.hint or "")


def test_a_recipes_name_means_the_image_of_the_recipe_as_it_is_now(
    places: StatePaths, image: Image
) -> None:
    recipe = load_recipe("debian-13")
    current = make_image(images.image_dir(recipe, places), recipe.digest)
    assert images.get("debian-13", places) == current


def test_an_unknown_name_is_refused_with_the_nearest(places: StatePaths, image: Image) -> None:
    with pytest.raises(UsageError) as caught:
        images.get("debian-13-0123456789ac", places)
    assert "Did you mean 'debian-13-0123456789ab'?" in (caught.value.hint or "")


def test_removing_takes_the_tree_the_prepared_overlays_and_leftovers(
    places: StatePaths, image: Image
) -> None:
    image.prepared_dir.mkdir()
    (image.prepared_dir / "overlay.qcow2").touch()
    (places.images / ".building-debian-13-ffffffffffff/tree").mkdir(parents=True)
    images.remove(image, places)
    assert [path.name for path in places.images.iterdir()] == [".lock"]


def test_an_image_with_something_mounted_in_it_is_not_removed(
    places: StatePaths, image: Image, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mountinfo = tmp_path / "mountinfo"
    target = str(image.tree / "proc").replace("-", "\\055")
    mountinfo.write_text(f"22 1 0:20 / /proc rw - proc proc rw\n31 1 0:4 / {target} rw - x x rw\n")
    monkeypatch.setattr(images, "MOUNTINFO", mountinfo)
    with pytest.raises(HostError) as caught:
        images.remove(image, places)
    assert caught.value.hint == f"Unmount it: umount {image.tree / 'proc'}"
    assert images.verify(image) == []


def test_no_other_user_can_hold_the_lock_of_the_images(places: StatePaths, image: Image) -> None:
    lock = places.images / ".lock"
    lock.touch(mode=0o644)
    with images.images_lock(places):
        assert lock.stat().st_mode & 0o777 == 0o600


def test_a_second_process_is_told_that_images_are_being_changed(
    places: StatePaths, image: Image
) -> None:
    with open(places.images / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BusyError):
            images.remove(image, places)
    assert images.list_images(places) == [image]
