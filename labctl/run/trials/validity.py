"""Decide what of a trial's readings makes it invalid. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from labctl.store.samples import Reading, Unavailable
from labctl.study.study import Limits

OTHER_CPU = "host_cpu{thread=other}"


def is_disturbed(readings: Iterable[Reading], limits: Limits) -> bool:
    """Return whether others took more of the trial's CPUs than the study allows."""
    return any(
        reading.value > limits.other_cpu
        for reading in readings
        if not isinstance(reading, Unavailable) and reading.key == OTHER_CPU
    )


def invalid_reasons(readings: Iterable[Reading], limits: Limits) -> list[str]:
    """Return why a trial can't be used, one sentence each; [] when it can.

    CPU time that anyone else took on the trial's CPUs: a shared machine once halved a whole
    restore (METHOD rules 6 and 24). What a hypervisor below this host took is in it. One limit
    for every arm, and on both sides of 0: what is as far below is counted wrong by as much.
    """
    for reading in readings:
        if isinstance(reading, Unavailable):
            if reading.metric == OTHER_CPU:
                return [f"it is unknown how much others used the trial's CPUs: {reading.reason}"]
            continue
        if reading.key == OTHER_CPU and reading.value > limits.other_cpu:
            return [
                f"others took {reading.value:.2f} CPU seconds per second on the trial's CPUs "
                f"(the study allows {limits.other_cpu:g})"
            ]
        if reading.key == OTHER_CPU and reading.value < -limits.other_cpu:
            return [
                f"it is unknown how much others used the trial's CPUs: {-reading.value:.2f} CPU "
                "seconds per second more were counted of known threads than were busy there (the "
                f"study allows {limits.other_cpu:g} on either side)"
            ]
    return []
