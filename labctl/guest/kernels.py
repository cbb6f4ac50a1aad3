"""Find a kernel of the user's own for the guest: the host's, or one that was built or unpacked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import UsageError
from labctl.store.jsonfile import canonical

_SETUP_BYTES = 64 * 1024
"""Bytes to read: the setup code and its texts lie at the start of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenKernel:
    """Hold a kernel and the files that belong to it, as they were when read.

    `initrd`: None for none, or for the image's own if the release is the same. `modules`: the
    folder of its loadable modules, `config`: the configuration that it was built with; None if
    missing. `digests` (SHA-256, hex) of the existing ones, by field name.
    """

    file: Path
    initrd: Path | None
    release: str
    modules: Path | None
    config: Path | None
    digests: Mapping[str, str]

    def to_json(self) -> dict[str, object]:
        return {
            "file": str(self.file),
            "initrd": str(self.initrd) if self.initrd else None,
            "release": self.release,
            "modules": str(self.modules) if self.modules else None,
            "sha256": dict(self.digests),
        }


def read_kernel(file: Path, initrd: Path | None, root: Path = Path("/")) -> GivenKernel:
    """Return the kernel in a file, with its modules and configuration from where a package puts
    them: beside it (`…/boot/vmlinuz` and `…/lib/modules/RELEASE`), else on the host.

    Raises UsageError if a file cannot be read or is not a kernel that QEMU can boot.
    """
    release = release_of(file)
    places = [file.parent.parent, root]
    modules = _first(place / "lib/modules" / release for place in places)
    config = _first(
        [
            file.parent / f"config-{release}",
            root / f"boot/config-{release}",
            *([modules / "config"] if modules else []),
        ]
    )
    found = {"file": file, "initrd": initrd, "config": config}
    digests = {name: _file_digest(path) for name, path in found.items() if path is not None}
    if modules is not None:
        digests["modules"] = _listing_digest(modules)
    return GivenKernel(
        file=file,
        initrd=initrd,
        release=release,
        modules=modules,
        config=config,
        digests=digests,
    )


def release_of(file: Path) -> str:
    """Return the release of the kernel in a file ("6.1.0-28-amd64"), from its setup header.

    https://www.kernel.org/doc/html/v6.1/x86/boot.html: "HdrS" at 0x202, and at 0x20E the offset of
    the version's text, less 0x200. Raises UsageError if the file has no such header.
    """
    try:
        with open(file, "rb") as opened:
            setup = opened.read(_SETUP_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read the kernel {file}: {error.strerror}") from error
    start = int.from_bytes(setup[0x20E:0x210], "little") + 0x200
    words = setup[start : start + 256].split(b"\0")[0].decode("ascii", errors="replace").split()
    if setup[0x202:0x206] != b"HdrS" or start == 0x200 or not words:
        raise UsageError(
            f"{file} is not a Linux kernel that QEMU boots by itself",
            hint="Give a bzImage, as distributions install it: /boot/vmlinuz-RELEASE.",
        )
    return words[0]


def _first(candidates: Iterator[Path] | list[Path]) -> Path | None:
    return next((path for path in candidates if path.exists()), None)


def _file_digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _listing_digest(folder: Path) -> str:
    """Return a digest of names and sizes, because a release's modules are hundreds of megabytes."""
    listing = sorted(
        (str(path.relative_to(folder)), path.lstat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    )
    return hashlib.sha256(canonical(listing).encode()).hexdigest()
