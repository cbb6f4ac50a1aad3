"""Find which of ftrace's tracers a kernel has: the running one by its own word, any by how it was
built.

A tracer is there if its option is (kernel/trace/Kconfig): none of them is a module.
"""

from __future__ import annotations

import os
from pathlib import Path

from labctl.base.deadline import Deadline
from labctl.base.errors import LabctlError
from labctl.base.process import run
from labctl.base.tracefs import TRACEFS, with_tracefs
from labctl.host.kernel_config import config_value, read_config

OPTIONS = {
    "hwlat": "CONFIG_HWLAT_TRACER",
    "osnoise": "CONFIG_OSNOISE_TRACER",
    "timerlat": "CONFIG_TIMERLAT_TRACER",
}
"""Tracers by their names to the options that bring them."""

_MOUNTED = (TRACEFS, "/sys/kernel/debug/tracing")
_AVAILABLE = "available_tracers"
_LOOK_S = 10.0


def is_built_with(config: str, tracer: str) -> bool:
    """Return whether a kernel of that configuration has the tracer."""
    return config_value(config, OPTIONS[tracer]) == "y"


def has_tracer(tracer: str, root: Path = Path("/")) -> bool | None:
    """Return whether the running kernel does; None where nothing tells. Changes nothing: where
    tracefs isn't mounted it is for the moment of looking, and for nobody else."""
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
    deadline = Deadline.after(_LOOK_S, "looking which tracers the kernel has")
    try:
        listed = run(with_tracefs(("cat", f"{TRACEFS}/{_AVAILABLE}")), deadline=deadline)
    except LabctlError:
        return None
    return tracer in listed.stdout.split()
