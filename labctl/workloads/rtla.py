"""Provide what rtla's histograms (rtla timerlat hist, rtla osnoise hist) have in common."""

from __future__ import annotations

from labctl.base.command import Command
from labctl.workloads.workload import IntegerParameter, Setting

BINARY = "/usr/bin/rtla"
STDOUT = "stdout.txt"
PLACES_ITSELF = True
"""Newer versions leave the CPUs that they watch for others, where there are others
(auto_house_keeping() in tools/tracing/rtla)."""

HISTOGRAM_US = IntegerParameter(
    name="histogram_us",
    default=60_000,
    minimum=256,
    maximum=1_000_000,
    description="the longest time with a bucket of its own",
)
"""Longer than the stalls of real-time throttling (50 ms), and no longer: at its end rtla goes
through a row for each microsecond, inside of the measured window."""


def command(tool: str, setting: Setting, seconds: int, option: str) -> Command:
    """Return the command `rtla TOOL hist` for so long; rtla takes no less than a second."""
    return Command(
        argv=(
            BINARY,
            tool,
            "hist",
            # All CPUs of the machine otherwise: natively those are more than the guest has.
            f"--cpus={setting.cpu_list}",
            option,
            f"--duration={seconds}",
            f"--entries={setting.parameters['histogram_us']}",
        )
    )
