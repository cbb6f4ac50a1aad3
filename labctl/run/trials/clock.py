"""Check whether guest and host count the same seconds (METHOD rule 6). Pure."""

from __future__ import annotations

from typing import Any

from labctl.base.channel import ClockReading

LIMIT_PPM = 100.0


def rates(first: ClockReading, last: ClockReading) -> dict[str, float]:
    """Return how much faster the machine's clock runs than the host's, in ppm, and how unsure that
    is.

    Each reading lies somewhere between its two host moments; over a longer time that matters less.
    """
    machine_ns = last.machine_ns - first.machine_ns
    shortest_ns = last.asked_ns - first.answered_ns
    longest_ns = last.answered_ns - first.asked_ns
    middle_ns = (shortest_ns + longest_ns) / 2
    return {
        "seconds": middle_ns / 1e9,
        "ppm": (machine_ns / middle_ns - 1) * 1e6,
        "uncertainty_ppm": (longest_ns - shortest_ns) / 2 / middle_ns * 1e6,
    }


def problem(measured: dict[str, Any]) -> str | None:
    """Return a sentence when the rates differ by more than LIMIT_PPM beyond doubt."""
    if abs(measured["ppm"]) - measured["uncertainty_ppm"] <= LIMIT_PPM:
        return None
    return (
        f"the guest's clock runs {measured['ppm']:+.0f} ppm against the host's "
        f"(± {measured['uncertainty_ppm']:.0f}), more than {LIMIT_PPM:.0f}"
    )
