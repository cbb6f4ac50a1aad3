"""Read a fleet's folder to pool its runs: the plan, and each host's progress; lock it."""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from labctl import __version__
from labctl.analysis.hosts.fleet import HostState
from labctl.base.errors import BrokenError, BusyError, FileError, HostError, LabctlError, UsageError
from labctl.base.json import parse_json
from labctl.base.paths import RUN_ARCHIVE
from labctl.base.trust import open_regular
from labctl.base.wording import counted, printable
from labctl.fleet.sweep_hosts import (
    FLEET,
    RUN,
    STATE,
    FleetSweep,
    StateRecord,
    Status,
    SweepFolder,
    check_names,
    fleet_path,
    read_fleet,
    read_state,
)
from labctl.store.archive import RunArchive, archive_digest
from labctl.store.jsonfile import replacing
from labctl.store.run_folder import RunFolder
from labctl.store.run_places import find_run

_LOCK: Final = ".lock"


@dataclass(frozen=True, slots=True)
class FleetFolder:
    """Read a fleet's folder, or a folder of archives that a playbook fetched. Only `data` is
    written."""

    path: Path
    record: FleetSweep
    archives: Mapping[str, Path] | None = None
    """Archives by host, in a folder without fleet.json or of a month."""
    month: str = ""
    """Month of the runs that count, YYYY-MM; "": each host's last one."""

    @classmethod
    def open(cls, path: Path, month: str = "") -> FleetFolder:
        """Return the fleet at a path. Raises UsageError if there is none, or if no host has a run
        of the month."""
        is_fleet = (path / FLEET).is_file()
        found = _archives_in(path / "hosts" if is_fleet else path) if month or not is_fleet else {}
        if not (found or is_fleet):
            return cls(path, read_fleet(path))  # which says what is missing
        if month and not (found := _of_month(found, month)):
            raise UsageError(f"no host of {path.name} has a run of {month}")
        record = read_fleet(path) if is_fleet else _record_of(found)
        return cls(path, record, found or None, month)

    @classmethod
    def find(cls, results: Path, name: str) -> FleetFolder:
        """Return the fleet of that name in `results`, or at that path (a name with a '/'). With
        '@YYYY-MM' after the name the runs of that month count. Raises UsageError."""
        whole, at, month = name.rpartition("@")
        if at and _MONTH.fullmatch(month):
            return cls.open(fleet_path(results, whole), month)
        return cls.open(fleet_path(results, name))

    @property
    def name(self) -> str:
        return self.path.resolve().name + (f"@{self.month}" if self.month else "")

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def is_swept(self) -> bool:
        """Return whether `labctl fleet sweep` measured it, so that its hosts can be reached and
        have their runs."""
        return bool(self.record.inventory) and not self.month

    def hosts(self) -> Iterator[str]:
        """Yield the hosts of the batches, then those that only have a folder, by name."""
        planned = dict.fromkeys(self.archives or self.record.hosts)
        yield from (host for host in planned if _is_plain(host))
        if self.archives is not None:
            return
        try:
            found = sorted(path.name for path in (self.path / "hosts").iterdir() if path.is_dir())
        except FileNotFoundError:
            return
        yield from (host for host in found if host not in planned)

    def state(self, host: str) -> HostState:
        """Return a host's progress; an unreadable state is a failure with that reason."""
        if self.archives is not None:
            return HostState(host=host, status=str(Status.DONE), reason="", run="")
        path = self._state(host)
        if not path.is_file():
            why = "no news"
            return HostState(host=host, status=str(Status.WAITING), reason=why)
        try:
            of = read_state(path)
        except BrokenError as error:
            return HostState(host=host, status=str(Status.FAILED), reason=error.message)
        return HostState(host=host, status=str(of.status), reason=of.reason, run=of.run)

    def digest(self, host: str) -> str:
        """Return the digest of a finished host's run: the one verified when it was fetched, else
        the SHA-256 of its archive."""
        if self.archives is None and (known := read_state(self._state(host)).digest):
            return known
        try:
            with open(open_regular(self._archive(host)), "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise FileError(
                f"{self._archive(host)} cannot be read: {error.strerror}",
                hint="'labctl fleet sweep --resume' fetches it again.",
            ) from error

    def run(self, host: str) -> RunFolder:
        """Return a host's run, in its archive. Raises BrokenError if there is none."""
        if not self._archive(host).is_file():
            raise FileError(
                f"its {RUN} is missing", hint="'labctl fleet sweep --resume' fetches it again."
            )
        return find_run(self.path, str(self._archive(host)))

    def _archive(self, host: str) -> Path:
        if self.archives is not None:
            return self.archives[host]
        return self.path / "hosts" / host / RUN

    def _state(self, host: str) -> Path:
        return self.path / "hosts" / host / STATE


