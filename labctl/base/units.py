"""Define the units of samples, and which direction of a metric is better."""

from __future__ import annotations

from enum import StrEnum


class Unit(StrEnum):
    SECONDS = "s"
    MICROSECONDS = "us"
    PER_SECOND = "1/s"
    PER_OPERATION = "1/op"
    OPERATIONS_PER_CPU_SECOND = "op/CPU-s"
    BYTES_PER_SECOND = "B/s"
    BITS_PER_SECOND = "bit/s"
    CPUS = "CPU-s/s"
    """CPU seconds per wall second: 1.0 is one CPU fully busy."""
    INSTRUCTIONS_PER_CYCLE = "instructions/cycle"
    PER_1000_INSTRUCTIONS = "1/1000 instructions"
    HERTZ = "Hz"
    FRACTION = "1"
    COUNT = "count"


ZERO_IS_USUAL = frozenset({Unit.FRACTION, Unit.CPUS})
"""Units of shares and of CPUs: 0 is a usual value of whatever has them (METHOD 15)."""


class Better(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"
