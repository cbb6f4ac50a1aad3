"""Files that look like kernels."""

from __future__ import annotations

from pathlib import Path


def write_kernel(path: Path, release: str = "6.1.0-1-amd64", more: bytes = b"") -> Path:
    """A boot image as far as its setup header tells (Documentation/arch/x86/boot.rst)."""
    setup = bytearray(0x1000)
    setup[0x202:0x206] = b"HdrS"
    setup[0x20E:0x210] = (0x600).to_bytes(2, "little")
    text = f"{release} (debian-kernel@lists.debian.org) #1 SMP\0".encode()
    setup[0x800 : 0x800 + len(text)] = text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(setup) + more)
    return path


def write_modules(folder: Path, *, indexed: bool = True) -> Path:
    (folder / "kernel").mkdir(parents=True)
    (folder / "kernel/virtio_console.ko").write_bytes(b"module")
    (folder / "build").symlink_to("/usr/src/linux-headers")
    if indexed:
        (folder / "modules.dep").write_text("kernel/virtio_console.ko:\n")
    return folder
