"""Copy a run's folder to pass on: as it is, or without what identifies its host."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from labctl.base.errors import HostError, UsageError
from labctl.base.held import open_regular
from labctl.base.paths import StatePaths, lab, shipped_data
from labctl.host.identity import read_groups, read_identity, read_users
from labctl.run.commands.redact import (
    DERIVED,
    Identity,
    Redacted,
    is_derived,
    redact,
    run_files,
)
from labctl.store.archive import SUFFIX, pack
from labctl.store.jsonfile import output_file
from labctl.store.run_folder import RunFolder

_OTHER_ARCHIVES = frozenset({".gz", ".tgz", ".tar", ".xz", ".zip", ".zst"})


def export(
    folder: RunFolder,
    target: Path,
    places: StatePaths,
    *,
    redacting: bool,
    hidden: Collection[str] = (),
) -> Redacted:
    """Write a copy of the run: an archive where the name of `target` ends so, else a folder, which
    must not be there yet. Nothing is left behind where it fails. `hidden`: texts that are
    taken out of a redacted copy as well.

    Raises UsageError, HostError, and BrokenError where a redacted copy would not be one.
    """
    is_packed = target.name.endswith(SUFFIX)
    if not is_packed and target.suffix in _OTHER_ARCHIVES:
        raise UsageError(f"{target}: the name of a run's archive ends in {SUFFIX}")
    if not is_packed and os.path.lexists(target):
        raise UsageError(f"{target} is there already", hint="Give another --out.")
    beside = target.absolute().parent
    if not beside.is_dir():
        raise UsageError(f"{beside} is not a folder", hint="Make it, or give another --out.")
    try:
        with (
            folder.unpacked() as source,
            tempfile.TemporaryDirectory(prefix=".labctl-export-", dir=beside) as made,
        ):
            copy = Path(made, "run")
            if redacting:
                done = redact(source, copy, _with(hidden, host_identity(folder, places)))
            else:
                done = Redacted(name=folder.name)
                files = _regular(source.path, done)
                if is_packed:
                    _pack(files, target, done.name)
                    return done
                _copy(files, copy)
            if is_packed:
                _pack(run_files(copy), target, done.name)
            else:
                os.rename(copy, target)
    except OSError as error:
        raise HostError(f"cannot write {target}: {error.strerror or error}") from error
    return done


def _with(hidden: Collection[str], identity: Identity) -> Identity:
    return replace(identity, known={**identity.known, **dict.fromkeys(hidden, "word")})


def host_identity(folder: RunFolder, places: StatePaths) -> Identity:
    """Return what is known of this host, of the run's owner and of the folders that runs name."""
    users = read_users(folder.path.stat().st_uid)
    own = {
        str(folder.path): "/var/lib/labctl/results/run",
        str(folder.path.parent): "/var/lib/labctl/results",
        str(places.root): "/var/lib/labctl",
        str(shipped_data()): "/usr/share/labctl",
        str(Path(__file__).parents[2]): "/usr/share/labctl/labctl",
        **({str(found): "/redacted/lab"} if (found := lab().folder) else {}),
        str(Path.home()): "/root",
    }
    paths = {old: new for old, new in own.items() if old not in ("/", "/var/lib/labctl")}
    return Identity({**read_groups(), **users, **read_identity()}, paths)


def _regular(folder: Path, done: Redacted) -> dict[str, Path]:
    """Return the files of a run that are passed on: regular ones, as a link would lead elsewhere on
    another host, and none that labctl makes of the others."""
    found = {}
    for name, path in run_files(folder).items():
        if "/" not in name and is_derived(name):
            done.left_out[name] = DERIVED
        elif path.is_symlink() or not path.is_file():
            done.left_out[name] = "it is a link or no regular file"
        else:
            found[name] = path
    done.files = len(found)
    return found


def _copy(files: Mapping[str, Path], target: Path) -> None:
    target.mkdir(mode=0o700)
    for name, path in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with open(open_regular(path), "rb") as source, open(target / name, "xb") as copy:
            shutil.copyfileobj(source, copy)


def _pack(files: Mapping[str, Path], target: Path, root: str) -> None:
    with output_file(target) as file:
        pack(files, file, root)
