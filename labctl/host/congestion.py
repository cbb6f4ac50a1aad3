"""Find which of TCP's congestion controls this host's kernel has, built in or as a module."""

from __future__ import annotations

from pathlib import Path

_AVAILABLE = "proc/sys/net/ipv4/tcp_available_congestion_control"
_RELEASE = "proc/sys/kernel/osrelease"
_FOLDER = "kernel/net/ipv4"


def has_congestion_control(name: str, root: Path = Path("/")) -> bool | None:
    """Return whether programs of root can have it: the kernel loads the module `tcp_NAME` when one
    asks for it (tcp_set_congestion_control in net/ipv4/tcp_cong.c). None where nothing tells."""
    try:
        listed = (root / _AVAILABLE).read_text(encoding="ascii")
        release = (root / _RELEASE).read_text(encoding="ascii").strip()
    except OSError:
        return None
    if name in listed.split():
        return True
    modules = root / "lib/modules" / release
    return any((modules / _FOLDER).glob(f"tcp_{name}.ko*")) if modules.is_dir() else None
