"""Make one file of all Python packages that labctl needs, for hosts without a network or a
compiler."""

from __future__ import annotations

import hashlib
import re
import sys
import tarfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from labctl.base import process
from labctl.base.errors import UsageError
from labctl.base.paths import shipped_data
from labctl.base.process import Deadline
from labctl.store.jsonfile import output_file

REQUIREMENTS: Final = "requirements.txt"
PYTHONS: Final = ("3.11", "3.13")
"""Releases of Python in Debian 12 and 13."""
_BUILT: Final = "libvirt-python"
"""Packages published only as source: built for the Python that runs this. Hosts with another Python
use the distribution's own (python3-libvirt)."""
_LONGEST_S: Final = 1800.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def pinned(root: str = "labctl") -> dict[str, str]:
    """Return the packages that a package needs, recursively, with the versions installed here:
    hosts get the versions that this labctl was tested with. Extras are left out."""
    found: dict[str, str] = {}
    todo = [root]
    while todo:
        name = todo.pop()
        try:
            there = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another Python or system
        if (key := _key(name)) in found:
            continue
        found[key] = there.version
        for needed in there.requires or ():
            words, _, marker = needed.partition(";")
            if "extra" not in marker and (match := _NAME.match(words.strip())):
                todo.append(match[0])
    found.pop(_key(root), None)
    return dict(sorted(found.items()))


def _key(name: str) -> str:
    """Return the canonical form of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def make_wheelhouse(target: Path) -> int:
    """Write the wheelhouse, a tar file of wheels for each of PYTHONS and the one that runs this,
    with their SHA-256; return how many there are.

    libvirt-python is built here, against this distribution's headers, for this Python alone. Raises
    UsageError if labctl does not run from a checkout, ProcessError if pip fails.
    """
    checkout = shipped_data()
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not (checkout / "pyproject.toml").is_file():
        raise UsageError(
            "this labctl was installed from a wheel, so its source is not available",
            hint="Run it from a checkout: .venv/bin/labctl fleet wheelhouse.",
        )
    with TemporaryDirectory(prefix="labctl-wheels-") as made:
        wheels = Path(made)
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        deadline = Deadline.after(_LONGEST_S, "making wheels")
        hint = "It downloads packages, and builds libvirt-python with libvirt-dev and gcc."
        wanted = {name: f"{name}=={version}" for name, version in pinned().items()}
        build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", made]
        process.run([*build, *wanted.values(), str(checkout)], deadline=deadline, hint=hint)
        published = [text for name, text in wanted.items() if name != _BUILT]
        fetch = [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", made]
        for python in set(PYTHONS) - {own}:
            argv = [*fetch, "--python-version", python, *published]
            process.run(argv, deadline=deadline, hint=hint)
        files = sorted(wheels.glob("*.whl"))
        (wheels / REQUIREMENTS).write_text(_requirements(files, own))
        with output_file(target) as file, tarfile.open(fileobj=file, mode="w") as archive:
            for path in (*files, wheels / REQUIREMENTS):
                archive.add(path, path.name, filter=_anonymous)
    return len(files)


def _requirements(wheels: Iterable[Path], own: str) -> str:
    """Return the lines for pip, one per package with the digests of all its wheels."""
    digests: dict[tuple[str, str], list[str]] = {}
    for wheel in wheels:
        name, version, *_ = wheel.name.split("-")
        with wheel.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        digests.setdefault((name, version), []).append(f" --hash=sha256:{digest}")
    lines = []
    for (name, version), hashes in digests.items():
        only = f' ; python_version == "{own}"' if _key(name) == _BUILT else ""
        lines.append(f"{name}=={version}{only}{''.join(hashes)}\n")
    return "".join(lines)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who made the file and when, so that the same wheels make the same wheelhouse."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o644
    return entry
