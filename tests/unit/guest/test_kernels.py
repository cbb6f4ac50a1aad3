from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.guest.kernels import read_kernel, release_of
from labctl.guest.recipe import load_recipe

from .kernels import write_kernel, write_modules

RELEASE = "6.1.0-1-amd64"


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A kernel's package, unpacked somewhere."""
    root = tmp_path / "unpacked"
    write_kernel(root / f"boot/vmlinuz-{RELEASE}")
    (root / f"boot/config-{RELEASE}").write_text("CONFIG_HZ=250\n")
    write_modules(root / f"lib/modules/{RELEASE}")
    return root


def test_a_kernel_says_its_release(tmp_path: Path) -> None:
    assert release_of(write_kernel(tmp_path / "any-name", "6.12.3-custom+")) == "6.12.3-custom+"


@pytest.mark.parametrize(
    "data",
    [b"", b"\x7fELF" + bytes(4096), b"HdrS" * 200, bytes(0x202) + b"HdrS" + bytes(8)],
    ids=["empty", "vmlinux", "header elsewhere", "no version"],
)
def test_what_is_no_boot_image_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "kernel").write_bytes(data)
    with pytest.raises(UsageError, match="not a Linux kernel that QEMU boots"):
        release_of(tmp_path / "kernel")


def test_modules_and_configuration_are_found_beside_the_kernel(unpacked: Path) -> None:
    found = read_kernel(unpacked / f"boot/vmlinuz-{RELEASE}", None, unpacked.parent)
    assert found.modules == unpacked / f"lib/modules/{RELEASE}"
    assert found.config == unpacked / f"boot/config-{RELEASE}"
    assert set(found.digests) == {"file", "config", "modules"}


def test_or_on_the_host(unpacked: Path, tmp_path: Path) -> None:
    kernel = write_kernel(tmp_path / "elsewhere/kernel", RELEASE)
    found = read_kernel(kernel, None, unpacked)
    assert found.modules == unpacked / f"lib/modules/{RELEASE}"
    assert found.config == unpacked / f"boot/config-{RELEASE}"


def test_or_nowhere(tmp_path: Path) -> None:
    found = read_kernel(write_kernel(tmp_path / "a/kernel"), None, tmp_path)
    assert (found.modules, found.config) == (None, None)


def test_modules_of_another_release_are_not_taken(unpacked: Path) -> None:
    other = write_kernel(unpacked / "boot/vmlinuz-6.1.0-2-amd64", "6.1.0-2-amd64")
    assert read_kernel(other, None, unpacked).modules is None


@pytest.mark.parametrize("missing", ["kernel", "initrd"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    paths = {"kernel": write_kernel(tmp_path / "a"), "initrd": tmp_path / "b"}
    paths["initrd"].write_bytes(b"initrd")
    paths[missing].unlink()
    with pytest.raises(UsageError, match=f"{paths[missing]}: No such file"):
        read_kernel(paths["kernel"], paths["initrd"], tmp_path)


def test_an_image_with_another_kernel_is_another_image(tmp_path: Path) -> None:
    recipe = load_recipe("debian-13")
    (tmp_path / "initrd").write_bytes(b"initrd")
    first = read_kernel(write_kernel(tmp_path / "a/1"), None, tmp_path)
    given = [
        first,
        read_kernel(write_kernel(tmp_path / "a/2", more=b"patched"), None, tmp_path),
        read_kernel(tmp_path / "a/1", tmp_path / "initrd", tmp_path),
    ]
    write_modules(tmp_path / f"lib/modules/{RELEASE}")
    given.append(read_kernel(tmp_path / "a/1", None, tmp_path))
    digests = {recipe.digest, *(recipe.with_kernel(kernel).digest for kernel in given)}
    assert len(digests) == 5
    elsewhere = read_kernel(write_kernel(tmp_path / "b/c/1"), None, tmp_path / "empty")
    assert recipe.with_kernel(elsewhere).digest == recipe.with_kernel(first).digest
