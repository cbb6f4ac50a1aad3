"""Say what stands between this host and what is collected, before anything is booted."""

from __future__ import annotations

from collections.abc import Iterable

from labctl.base.levels import Level
from labctl.base.paths import StatePaths
from labctl.base.tuning import Tuning
from labctl.collect.collector import Collector, Here
from labctl.collect.table import COLLECTORS
from labctl.collect.threads import task_clock
from labctl.guest.images import find
from labctl.guest.recipe import load_recipe
from labctl.host.accelerator import Requested, known_accelerator
from labctl.study.load_study import load_study
from labctl.workloads.registry import checkers


def tried(places: StatePaths, accel: Requested, study: str) -> dict[Collector, str | None]:
    """Return every collector with why it can't work here for that study, None where it can. Boots
    nothing."""
    image = load_study(study, programs=checkers()).guest.image
    found = find(load_recipe(image), places)
    at = Here(
        accelerator=known_accelerator(accel, found.kernel if found else None, places),
        tree=found.tree if found else None,
    )
    return {collector: collector.why_unavailable(at) for collector in COLLECTORS}


def lacking(level: Level, at: Here) -> list[str]:
    """Return a sentence for each collector that `level` adds to counters and that can't work
    here."""
    added = (known for known in COLLECTORS if known.level != Level.COUNTERS)
    reasons = {known: known.why_unavailable(at) for known in added if level.holds(known.level)}
    return [
        f"'{known.name}' ({known.gives.partition(':')[0]}) collects nothing here: {reason}"
        for known, reason in reasons.items()
        if reason is not None
    ]


def without_clocks(tunings: Iterable[Tuning]) -> list[str]:
    """Return what it costs a run with neighbours that this kernel can't report where they ran; []
    where it costs nothing."""
    pinned = [tuning.name for tuning in tunings if tuning.pin.vcpus is not None]
    if not pinned:
        return []
    problem = task_clock.why_unavailable()
    if problem is None:
        return []
    return [
        "Beside neighbours, trials of arms with fewer CPUs than those may be invalid "
        f"({', '.join(pinned)}), as labctl can't tell how much others use their CPUs: {problem}"
    ]