def _archives_in(folder: Path) -> dict[str, Path]:
    """Return archives of runs by host, sorted: HOST/run.tar.xz, or HOST.tar.xz."""
    found = {path.name.removesuffix(RUN_ARCHIVE): path for path in folder.glob(f"*{RUN_ARCHIVE}")}
    found |= {path.parent.name: path for path in folder.glob(f"*/{RUN}")}
    return {host: found[host] for host in sorted(found) if found[host].is_file()}


def _record_of(archives: Mapping[str, Path]) -> FleetSweep:
    """Return what fleet.json would say: the study is that of the first readable run. Raises
    BrokenError if there is none."""
    broken: LabctlError | None = None
    for path in archives.values():
        try:
            return _measured(RunFolder.in_archive(path), tuple(archives))
        except LabctlError as error:
            broken = broken or error
    raise FileError(
        f"none of {counted(len(archives), 'archive')} can be read"
        + (f": {broken.message}" if broken else "")
    )


def _measured(run: RunFolder, hosts: tuple[str, ...]) -> FleetSweep:
    plan, record = run.read_plan(), run.read_run()
    return FleetSweep(
        study=plan.study or "",
        study_digest=plan.study_digest or "",
        seed=plan.seed or 0,
        labctl=__version__,
        started=record.started_at or "",
        command=(),
        inventory=(),
        serial="100%",
        batches=(hosts,),
    )


_MONTH: Final = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")


def _of_month(archives: Mapping[str, Path], month: str) -> dict[str, Path]:
    """Return the archives of hosts whose runs began in a month: HOST/YYYY-MM.tar.xz, or the last
    one."""
    found = {}
    for host, last in archives.items():
        earlier = last.with_name(f"{month}{RUN_ARCHIVE}")
        if last.name == RUN and earlier.is_file():
            found[host] = earlier
        elif _month(RunFolder.in_archive(last)) == month:
            found[host] = last
    return found


def _month(run: RunFolder) -> str:
    """Return the month in which a run began, in UTC; "" if that is unknown."""
    try:
        began = datetime.fromisoformat(run.read_run().started_at or "")
        return began.astimezone(UTC).strftime("%Y-%m")
    except (ValueError, OverflowError, LabctlError):
        return ""


# Add archives of runs to a fleet, or make one of them.
#
# fleet-ID/hosts/NAME/run.tar.xz        the host's last run
# fleet-ID/hosts/NAME/2026-09.tar.xz    its run of an earlier month


def add_runs(path: Path, archives: Mapping[str, Path], *, replace: bool) -> None:
    """Copy runs' archives by host into a fleet, which is made if there is none. A host has a run a
    month. Raises UsageError for a host that has one of that month already, unless `replace`; for a
    run of another study; or for a folder without fleet.json."""
    check_names(tuple(archives))
    runs = {host: RunFolder.in_archive(archive) for host, archive in archives.items()}
    if not (path / FLEET).is_file():
        # Hidden files are a lock, and what a killed `fleet add` left half written.
        if path.exists() and any(not one.name.startswith(".") for one in path.iterdir()):
            raise UsageError(f"{path} is not empty, and has no {FLEET}", hint="Name a new folder.")
        record = _measured(next(iter(runs.values())), tuple(archives))
    else:
        record = read_fleet(path)
    digests = {}
    for host, run in runs.items():
        if (found := run.read_plan().study_digest) != record.study_digest:
            raise UsageError(
                f"{run.path} measured another study ({found or 'none'}) than the fleet",
                hint="A fleet has one study: make another one.",
            )
        if not replace and _is_taken(FleetFolder(path, record), host, _month(run)):
            raise UsageError(
                f"{host} has a run of {_month(run) or 'that month'} in {path.name} already",
                hint="Replace it with --replace, or name the host with --host.",
            )
        digests[host] = archive_digest(RunArchive(run.path))
    if (path / FLEET).is_file():
        fleet = SweepFolder(path, record)
    else:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fleet = SweepFolder.write(path, record)
    for host, run in runs.items():
        last, month = fleet.host(host) / RUN, _month(run)
        present = _month(RunFolder.in_archive(last)) if last.exists() else ""
        if present > month:
            _copy(run.path, last.with_name(f"{month}{RUN_ARCHIVE}"), path)
            continue
        if present and present < month:
            last.replace(last.with_name(f"{present}{RUN_ARCHIVE}"))
        _copy(run.path, last, path)
        state = StateRecord(status=Status.DONE, digest=digests[host], batch=1)
        fleet.write_state(host, state)


