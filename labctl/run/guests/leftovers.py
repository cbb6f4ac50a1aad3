"""Find what a killed labctl left on the host: guests, settings, working files."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labctl.base.events import Listener, Note, Warned
from labctl.base.paths import OWN_NAME, StatePaths, host_lock
from labctl.base.process import Deadline, cleaning_up, ending_signals_interrupt
from labctl.host import own_cgroups
from labctl.host.lock import host_locked
from labctl.host.settings.journal import Journal

_EMBEDDED = Path("run/qemu")
"""Folder of the pid files of libvirt's guests, below an embedded driver's root."""

_DAEMON = Path("/run/libvirt/qemu")
"""Folder of the pid files of the host daemon's guests."""


@contextmanager
def alone(
    places: StatePaths, listener: Listener, what: str, run_folder: Path | None = None
) -> Iterator[None]:
    """Hold this host for the command `what`, after cleaning up after a killed labctl. Signals that
    end a process interrupt it, so that it cleans up. Raises BusyError while another measures."""
    with ending_signals_interrupt(), host_locked(host_lock(), what=what, run_folder=run_folder):
        clean_up(places, listener)
        yield


def clean_up(places: StatePaths, listener: Listener) -> None:
    """End labctl's own guests without an owner, remove what is left of them, and restore changed
    settings.

    The caller holds the host's lock, so none of it belongs to a running labctl. Guests go first and
    before libvirt is opened: a stopped guest (SIGSTOP) would not answer libvirt's monitor.
    """
    end_guests(places, listener)
    for restored in Journal(places.journal).restore_all():
        text = f"{restored.name}: {restored.outcome} ({restored.note})."
        if restored.outcome.settles:
            listener(Note(text=f"Undone: {text}"))
        else:
            listener(Warned(text=f"Not undone: {text} Run 'labctl host restore' for details."))
    remove_work(places)


def end_guests(places: StatePaths, listener: Listener) -> None:
    """End labctl's own guests without an owner, and remove what libvirt kept for them and would
    have removed. The caller holds the host's lock."""
    for name, pid in leftover_guests(places).items():
        _kill(pid)
        listener(Note(text=f"Stopped the guest '{name}' of an interrupted labctl."))
    for group in leftover_cgroups(places):
        try:
            own_cgroups.remove(group)
        except OSError as error:
            listener(
                Warned(text=f"Not removed: the cgroup {group} of an old guest: {error.strerror}.")
            )
    own_cgroups.remove_empty_partitions()


def remove_work(places: StatePaths) -> None:
    """Remove what a run needed while it ran, because save files among it hold all of a guest's
    memory, and take the data disk back from QEMU's user."""
    if places.work.exists():
        shutil.rmtree(places.work)
    for file in places.data.glob("*"):
        os.chown(file, os.geteuid(), -1, follow_symlinks=False)


def _kill(pid: int) -> None:
    """Kill a process; return when its memory is free again, which a new run may need."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    deadline = Deadline.after(30, f"ending process {pid}")
    while _arguments(pid):
        deadline.remaining()
        time.sleep(0.01)


def _arguments(pid: int) -> bytes:
    """Return a process's argv from /proc; b"" for one that has ended, a zombie included."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def leftover_cgroups(places: StatePaths) -> list[Path]:
    """Return the cgroups of guests that labctl started from this state folder."""
    return own_cgroups.of_guests(places.libvirt_root, OWN_NAME)


@contextmanager
def no_guest_cgroups_left(places: StatePaths) -> Iterator[None]:
    """Remove guests' cgroups: libvirt does so itself, but gives up after a second on a busy
    host."""
    try:
        yield
    finally:
        with cleaning_up():
            for group in leftover_cgroups(places):
                with suppress(OSError):  # the next labctl tries again, and reports it
                    own_cgroups.remove(group)
            own_cgroups.remove_empty_partitions()


def _pid_files(folder: Path) -> list[Path]:
    """Return a driver's pid files; none if only root may look, whose guests they are then."""
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(".pid"))
    except OSError:
        return []


def leftover_guests(places: StatePaths) -> dict[str, int]:
    """Return name to pid of the guests that labctl started with files in this state folder."""
    found = {}
    folders = (places.libvirt_root / _EMBEDDED, _DAEMON)
    for file in (file for folder in folders for file in _pid_files(folder)):
        name = file.stem
        if not OWN_NAME.fullmatch(name):
            continue
        try:
            pid = int(file.read_text())
        except (OSError, ValueError):
            continue
        arguments = _arguments(pid)
        # A recycled pid belongs to another process.
        ours = f"guest={name},".encode() in arguments
        if ours and str(places.work).encode() in arguments:
            found[name] = pid
    return found
