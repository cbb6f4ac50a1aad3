"""Judge how many guests fit: the number of each tuning with an interval, tunings against the first
by an exact sign test, and the cost of each guest to the others.

The numbers are small integers that are not normally distributed: no rule here assumes a
distribution.

- The interval of a median lies between two order statistics: with n blocks, the k-th smallest and
  the k-th largest hold the median with probability 1 - 2 P(B < k), B binomial of n and 1/2
  (H. A. David, H. N. Nagaraja, Order Statistics, 3rd edition, 7.1). For whole numbers, which tie,
  it is at least that.
- The sign test (W. J. Dixon, A. M. Mood, Journal of the American Statistical Association 41, 1946)
  takes the blocks in which two tunings differ: how many of them have more.
- A run of several tunings is tested after each block and ends when every tuning is decided
  (`DensityRecord.looks`). Each test then has the largest level at which the walk of blocks that
  differ, more or fewer with equal chance, reaches a rejection with a probability of at most
  LEVEL / m within the planned blocks: the exact form of a group-sequential test (S. J. Pocock,
  Biometrika 64, 1977). Blocks that tie take no step, so that fewer differ and fewer looks are
  taken.
- A number that was bounded is "at least": it counts as its value where that decides, and where it
  doesn't, the pair is left out and said.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb
from statistics import median

from labctl.analysis.verdicts.family import rejected_at
from labctl.store.density_record import CountRecord, DensityRecord, Limit, StepRecord

LEVEL = 0.05
"""Chance of a false difference among all tunings, and of a median outside of its interval."""


@dataclass(frozen=True, slots=True)
class Number:
    """Hold a number of guests. `at_least`: it may be larger, because no more guests were tried."""

    value: int
    at_least: bool = False

    def __str__(self) -> str:
        return f"at least {self.value}" if self.at_least else str(self.value)


@dataclass(frozen=True, slots=True)
class NumberInterval:
    """Hold both ends of an interval, and its `coverage`."""

    low: Number
    high: Number
    coverage: float

    def __str__(self) -> str:
        end = f"{self.high.value} or more" if self.high.at_least else str(self.high.value)
        return f"{self.low} to {end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Hold the numbers of guests that fit with one tuning. `numbers`: by block; `lacking`: the
    reason of each block without a number; `typical`: the largest number that more than half of the
    blocks reached; `why`: the reason if there is no interval."""

    tuning: str
    numbers: Mapping[int, Number]
    lacking: Mapping[int, str]
    bounded: Mapping[int, str]
    typical: Number | None
    interval: NumberInterval | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignTest:
    """Hold a tuning against the first one. `more`, `fewer`: blocks in which so many fit;
    `undecided`: blocks in which a bound keeps that unknown; `level`: what Holm's procedure, or in a
    run with looks the sequential test, rejects it at, None where it doesn't; `fewest`: blocks that
    must differ before any result could be shown."""

    tuning: str
    against: str
    more: int
    fewer: int
    alike: int
    undecided: int
    p: float
    level: float | None
    fewest: int

    @property
    def shows_more(self) -> bool | None:
        """Return whether more guests fit than under the other; None if neither is shown."""
        return None if self.level is None else self.more > self.fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Hold the metric at a number of guests: the median over blocks of the worst and of the median
    guest. `cost`: change of the metric of earlier guests per added guest, None without a smaller
    number of guests to compare with."""

    count: int
    blocks: int
    held: int
    worst: float
    middle: float
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Density:
    """Hold the judgement of a density run. `curves`: by tuning, by number of guests."""

    fitting: tuple[Fitting, ...]
    tests: tuple[SignTest, ...]
    curves: Mapping[str, tuple[Point, ...]]


def judged(record: DensityRecord) -> Density:
    """Return the judgement of a density run, finished or not."""
    by_tuning = {name: _fitting(name, record.counts) for name in record.tunings}
    limit = record.limit.limit()
    return Density(
        fitting=tuple(by_tuning.values()),
        tests=tuple(_tests(list(by_tuning.values()), record.blocks if record.looks else None)),
        curves={
            name: tuple(_curve([s for s in record.steps if s.tuning == name], limit))
            for name in record.tunings
        },
    )


def why_ended(record: DensityRecord) -> str | None:
    """Return why a run with looks ends after its last whole block; None: it goes on."""
    blocks = len({count.block for count in record.counts})
    tests = judged(record).tests
    if not record.looks or not tests or any(test.level is None for test in tests):
        return None
    against = tests[0].against
    return (
        f"whether more guests fit than under {against} was decided for every tuning after "
        f"{blocks} of {record.blocks} blocks"
    )


def median_of(numbers: Sequence[Number]) -> Number | None:
    """Return the largest number that more than half of the blocks reached: their median, or for an
    even number of blocks the lower of the two in the middle. None without blocks."""
    if not numbers:
        return None
    return _ranked(numbers, (len(numbers) - 1) // 2)


def interval_of(numbers: Sequence[Number], alpha: float = LEVEL) -> NumberInterval | None:
    """Return the narrowest interval of order statistics that holds the median with a probability
    of 1 - alpha or more; None if even the smallest and the largest do not."""
    n = len(numbers)
    if n == 0 or coverage(n, 1) < 1 - alpha:
        return None
    k = max(k for k in range(1, n // 2 + 1) if coverage(n, k) >= 1 - alpha)
    return NumberInterval(_ranked(numbers, k - 1), _ranked(numbers, n - k), coverage(n, k))


def coverage(n: int, k: int) -> float:
    """Return the probability that the median lies between the k-th smallest and the k-th largest of
    n: 1 - 2 P(B < k)."""
    return 1 - 2 * sum(comb(n, i) for i in range(k)) / (1 << n)


def sign_p(more: int, fewer: int) -> float:
    """Return the two-sided p-value of the exact sign test; 1 without pairs that differ."""
    n = more + fewer
    tail = sum(comb(n, i) for i in range(max(more, fewer), n + 1)) / (1 << n)
    return min(1.0, 2 * tail)


@cache
def sequential_level(most: int, alpha: float) -> float:
    """Return the largest level at which a sign test after each of `most` blocks rejects the null
    hypothesis, in any of them, with a probability of at most `alpha`; 0.0 where none does."""
    attainable = sorted({sign_p(i, n - i) for n in range(1, most + 1) for i in range(n + 1)})
    at = bisect_right(attainable, alpha, key=lambda level: _crossing(most, level))
    return attainable[at - 1] if at else 0.0


def _crossing(most: int, level: float) -> float:
    """Return the probability that the p-value of a fair walk of `most` steps is ever that low."""
    here, crossed = {0: 1.0}, 0.0
    for n in range(1, most + 1):
        after: dict[int, float] = {}
        for more, chance in here.items():
            for one in (more, more + 1):
                after[one] = after.get(one, 0.0) + chance / 2
        crossed += sum(c for more, c in after.items() if sign_p(more, n - more) <= level)
        here = {more: c for more, c in after.items() if sign_p(more, n - more) > level}
    return crossed


def compared(one: Number, other: Number) -> int | None:
    """Return 1 if the first number is larger, -1 if the other is, 0 if they are equal; None if a
    bound leaves that unknown."""
    if not one.at_least and not other.at_least:
        return (one.value > other.value) - (one.value < other.value)
    if one.at_least and not other.at_least and one.value > other.value:
        return 1
    if other.at_least and not one.at_least and other.value > one.value:
        return -1
    return None


def _ranked(numbers: Sequence[Number], index: int) -> Number:
    """Return the number of that rank, from 0. It is a lower bound if any number up to it is one:
    the true number could lie above it."""
    value = sorted(number.value for number in numbers)[index]
    return Number(value, any(n.at_least and n.value <= value for n in numbers))


def _fitting(tuning: str, counts: Sequence[CountRecord]) -> Fitting:
    own = [count for count in counts if count.tuning == tuning]
    numbers = {
        count.block: Number(count.number, count.bounded is not None)
        for count in own
        if count.number is not None
    }
    found = list(numbers.values())
    interval = interval_of(found)
    fewest = next(n for n in range(1, 100) if coverage(n, 1) >= 1 - LEVEL)
    return Fitting(
        tuning=tuning,
        numbers=numbers,
        lacking={c.block: c.why or "no reason given" for c in own if c.number is None},
        bounded={c.block: c.bounded for c in own if c.bounded is not None},
        typical=median_of(found),
        interval=interval,
        why="" if interval else f"at least {fewest} are needed",
    )


def _tests(fitting: Sequence[Fitting], looks: int | None) -> Iterator[SignTest]:
    """Yield a test of each tuning against the first. `looks`: most blocks of a run that is tested
    after each; None for one that is tested at its end."""
    first, *others = fitting
    if not others:
        return
    pairs = [_signs(one, first) for one in others]
    p_values = [sign_p(more, fewer) for more, fewer, _, _ in pairs]
    alpha = LEVEL / len(others)
    if looks is None:
        levels = rejected_at(p_values, LEVEL, len(others))
    else:
        alpha = sequential_level(looks, alpha)
        levels = [alpha if p <= alpha else None for p in p_values]
    fewest = next((n for n in range(1, 100) if sign_p(n, 0) <= alpha), 100)
    for one, (more, fewer, alike, undecided), p, level in zip(
        others, pairs, p_values, levels, strict=True
    ):
        yield SignTest(
            tuning=one.tuning,
            against=first.tuning,
            more=more,
            fewer=fewer,
            alike=alike,
            undecided=undecided,
            p=p,
            level=level,
            fewest=fewest,
        )


def _signs(one: Fitting, other: Fitting) -> tuple[int, int, int, int]:
    """Return the numbers of blocks with more, fewer, equally many, and undecided guests."""
    blocks = sorted(one.numbers.keys() & other.numbers.keys())
    signs = [compared(one.numbers[block], other.numbers[block]) for block in blocks]
    return signs.count(1), signs.count(-1), signs.count(0), signs.count(None)


def _curve(steps: Sequence[StepRecord], limit: Limit) -> Iterator[Point]:
    whole = [step for step in steps if step.held is not None and not step.disturbed]
    for count in sorted({step.count for step in whole}):
        here = [step for step in whole if step.count == count]
        costs = [cost for step in here if (cost := _cost(step, whole)) is not None]
        yield Point(
            count=count,
            blocks=len(here),
            held=sum(step.held is True for step in here),
            worst=median(limit.worst(step.values) for step in here),
            middle=median(median(step.values) for step in here),
            cost=median(costs) if costs else None,
        )


def _cost(step: StepRecord, steps: Sequence[StepRecord]) -> float | None:
    """Return the change of the median guest among earlier guests, per added guest; None at the step
    with the fewest guests of its block."""
    fewer = [s for s in steps if s.block == step.block and s.count < step.count]
    if not fewer:
        return None
    before = max(fewer, key=lambda s: s.count)
    changes = [now - then for now, then in zip(step.values, before.values, strict=False)]
    return median(changes) / (step.count - before.count)
