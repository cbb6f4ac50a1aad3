"""What of a trial's readings makes it invalid. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from labctl.store.samples import Reading, Unavailable
from labctl.study.study import Limits

OTHER_CPU = "host_cpu{thread=other}"


def invalid_reasons(readings: Iterable[Reading], limits: Limits) -> list[str]:
    """Why a trial can't be used, one sentence each; [] when it can.

    CPU time that anyone else took on the trial's CPUs: a shared machine once halved a whole
    restore (METHOD rule 6). What a hypervisor below this host took is in it.
    """
    for reading in readings:
        if isinstance(reading, Unavailable):
            if reading.metric == OTHER_CPU:
                return [f"nobody knows what others took of the trial's CPUs: {reading.reason}"]
            continue
        if reading.key == OTHER_CPU and reading.value > limits.other_cpu:
            return [
                f"others took {reading.value:.2f} CPU seconds per second on the trial's CPUs "
                f"(the study allows {limits.other_cpu:g})"
            ]
    return []
