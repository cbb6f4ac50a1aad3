"""Define the units of samples, and which direction of a metric is better."""

from __future__ import annotations

import math
import re
from enum import StrEnum

LONGEST_UNIT = 40
"""Characters of a unit of a program's own."""
_MARKUP = "<>&\"'`[]{}\\$|;="
"""Characters with a meaning in terminals, pages and spreadsheets, but not in a unit."""


class Unit(StrEnum):
    """Name the unit of a sample. `Unit("Mops/s")` is a member that is not listed here: it is shown
    unchanged and never converted. Raises ValueError for a text that cannot be shown."""

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

    @classmethod
    def _missing_(cls, value: object) -> Unit | None:
        if not isinstance(value, str) or why_no_unit(value):
            return None
        made = str.__new__(cls, value)
        made._name_ = made._value_ = value
        # One member per text, as for those above: units are compared by identity.
        return cls._value2member_map_.setdefault(value, made)  # type: ignore[return-value]

    def __reduce_ex__(self, _protocol: object) -> tuple[type[Unit], tuple[str]]:
        return (Unit, (self.value,))  # by value: a program's own unit has no name here

    @property
    def is_own(self) -> bool:
        """Return whether it is a program's own, unknown to labctl."""
        return self.value not in _KNOWN


_KNOWN = frozenset(unit.value for unit in Unit)


def why_no_unit(text: str) -> str | None:
    """Return why a text cannot be a unit; None if it can."""
    if not text or text != text.strip():
        return "a unit must be a word, without spaces around it"
    if len(text) > LONGEST_UNIT:
        return f"a unit may have at most {LONGEST_UNIT} characters, got {len(text)}"
    if not text.isprintable() or any(sign in text for sign in _MARKUP):
        return f"a unit has printable characters only, and none of {' '.join(_MARKUP)}"
    return None


ZERO_IS_USUAL = frozenset({Unit.FRACTION, Unit.CPUS})
"""Units of shares and of CPUs: 0 is a usual value of metrics with them (METHOD 15)."""


class Better(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


_TIME = re.compile(r"[mnuµμ]?s|m|h|min|sec(?:ond)?s?|[mun]secs?|minutes?|hours?")
_RATE = re.compile(r".+/(?:s|sec|second|ms|us|min)|[kKMGT]?(?:bps|Bps)|[rqtf]ps|[kMG]?Hz")
_LOWER_WORDS = frozenset(
    {
        *("latency", "latencies", "time", "times", "elapsed", "delay", "delays", "stall", "stalls"),
        *("jitter", "lag", "wait", "duration", "misses", "retries"),
        *("error", "errors", "failure", "failures", "drops", "dropped", "lost", "miss"),
    }
)
_HIGHER_WORDS = frozenset(
    {
        *("throughput", "rate", "ops", "rps", "qps", "tps", "iops", "events", "requests", "score"),
        *("bandwidth", "goodput", "fps", "hits"),
    }
)
_PERCENTILE = re.compile(r"p\d{2,4}")


def usual_direction(metric: str, unit: str | None) -> Better | None:
    """Return the better direction of a metric by its unit, else by the words of its name; None if
    neither decides, or the name is ambiguous.

    Times are better lower and rates higher, except for rates of failures: `errors` in `1/s`.
    """
    words = re.split(r"[^a-z0-9]+", metric.lower())
    low = any(word in _LOWER_WORDS or _PERCENTILE.fullmatch(word) for word in words)
    high = any(word in _HIGHER_WORDS for word in words)
    if unit is not None and _TIME.fullmatch(unit):
        return Better.LOWER
    if unit is not None and _RATE.fullmatch(unit) and not low:
        return Better.HIGHER
    if low is high:
        return None
    return Better.LOWER if low else Better.HIGHER


# Define how many samples a percentile needs (METHOD rule 16), and how many unseen ones it
# tolerates.


SAMPLES_BEYOND = 20
"""Minimum number of samples beyond a percentile: otherwise it would depend on a few of them."""


def samples_needed(q: float) -> int:
    """Return the minimum number of samples for the percentile q (0 < q < 1): 400 for 0.95."""
    # 1 - 0.95 is a little more than 0.05.
    return math.ceil(SAMPLES_BEYOND / (1 - q) - 1e-9)


TENTH = 0.1
"""Limit on how far unknown values may move a reported one."""


def bears_unseen(q: float, seen: int, unseen: int) -> bool:
    """Return whether the percentile q (0 < q < 1) of the seen values may represent all of them.

    The unseen ones may all lie beyond it. As long as they are at most a tenth of the values that do
    (1 in 200 for 0.95), the reported value is a percentile between q - 0.1 (1 - q) and q + 0.1 (1 -
    q) of all: for 0.95, between the 94.5th and the 95.5th.
    """
    return unseen <= TENTH * (1 - q) * (seen + unseen) + 1e-9


# Name latencies: closed loop, as a tool reports them, and open loop, with requests that a stall
# hid.


CLOSED = "latency_"
"""Prefix of metrics that a program reports itself. While it stalls it makes no requests, so that
none is late ("coordinated omission")."""

LARGEST = f"{CLOSED}max"

OPEN = "open_latency_"
"""Prefix of metrics of a load that keeps its pace, whatever the machine does."""

OPEN_MEAN = f"{OPEN}mean"

SKIP_PERIODS = frozenset({"cyclictest", "timerlat"})
"""Programs of a fixed pace that skip missed periods, so that the effect of a stall is known."""