def _is_taken(fleet: FleetFolder, host: str, month: str) -> bool:
    """Return whether a host has a run of a month; without a month, whether it has any. The archive
    that a killed `fleet add` had copied, without the host's state, does not count."""
    last = fleet.path / "hosts" / host / RUN
    if not last.exists() or fleet.state(host).status != str(Status.DONE):
        return False
    if archive_digest(RunArchive(last)) != fleet.digest(host):
        return False
    present = _month(RunFolder.in_archive(last))
    earlier = last.with_name(f"{month}{RUN_ARCHIVE}")
    return not (present and month) or present == month or earlier.exists()


def _copy(archive: Path, target: Path, fleet: Path) -> None:
    with replacing(target, below=fleet) as file, archive.open("rb") as source:
        shutil.copyfileobj(source, file)


def host_of(archive: Path) -> str:
    """Return the host of an archive by its path: HOST/run.tar.xz, or HOST.tar.xz."""
    if archive.name == RUN:
        return archive.absolute().parent.name
    return archive.name.removesuffix(RUN_ARCHIVE)


_LONGEST_NAME: Final = 255
"""Bytes of a folder's name on Linux."""


def _is_plain(host: str) -> bool:
    """Return whether a host's name is a plain folder name, which leads nowhere else."""
    is_short = len(host.encode(errors="surrogatepass")) <= _LONGEST_NAME
    return is_short and host not in ("", ".", "..") and "/" not in host and "\0" not in host


# Lock a fleet's folder: two control nodes would measure and change the same hosts.


@contextmanager
def fleet_locked(fleet: Path, what: str, *, make: bool = False) -> Iterator[None]:
    """Hold a fleet's folder for a block. The kernel releases it however the holder ends. `make`: a
    missing folder is made, and goes again if the block fails and has written nothing. Raises
    BusyError with its holder if another has it, HostError if the lock cannot be opened."""
    made = make and not fleet.is_dir()
    try:
        if made:
            fleet.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(fleet / _LOCK, flags, 0o600)
    except OSError as error:
        raise HostError(f"cannot open the lock {fleet / _LOCK}: {error.strerror}") from error
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"the fleet {fleet.name} is in use by {_holder(file.read(_MOST_SAID))}",
                hint="Wait until it is done, or end it there.",
            ) from None
        file.truncate()
        file.write(json.dumps({"what": what, "since": _now(), **_self()}) + "\n")
        file.flush()
        try:
            yield
        except BaseException:
            if made and [path.name for path in fleet.iterdir()] == [_LOCK]:
                shutil.rmtree(fleet)
            raise
        finally:
            os.ftruncate(descriptor, 0)


_MOST_SAID: Final = 2000


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _self() -> dict[str, object]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        user = str(os.getuid())
    return {"pid": os.getpid(), "user": user, "node": platform.node()}


def _holder(text: str) -> str:
    try:
        said = parse_json(text)
        return printable(
            f"{said['user']} on {said['node']}: '{said['what']}' (process {said['pid']}), since "
            f"{said['since']}"
        )
    except (ValueError, KeyError, TypeError):
        return "another labctl"
