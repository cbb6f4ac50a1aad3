"""Bundle what a self-test has recorded, without what identifies the host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import labctl
from labctl.base.paths import StatePaths, shipped_data
from labctl.host.facts import host_facts
from labctl.host.identity import read_identity
from labctl.run.commands.bundle import read_bundle, write_bundle
from labctl.run.commands.host_output import ToolOutput, kernel_files
from labctl.run.commands.scrub import Scrubber, is_json
from labctl.run.commands.selftest_result import Outcome, unavailable
from labctl.store.run_folder import LoadedRun, RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Report on a bundle. `taken_out`: how many identifying texts of each kind were removed."""

    files: int
    taken_out: Mapping[str, int]


def pack(
    target: Path,
    shown: Outcome,
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
    shown: Outcome, run: LoadedRun, facts: Mapping[str, Any], tools: Mapping[str, Any]
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
