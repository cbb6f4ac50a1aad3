"""Word numbers, units and names of metrics for sentences, tables and pictures.

The only place that turns a measured float into text, so that a number reads the same everywhere.
"""

from __future__ import annotations

import math

from labctl.base.latencies import CLOSED, LARGEST
from labctl.base.metrics.row import name_in_words
from labctl.base.metrics.table import metric_of
from labctl.base.units import Unit

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
TO = "\N{HORIZONTAL ELLIPSIS}"
NOT_AVAILABLE = "n/a"

_LARGEST_RATIO = 1000.0
"""Past this (or its inverse) a ratio says only "off the scale"; its digits would mislead."""

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_PREFIXES_OF_SECONDS = tuple(pair for pair in _PREFIXES if pair[0] <= 1)
_PREFIXES_OF_COUNTS = tuple(pair for pair in _PREFIXES if pair[0] >= 1)

_SCALE_AND_SYMBOL: dict[Unit, tuple[float, str]] = {
    Unit.SECONDS: (1.0, "s"),
    Unit.MICROSECONDS: (1e-6, "s"),
    Unit.PER_SECOND: (1.0, "/s"),
    Unit.PER_OPERATION: (1.0, "/op"),
    Unit.OPERATIONS_PER_CPU_SECOND: (1.0, "/CPU-s"),
    Unit.BYTES_PER_SECOND: (1.0, "B/s"),
    Unit.CPUS: (1.0, "CPU"),
    Unit.INSTRUCTIONS_PER_CYCLE: (1.0, ""),
    Unit.PER_1000_INSTRUCTIONS: (1.0, "/1000 instr"),
    Unit.HERTZ: (1.0, "Hz"),
    Unit.FRACTION: (100.0, "%"),
    Unit.COUNT: (1.0, ""),
}


def change(ratio: float | None) -> str:
    """Return a ratio as a change: 0.77 is "−23 %", 2.73 is "×2.73", None or no number is "n/a".

    From −99 % to +100 % it is a percentage, beyond that a factor: "+173 %" and "×2.73" say the
    same, but only the second is read right at a glance.
    """
    if ratio is None or not math.isfinite(ratio) or ratio < 0:
        return NOT_AVAILABLE
    if ratio > _LARGEST_RATIO:
        return f">{TIMES}{_LARGEST_RATIO:.0f}"
    if ratio < 1 / _LARGEST_RATIO:
        return f"<{TIMES}{1 / _LARGEST_RATIO:g}"
    if not 0.01 <= ratio <= 2:
        return f"{TIMES}{significant(ratio)}"
    return f"{_percent(ratio)} %"


def change_interval(low: float | None, high: float | None) -> str:
    """Return both ends of a ratio's interval, what they share only once: "−31…−14 %",
    "×2.41…3.10".
    """
    if low is None or high is None:
        return ""
    first, last = change(low), change(high)
    if first.endswith(" %") and last.endswith(" %"):
        first = first.removesuffix(" %")
    elif first.startswith(TIMES) and last.startswith(TIMES) and (low < 1) == (high < 1):
        last = last.removeprefix(TIMES)
    return f"{first}{TO}{last}"


def quantity(value: float | None, unit: Unit) -> str:
    """Return a value with three significant digits, SI prefix and unit: 0.00123 s is "1.23 ms"."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    scale, symbol = _SCALE_AND_SYMBOL[unit]
    factor, prefix = _prefix(value * scale, symbol)
    number = significant(value * scale / factor)
    if symbol.startswith("/"):
        return f"{number}{' ' if prefix else ''}{prefix}{symbol}"
    return f"{number} {prefix}{symbol}".rstrip()


def difference(value: float | None, unit: Unit) -> str:
    """Return a difference with its sign: "+1.23 ms"; of fractions in percentage points ("pp")."""
    text = quantity(value, unit)
    if unit is Unit.FRACTION:
        text = text.replace("%", "pp")
    return text if value is None or text == NOT_AVAILABLE or value <= 0 else f"+{text}"


def difference_interval(low: float | None, high: float | None, unit: Unit) -> str:
    """Return both ends of a difference's interval; a unit that both have only once."""
    if low is None or high is None:
        return ""
    first, last = difference(low, unit), difference(high, unit)
    number, space, symbol = first.partition(" ")
    if space and last.endswith(space + symbol):
        first = number
    return f"{first}{TO}{last}"


