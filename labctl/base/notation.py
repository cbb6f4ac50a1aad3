"""Write measured numbers, changes and their intervals as text.

The only place that turns a measured float into text, so that a number reads the same in a terminal,
on a page, in advice and in a gate. An estimate and both ends of its interval always have one form:

- a ratio is a percentage where all of them lie from −99 % to +100 %, else a factor: "−47 %" with
  "−82 to +62 %", "×0.98" with "×0.42 to 2.32";
- a difference has one unit for all of them: "+58.7 ms" with "+25.7 to +91.7 ms";
- what spans more than three powers of ten, or is no number, is "not estimable".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from labctl.base.units import Unit
from labctl.base.wording import metric_title

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
TO = " to "
NOT_AVAILABLE = "n/a"
NOT_ESTIMABLE = "not estimable"

_WIDEST = 1000.0
"""Factor between the ends of an interval above which it says nothing."""
_LARGEST = 1e6
"""Limit on a ratio: one beyond it, or its inverse, was never measured as a change."""
_LEAST_PERCENT, _MOST_PERCENT = 0.01, 2.0
"""Range of ratios shown as percentages: beyond +100 % "×2.73" is understood at a glance, and "+173
%" is not."""

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_OF_TIMES = tuple(pair for pair in _PREFIXES if pair[0] <= 1)
_RATES = tuple(pair for pair in _PREFIXES if pair[0] >= 1)
_COUNTS = ((1e6, " million"), (1.0, ""))
"""Counts printed in full, as far as they are readable at a glance: "5,450 events/s"."""
_ALONE = ((1.0, ""),)

_UNITS_OF: dict[Unit, tuple[tuple[float, str], ...]] = {
    Unit.SECONDS: _OF_TIMES,
    Unit.MICROSECONDS: _OF_TIMES,
    Unit.BYTES_PER_SECOND: _RATES,
    Unit.BITS_PER_SECOND: _RATES,
    Unit.HERTZ: _RATES,
    Unit.PER_SECOND: _COUNTS,
    Unit.PER_OPERATION: _COUNTS,
    Unit.OPERATIONS_PER_CPU_SECOND: _COUNTS,
    Unit.COUNT: _COUNTS,
}

_SCALE_AND_SYMBOL: dict[Unit, tuple[float, str]] = {
    Unit.SECONDS: (1.0, "s"),
    Unit.MICROSECONDS: (1e-6, "s"),
    Unit.PER_SECOND: (1.0, "/s"),
    Unit.PER_OPERATION: (1.0, "/op"),
    Unit.OPERATIONS_PER_CPU_SECOND: (1.0, "/CPU-s"),
    Unit.BYTES_PER_SECOND: (1.0, "B/s"),
    Unit.BITS_PER_SECOND: (1.0, "bit/s"),
    Unit.CPUS: (1.0, "CPUs"),
    Unit.INSTRUCTIONS_PER_CYCLE: (1.0, ""),
    Unit.PER_1000_INSTRUCTIONS: (1.0, "/1000 instr"),
    Unit.HERTZ: (1.0, "Hz"),
    Unit.FRACTION: (100.0, "%"),
    Unit.COUNT: (1.0, ""),
}


class Shown(NamedTuple):
    """Hold an estimate and its interval as text, both in one form. `interval`: "" if there is none,
    or nothing could be estimated."""

    estimate: str
    interval: str

    def __str__(self) -> str:
        """Return "−47 % (−82 to +62 %)"."""
        return f"{self.estimate} ({self.interval})" if self.interval else self.estimate


_MISSING = Shown(NOT_AVAILABLE, "")
_ABSURD = Shown(NOT_ESTIMABLE, "")


def changes(estimate: float | None, low: float | None = None, high: float | None = None) -> Shown:
    """Return a ratio and its interval as changes: 0.77 is "−23 %", 2.73 is "×2.73"."""
    if estimate is None or math.isnan(estimate) or estimate < 0:
        return _MISSING
    values = [estimate] if low is None or high is None else [estimate, low, high]
    if not all(1 / _LARGEST <= value <= _LARGEST for value in values):
        return _ABSURD
    if max(values) > _WIDEST * min(values):
        return _ABSURD
    if _are_percentages(values):
        return _joined([_percent(value) for value in values], after=" %")
    return _joined([_plain(value) for value in values], before=TIMES)


def change(ratio: float | None) -> str:
    """Return a ratio without an interval as a change; None or NaN is "n/a"."""
    return changes(ratio).estimate


def ticks(ratios: Sequence[float]) -> list[str]:
    """Return round ratios as changes of one form, without trailing zeros, for an axis."""
    if _are_percentages(ratios):
        return [f"{_percent(ratio)} %".replace("-", MINUS).replace(".0 ", " ") for ratio in ratios]
    return [f"{TIMES}{ratio:g}" for ratio in ratios]


def differences(estimate: float | None, low: float | None, high: float | None, unit: Unit) -> Shown:
    """Return a difference and its interval, with signs and one unit for all: "+1.20 ms"; of
    fractions in percentage points ("pp")."""
    shown = _in_one_unit(estimate, low, high, unit, signed=True)
    if unit is not Unit.FRACTION:
        return shown
    return Shown(*(text.replace("%", "pp") for text in shown))


def difference(value: float | None, unit: Unit) -> str:
    """Return a difference without an interval."""
    return differences(value, None, None, unit).estimate


