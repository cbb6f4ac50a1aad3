"""Check what on this host affects measurements of virtualization, one finding per check.

Checks read files and run commands that only read. One exception, only on request: the check for
firmware interruptions has the kernel stop CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

from labctl.base import plugins
from labctl.host.doctor import (
    cpus,
    firmware,
    interrupts,
    load,
    memory,
    network,
    rights,
    scheduling,
    software,
    storage,
    tracing,
    tuned,
    virtualization,
)
from labctl.host.doctor.check import Check, Finding, Scope
from labctl.host.doctor.reader import Reader

CHECKS: tuple[Check[Scope], ...] = (
    *rights.CHECKS,
    *virtualization.CHECKS,
    *tracing.CHECKS,
    *firmware.CHECKS,
    *cpus.CHECKS,
    *scheduling.CHECKS,
    *interrupts.CHECKS,
    *memory.CHECKS,
    *load.CHECKS,
    *tuned.CHECKS,
    *storage.CHECKS,
    *network.CHECKS,
    *software.CHECKS,
)
"""Checks in the order in which people look for a cause."""


def check(reader: Reader, scope: Scope) -> list[Finding]:
    """Return the finding of every check that applies: those of CHECKS, in their order, and each
    plug-in's."""
    own = {item.name for item in CHECKS}
    added: Mapping[str, Check[Scope]] = plugins.rows(plugins.Group.CHECKS, Check, own)
    return [
        item.finding(reader, scope) for item in (*CHECKS, *added.values()) if item.applies(scope)
    ]