def size(fraction: float) -> str:
    """Return a threshold or the smallest effect as a share, without sign: 0.05 is "5 %", 0.0731 is
    "7.3 %". Beyond 100 % it is a factor, as `change` has it: 1.73 is "×2.73"."""
    if fraction > 1:
        return change(1 + fraction)
    return f"{100 * fraction:.2g} %" if fraction < 0.1 else f"{100 * fraction:.0f} %"


def counted(number: int, noun: str) -> str:
    """Return "1 boot", "2 boots"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Return a duration in units that people use: "40 s", "2 min 05 s", "1 h 30 min"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def roughly(seconds: float) -> str:
    """Return an estimate of a time in units that people plan by: "40 s", "20 min", "3 h 40 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    hours, minutes = divmod(10 * round(seconds / 600), 60)
    return f"{hours} h {minutes:02d} min" if minutes else f"{hours} h"


def share(fraction: float) -> str:
    """Return a confidence or threshold: 0.9875 is "98.75 %", 0.05 is "5 %"."""
    return f"{100 * fraction:.4g} %"


def significant(value: float, digits: int = 3) -> str:
    """Return `digits` significant digits, never in scientific notation; larger integers in full."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, decimals)
    if decimals and abs(rounded) >= 10 ** (digits - decimals):
        decimals -= 1  # 9.999 rounds to 10.0, not to 10.00
    return f"{rounded:.{decimals}f}".replace("-", MINUS)


def printable(text: str) -> str:
    """Return `text` without control and formatting characters (newlines and tabs stay).

    Facts come from a guest, which is hostile: an escape sequence would drive the terminal, a
    bidi override would reorder what is read.
    """
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )


def without_logs(reason: str) -> tuple[str, str]:
    """Return a reason's sentence, and the lines of logs below it ("" where there are none): what
    failed for the same reason twice has left other lines."""
    sentence, _, logs = reason.partition("\n")
    return sentence, logs


def metric_title(metric: str, *, closed_loop: bool = False) -> str:
    """Return a metric's key in words: "latency_p95" is "p95 latency", "host_cpu{thread=vcpu}" is
    "host CPU (vcpu)", "exits{vcpu=0}" is "VM exits (vCPU 0)".

    `closed_loop`: say of a latency that it is one, as where "open-loop p95 latency" stands beside.
    """
    base, _, labels = metric.partition("{")
    row = metric_of(base)
    title = name_in_words(base) if row is None else row.title_of(base)
    if closed_loop and base.startswith(CLOSED) and base != LARGEST:
        title = f"closed-loop {title}"
    if not labels:
        return title
    values = map(_label_title, labels.rstrip("}").split(","))
    return f"{title} ({', '.join(values)})"


def _label_title(label: str) -> str:
    """Return why the value is missing; "" where it is a number."""
    name, _, value = label.partition("=")
    return f"vCPU {value}" if name == "vcpu" else value or label


def _percent(ratio: float) -> str:
    percent = 100 * (ratio - 1)
    # What is left of a value has as many digits as the change of one: 99.0 and 98.1 differ by half.
    is_fine = round(abs(percent), 1) < 10 or round(100 * ratio, 1) < 10
    text = f"{percent:+.1f}" if is_fine else f"{percent:+.0f}"
    if text.lstrip("+-") == "0.0":
        return "±0"
    return text.replace("-", MINUS)


def _prefix(value: float, symbol: str) -> tuple[float, str]:
    if symbol == "%" or value == 0:
        return 1.0, ""
    allowed = _PREFIXES_OF_SECONDS if symbol == "s" else _PREFIXES_OF_COUNTS
    for factor, prefix in allowed:
        if abs(value) >= 0.9995 * factor:  # 999.6 would print as "1000": it takes the next prefix
            return factor, prefix
    return allowed[-1]