def quantities(
    estimate: float | None, low: float | None, high: float | None, unit: Unit, metric: str = ""
) -> Shown:
    """Return a value with three significant digits and its interval, with one unit for all: "597
    µs" with "590 to 610 µs". For rates, `metric` names the events: "5,450 events/s"."""
    shown = _in_one_unit(estimate, low, high, unit, signed=False)
    if not metric or unit is not Unit.PER_SECOND:
        return shown
    title = metric_title(metric.partition("{")[0])
    what = title if title.endswith("/s") or title == "IOPS" else f"{title}/s"
    return Shown(*(text.replace("/s", f" {what}") for text in shown))


def quantity(value: float | None, unit: Unit, metric: str = "") -> str:
    """Return a value without an interval: 0.00123 s is "1.23 ms", 5453/s is "5,450/s"."""
    return quantities(value, None, None, unit, metric).estimate


def shares(estimate: float, low: float | None = None, high: float | None = None) -> str:
    """Return a lost share with its interval: "3.1 % (2.0 to 4.2 %)". Below 0: gained."""
    values = [estimate] if low is None or high is None else [estimate, low, high]
    if not all(-1 <= value <= 1 for value in values):
        return NOT_ESTIMABLE
    return str(_joined([_share_lost(value) for value in values], after=" %"))


def size(fraction: float) -> str:
    """Return a threshold or the smallest effect as a share, without sign: 0.05 is "5 %", 0.0731 is
    "7.3 %". Beyond 100 % it is a factor, as for a change: 1.73 is "×2.73"."""
    if fraction > 1:
        return change(1 + fraction)
    return f"{100 * fraction:.2g} %" if fraction < 0.1 else f"{100 * fraction:.0f} %"


def share(fraction: float) -> str:
    """Return a confidence or threshold: 0.9875 is "98.75 %", 0.05 is "5 %"."""
    return f"{100 * fraction:.4g} %"


def significant(value: float, digits: int = 3) -> str:
    """Return `digits` significant digits, never in scientific notation: 0.0123, 1.23, 12,300."""
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    if abs(round(value, decimals)) >= 10 ** (digits - decimals):
        decimals -= 1  # 9.999 rounds to 10.0, not to 10.00
    return f"{round(value, decimals):,.{max(0, decimals)}f}".replace("-", MINUS)


def _are_percentages(ratios: Sequence[float]) -> bool:
    return all(_LEAST_PERCENT <= ratio <= _MOST_PERCENT for ratio in ratios)


def _joined(texts: Sequence[str], before: str = "", after: str = "") -> Shown:
    """Return an estimate and, if there are three texts, its interval; a prefix or suffix common to
    both ends appears once."""
    estimate, *ends = (text.replace("-", MINUS) for text in texts)
    interval = f"{before}{ends[0]}{TO}{ends[1]}{after}" if ends else ""
    return Shown(f"{before}{estimate}{after}", interval)


def _percent(ratio: float) -> str:
    percent = 100 * (ratio - 1)
    # The rest of a value has as many digits as its change: 99.0 and 98.1 differ by half.
    is_fine = round(abs(percent), 1) < 10 or round(100 * ratio, 1) < 10
    text = f"{percent:+.1f}" if is_fine else f"{percent:+.0f}"
    return "±0" if text.lstrip("+-") == "0.0" else text


def _plain(value: float) -> str:
    """Return a factor, or a number of CPUs: two decimals around 1, so that both ends of an interval
    have the same number."""
    if 0.0995 <= abs(value) < 9.995:
        return f"{value:.2f}".replace("-", MINUS)
    return significant(value, 3 if abs(value) > 1 else 2)


def _share_lost(share: float) -> str:
    text = f"{100 * share:.{1 if abs(share) >= 0.01 else 2}f}"
    return text if float(text) else text.lstrip("-")


def _in_one_unit(
    estimate: float | None, low: float | None, high: float | None, unit: Unit, *, signed: bool
) -> Shown:
    if estimate is None or math.isnan(estimate):
        return _MISSING
    values = [estimate] if low is None or high is None else [estimate, low, high]
    if not all(map(math.isfinite, values)):
        return _MISSING if len(values) == 1 else _ABSURD
    scale, symbol = _SCALE_AND_SYMBOL.get(unit, (1.0, str(unit)))
    largest = max(abs(value) for value in values) * scale
    factor, prefix = _prefix(largest, _UNITS_OF.get(unit, _ALONE))
    scaled = [value * scale / factor for value in values]
    write = _plain if unit is Unit.CPUS else significant
    # A prefix in words, and a symbol that is not a rate, are separated from the number.
    tail = f"{prefix}{symbol}" if symbol.startswith("/") else f" {prefix.strip()}{symbol}".rstrip()
    texts = [_signed(value, write(value)) if signed else write(value) for value in scaled]
    return _joined(texts, after=tail)


def _signed(value: float, text: str) -> str:
    if not any(digit in text for digit in "123456789"):
        return "±0"
    return f"+{text}" if value > 0 else text


def _prefix(largest: float, allowed: Sequence[tuple[float, str]]) -> tuple[float, str]:
    if largest == 0:
        return 1.0, ""
    # 999.6 would print as "1000": it takes the next prefix.
    return next((pair for pair in allowed if largest >= 0.9995 * pair[0]), allowed[-1])
