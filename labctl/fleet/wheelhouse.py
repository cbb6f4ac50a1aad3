"""Make one file of all Python packages that labctl needs, for hosts without a network or a
compiler."""

from __future__ import annotations

import hashlib
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Final

from labctl.base import process
from labctl.base.errors import UsageError
from labctl.base.paths import shipped_data
from labctl.base.process import Deadline
from labctl.store.jsonfile import output_file

REQUIREMENTS: Final = "requirements.txt"
LOCK: Final = "requirements.lock"
PYTHONS: Final = ("3.11", "3.13")
"""Releases of Python in Debian 12 and 13."""
_BUILT: Final = "libvirt-python"
"""Packages published only as source: built for the Python that runs this. Hosts with another Python
use the distribution's own (python3-libvirt)."""
_LONGEST_S: Final = 1800.0
_LOCKED = re.compile(r"([A-Za-z0-9._-]+)==(\S+)\s")
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


def locked(lock: str, wanted: Mapping[str, str]) -> list[str]:
    """Return the lines of a lock for these packages and versions, with the SHA-256 of each of their
    files, for pip's --require-hashes. Raises UsageError for a package that it has in another
    version or not at all."""
    lines = {}
    for line in lock.replace("\\\n", " ").splitlines():
        if (match := _LOCKED.match(line)) and "--hash=sha256:" in line:
            lines[_key(match[1]), match[2]] = " ".join(line.split())
    lacking = [
        f"{name} {version}" for name, version in wanted.items() if (name, version) not in lines
    ]
    if lacking:
        raise UsageError(
            f"requirements.lock has no SHA-256 of {', '.join(lacking)}",
            hint="Install the locked versions: 'make setup'.",
        )
    return [lines[item] for item in wanted.items()]


def _key(name: str) -> str:
    """Return the canonical form of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def make_wheelhouse(target: Path) -> int:
    """Write the wheelhouse, a tar file of wheels for each of PYTHONS and the one that runs this,
    with their SHA-256; return how many there are.

    libvirt-python is built here, against this distribution's headers, for this Python alone. pip
    takes only files whose SHA-256 the checkout's lock has. Raises UsageError if labctl does not run
    from a checkout or with other versions, ProcessError if pip fails.
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
        wanted = pinned()
        lock = (checkout / LOCK).read_text()
        build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", made]
        with _file_of(locked(lock, wanted)) as all_of_it:
            process.run([*build, *all_of_it], deadline=deadline, hint=hint)
        process.run([*build, str(checkout)], deadline=deadline, hint=hint)
        fetch = [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", made]
        published = {name: version for name, version in wanted.items() if name != _BUILT}
        with _file_of(locked(lock, published)) as wheels_of_it:
            for python in set(PYTHONS) - {own}:
                argv = [*fetch, "--python-version", python, *wheels_of_it]
                process.run(argv, deadline=deadline, hint=hint)
        files = sorted(wheels.glob("*.whl"))
        (wheels / REQUIREMENTS).write_text(_requirements(files, own))
        with output_file(target) as file, tarfile.open(fileobj=file, mode="w") as archive:
            for path in (*files, wheels / REQUIREMENTS):
                archive.add(path, path.name, filter=_anonymous)
    return len(files)


@contextmanager
def _file_of(lines: Iterable[str]) -> Iterator[list[str]]:
    """Write requirements with hashes; yield pip's options for them."""
    with NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{line}\n" for line in lines))
        file.flush()
        yield ["--require-hashes", "--requirement", file.name]


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
