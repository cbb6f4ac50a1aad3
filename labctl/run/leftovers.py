"""What a labctl that was killed left on the host: guests, settings, working files."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from labctl.base.events import Listener, Note
from labctl.base.places import StatePlaces
from labctl.domain.session import NAME_PREFIX
from labctl.host.journal import Journal

_PID_FILES = Path("run/qemu")
"""Where libvirt's QEMU driver keeps the pids of its guests, below its root."""


def clean_up(places: StatePlaces, listener: Listener) -> None:
    """End labctl's own guests without an owner, put changed settings back, empty the work folder.

    The caller holds the host's lock, so no labctl that lives owns any of it. Guests go first and
    before libvirt is opened: one that was stopped (SIGSTOP) would not answer libvirt's monitor.
    """
    for name, pid in leftover_guests(places.libvirt_root).items():
        os.kill(pid, signal.SIGKILL)
        listener(Note(text=f"Ended the guest '{name}', which an interrupted labctl had left."))
    for restored in Journal(places.journal).restore_all():
        listener(Note(text=f"Undone: {restored.name}: {restored.outcome} ({restored.note})."))
    if places.work.exists():
        shutil.rmtree(places.work)


def leftover_guests(root: Path) -> dict[str, int]:
    """Name to pid of labctl's guests that run under the embedded driver's `root`."""
    found = {}
    for path in (root / _PID_FILES).glob(f"{NAME_PREFIX}*.pid"):
        try:
            pid = int(path.read_text())
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        # A recycled pid is somebody else's process.
        if f"guest={path.stem}".encode() in arguments and str(root).encode() in arguments:
            found[path.stem] = pid
    return found
