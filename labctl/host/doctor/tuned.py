"""Check tuned(8): its active profile, and where the host deviates from it."""

from __future__ import annotations

import re

from labctl.base.errors import HostError
from labctl.host.doctor.check import Check, Result, Scope, fine, some, unknown, warn
from labctl.host.doctor.reader import Reader
from labctl.host.settings.tunables import selected
from labctl.host.settings.tuned import read_profile

GROUP = "tuned"
_ACTIVE = "/etc/tuned/active_profile"
_SETTINGS = {
    ("vm", "transparent_hugepages"): "/sys/kernel/mm/transparent_hugepage/enabled",
    ("vm", "transparent_hugepage"): "/sys/kernel/mm/transparent_hugepage/enabled",
    ("vm", "transparent_hugepage.defrag"): "/sys/kernel/mm/transparent_hugepage/defrag",
    ("cpu", "governor"): "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
}
"""Section and option of a profile to the file that it sets, beside [sysctl] and [sysfs]."""


def active(reader: Reader, scope: Scope) -> Result:
    name = reader.text(_ACTIVE)
    if not name:
        installed = reader.program("tuned-adm") is not None
        return fine("installed, no profile is active" if installed else "not installed", None)
    running = bool(reader.running("tuned"))
    state = "tuned runs" if running else "tuned does not run"
    return fine(f"{name} ({state})", {"profile": name, "running": running})


def drift(reader: Reader, scope: Scope) -> Result:
    name = reader.text(_ACTIVE)
    if not name:
        return fine("no profile is active", [])
    wanted: dict[str, str] = {}
    try:
        for profile in name.split():
            wanted |= _settings(reader, profile)
    except HostError as error:
        return unknown(error.message)
    differing = {
        path: (value, found)
        for path, value in sorted(wanted.items())
        if (found := reader.text(path)) is not None and not _same(value, found)
    }
    if not wanted:
        return unknown(f"profile '{name}' sets nothing that labctl can read")
    value = [
        {"path": path, "profile": asked, "found": found}
        for path, (asked, found) in differing.items()
    ]
    if not differing:
        return fine(f"{len(wanted)} settings match '{name}'", value)
    shown = some(
        f"{path} is {selected(found)}, not {asked}" for path, (asked, found) in differing.items()
    )
    return warn(f"{shown} (profile '{name}')", f"tuned-adm profile {name}", value)


def _settings(reader: Reader, profile: str) -> dict[str, str]:
    """Return file to value as a profile and those that it includes set them: tuned.conf(5).

    Left out are computed values (variables, functions), values set only if larger (">"), and
    sections for some machines only.
    """
    return {
        path: value.strip('"')
        for unit in read_profile(profile, reader.root).units
        for option, value in unit.options.items()
        if not unit.conditional
        and (path := _file_of(unit.type, option)) is not None
        and not re.search(r"[$<>*?\[]", path + value)
    }


def _file_of(section: str, option: str) -> str | None:
    if section == "sysctl":
        return f"/proc/sys/{option.replace('.', '/')}"
    if section == "sysfs":
        return option
    return _SETTINGS.get((section, option))


def _same(wanted: str, found: str) -> bool:
    """Compare values: "a|b" names alternatives; "always [madvise] never" shows which one is
    selected."""
    present = selected(found).split()
    return any(choice.split() == present for choice in wanted.split("|"))


CHECKS = (
    Check(
        "tuned",
        GROUP,
        "A profile changes many settings at once and is part of the host's state.",
        active,
    ),
    Check(
        "tuned-drift",
        GROUP,
        "Settings were changed after tuned set them: you do not measure that profile.",
        drift,
    ),
)
