"""Find which of ftrace's tracers a kernel has: the running kernel from tracefs, any kernel from its
configuration.

A tracer exists if its option is set (kernel/trace/Kconfig): none of them is a module.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
from pathlib import Path

from labctl.base.errors import LabctlError
from labctl.base.kernel import TRACEFS, with_tracefs
from labctl.base.process import Deadline, run

# Read the configuration that a kernel was built with.


def config_paths(release: str) -> list[str]:
    """Return the possible paths of a kernel's configuration: its own copy, then the
    distribution's."""
    return ["/proc/config.gz", f"/boot/config-{release}", f"/lib/modules/{release}/config"]


def read_config(release: str, root: Path = Path("/")) -> str | None:
    """Return the configuration of the kernel of that release as text, None if there is none."""
    for path in config_paths(release):
        try:
            data = (root / path.lstrip("/")).read_bytes()
            return (gzip.decompress(data) if path.endswith(".gz") else data).decode()
        except (OSError, EOFError, UnicodeDecodeError):
            continue
    return None


def config_digest(config: str) -> str:
    """Return SHA-256 of a configuration's settings, without its comments (they may contain
    paths)."""
    options = re.findall(r"^(?:CONFIG_\w+=.*|# CONFIG_\w+ is not set)$", config, re.MULTILINE)
    return hashlib.sha256("\n".join(sorted(options)).encode()).hexdigest()


def config_value(config: str, option: str) -> str:
    """Return the value of an option ("y", "m", "250"); "n" if it is not set."""
    found = re.search(rf"^{re.escape(option)}=(.*)$", config, re.MULTILINE)
    return found.group(1).strip('"') if found else "n"


OPTIONS = {
    "hwlat": "CONFIG_HWLAT_TRACER",
    "osnoise": "CONFIG_OSNOISE_TRACER",
    "timerlat": "CONFIG_TIMERLAT_TRACER",
}
"""Tracers by their names to their kernel options."""

_MOUNTED = (TRACEFS, "/sys/kernel/debug/tracing")
_AVAILABLE = "available_tracers"
_LOOK_S = 10.0


def is_built_with(config: str, tracer: str) -> bool:
    """Return whether a kernel of that configuration has the tracer."""
    return config_value(config, OPTIONS[tracer]) == "y"


def has_tracer(tracer: str, root: Path = Path("/")) -> bool | None:
    """Return whether the running kernel has it; None if that is unknown. Changes nothing: if
    tracefs is not mounted, it is mounted for the moment of reading, and invisible to others."""
    for folder in _MOUNTED:
        listed = _text(root, f"{folder}/{_AVAILABLE}")
        if listed is not None:
            return tracer in listed.split()
    config = read_config((_text(root, "/proc/sys/kernel/osrelease") or "").strip(), root)
    if config is not None:
        return is_built_with(config, tracer)
    return _has_privately(tracer) if root == Path("/") and os.geteuid() == 0 else None


def _text(root: Path, path: str) -> str | None:
    try:
        return (root / path.lstrip("/")).read_text(encoding="ascii")
    except OSError:
        return None


def _has_privately(tracer: str) -> bool | None:
    deadline = Deadline.after(_LOOK_S, "listing the kernel's tracers")
    try:
        listed = run(with_tracefs(("cat", f"{TRACEFS}/{_AVAILABLE}")), deadline=deadline)
    except LabctlError:
        return None
    return tracer in listed.stdout.split()


# Find which TCP congestion controls this host's kernel has, built in or as a module.


_ALGORITHMS = "proc/sys/net/ipv4/tcp_available_congestion_control"
_RELEASE = "proc/sys/kernel/osrelease"
_FOLDER = "kernel/net/ipv4"


def has_congestion_control(name: str, root: Path = Path("/")) -> bool | None:
    """Return whether programs of root can use it: the kernel loads the module `tcp_NAME` on request
    (tcp_set_congestion_control in net/ipv4/tcp_cong.c). None if that is unknown."""
    try:
        listed = (root / _ALGORITHMS).read_text(encoding="ascii")
        release = (root / _RELEASE).read_text(encoding="ascii").strip()
    except OSError:
        return None
    if name in listed.split():
        return True
    modules = root / "lib/modules" / release
    return any((modules / _FOLDER).glob(f"tcp_{name}.ko*")) if modules.is_dir() else None
