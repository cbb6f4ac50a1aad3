"""List every kind of tunable by the name that the undo journal has for it."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.base.errors import BrokenError
from labctl.host.settings.netdevices import NetworkNamespace, TapDevice
from labctl.host.settings.permanent import ConfigFile, DomainDefinition
from labctl.host.settings.tunables import (
    CgroupControllers,
    CgroupFolder,
    CpuMask,
    FileAccess,
    FileValue,
    Hugetlbfs,
    Tunable,
)
from labctl.host.settings.tuned_state import ActiveProfile, ProfileFolder

_KINDS: Mapping[str, type[Tunable]] = {
    tunable.kind: tunable
    for tunable in (
        FileValue,
        FileAccess,
        CpuMask,
        CgroupFolder,
        CgroupControllers,
        Hugetlbfs,
        ActiveProfile,
        ProfileFolder,
        NetworkNamespace,
        TapDevice,
        ConfigFile,
        DomainDefinition,
    )
}


def rebuild(kind: str, arguments: Mapping[str, str]) -> Tunable:
    """Return the tunable that a journal's entry speaks of; raises BrokenError for one that is
    unknown."""
    try:
        return _KINDS[kind](**arguments)
    except (KeyError, TypeError) as error:
        raise BrokenError(
            f"the undo journal names a '{kind}' with {dict(arguments)}, which this labctl "
            "does not know",
            hint="Run 'labctl host restore' of the labctl that wrote it.",
        ) from error
