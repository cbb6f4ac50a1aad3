"""Bundle what a self-test has recorded, without what identifies the host.

A bundle is files and a manifest with the SHA-256 of each, in one tar.xz.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import labctl
from labctl.base.errors import UsageError
from labctl.base.jsontext import parse_json
from labctl.base.paths import StatePaths, shipped_data
from labctl.host.facts import host_facts
from labctl.host.identity import read_identity
from labctl.run.commands.host_output import ToolOutput, kernel_files
from labctl.run.commands.scrub import Scrubber, is_json
from labctl.run.commands.selftest_result import SelftestResult, unavailable
from labctl.store.jsonfile import write_output
from labctl.store.run_folder import LoadedRun, RunFolder

MANIFEST = "manifest.json"
FOLDER = "labctl-selftest"
SCHEMA = 1
_LARGEST_BYTES = 1 << 30
"""Limit on an unpacked bundle: no real one has more, and a malicious one may try to fill a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Report on a bundle. `taken_out`: how many identifying texts of each kind were removed."""

    files: int
    taken_out: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Bundle:
    manifest: Mapping[str, Any]
    files: Mapping[str, bytes]


def pack(
    target: Path,
    shown: SelftestResult,
    folder: RunFolder,
    outputs: Mapping[str, ToolOutput],
    places: StatePaths,
    results: Path,
) -> Packed:
    """Write the bundle of a run, of what tools printed and of what the kernel says to `target`."""
    files = {f"run/{name}": data for name, data in _contents(folder.path).items()}
    files |= {f"tools/{name}.txt": output.text.encode() for name, output in outputs.items()}
    files |= {f"kernel/{name}": data for name, data in kernel_files().items()}
    scrubber = Scrubber(read_identity(), _paths(places, results))
    files = {
        name: scrubber.scrubbed(data, is_json=is_json(name, data)) for name, data in files.items()
    }
    tools = {name: output.to_json() for name, output in outputs.items()}
    manifest = _manifest(shown, folder.load(), host_facts(places), tools)
    manifest = json.loads(scrubber.scrubbed(json.dumps(manifest).encode(), is_json=True))
    taken_out = dict(scrubber.taken_out)
    write_bundle(target, {**manifest, "taken_out": taken_out}, files)
    return Packed(files=len(read_bundle(target).files), taken_out=taken_out)


def _contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _paths(places: StatePaths, results: Path) -> dict[str, str]:
    """Folders that may hold a user's name, to what stands for them."""
    own = {
        str(results): "/var/lib/labctl/selftest",
        str(places.root): "/var/lib/labctl",
        str(shipped_data()): "/usr/share/labctl",
        str(Path.home()): "/root",
    }
    return {old: new for old, new in own.items() if old != "/"}


def _manifest(
    shown: SelftestResult, run: LoadedRun, facts: Mapping[str, Any], tools: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the manifest, without `boot_id`, which belongs to this boot alone."""
    return {
        "labctl": labctl.__version__,
        "made_on": datetime.now(UTC).date().isoformat(),
        **shown.to_json(),
        "unavailable": unavailable(run),
        "host": {key: value for key, value in facts.items() if key != "boot_id"},
        "tools": tools,
    }


def write_bundle(target: Path, manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write both to a tar.xz at `target`; the manifest gets the files' digests and sizes.

    Raises HostError when it can't be written.
    """
    listed = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in sorted(files.items())
    }
    text = json.dumps({"schema": SCHEMA, **manifest, "files": listed}, indent=1, ensure_ascii=False)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        for name, data in {MANIFEST: (text + "\n").encode(), **dict(sorted(files.items()))}.items():
            # No owner and no times: who made it is nobody's business.
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    write_output(target, packed.getvalue())


def read_bundle(path: Path) -> Bundle:
    """Return the bundle at `path`, each file checked against the manifest.

    Raises UsageError when it is none, is cut off, or was altered.
    """
    try:
        files = _unpacked(path)
    except (OSError, tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
        raise UsageError(f"{path} is not a bundle of 'labctl selftest': {error}") from error
    try:
        manifest = parse_json(files.pop(MANIFEST))
        listed = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} has no {MANIFEST} that can be read: {error!r}") from error
    found = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    if differing := sorted(n for n in found | listed if found.get(n) != listed.get(n)):
        raise UsageError(
            f"{path} is not as it was made: {', '.join(differing[:5])}",
            hint="Ask for it again: 'labctl selftest' writes a whole one or none.",
        )
    return Bundle(manifest, files)


def _unpacked(path: Path) -> dict[str, bytes]:
    """Unpack into memory, so that no name in it can lead anywhere."""
    files: dict[str, bytes] = {}
    left = _LARGEST_BYTES
    with tarfile.open(path, mode="r:xz") as tar:
        for entry in tar:
            data = tar.extractfile(entry)
            left -= entry.size
            if data is None or left < 0 or not entry.name.startswith(f"{FOLDER}/"):
                raise ValueError(f"it holds '{entry.name[:80]}'")
            files[entry.name.removeprefix(f"{FOLDER}/")] = data.read()
    return files
