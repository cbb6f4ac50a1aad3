"""Find what got worse under a tuning: declared metrics, others, and the largest values.

Three kinds, never mixed: verdicts; metrics without a verdict whose own 95 % interval lies on the
worse side; and maxima, which have no interval at all (METHOD 16) and are named when they stand out.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_high, median_low

from labctl.analysis.answer.record import Basis, SideCost, Statistic, Worse
from labctl.analysis.answer.view import MetricColumn, View, only_label, primary_column
from labctl.analysis.answer.words import effect, shown
from labctl.analysis.effects.cells import Scenario, scenario_of
from labctl.analysis.model import Comparison, EffectKind, Level, Role
from labctl.analysis.verdicts.table import Verdict
from labctl.base.metrics.table import metric_of
from labctl.base.notation import change, quantity
from labctl.base.units import LARGEST, Better, Unit
from labctl.base.wording import metric_title
from labctl.store.samples import HELPERS, VCPU, base_name, labels_of, sample_key

STANDS_OUT = 1.5
"""Factor by which a tuning's largest value, or the median of its trials' maxima, must exceed both
baseline's and the control's, each of as many trials. These two are equal guests: what they differ
by is chance."""


def worse_of(view: View, tuning: str) -> Iterator[Worse]:
    """Yield what got worse under a tuning, what is surest first."""
    for place in view.places:
        for c in view.judged(place, tuning):
            if c.verdict is Verdict.REGRESSES:
                yield _compared(view, c, Basis.VERDICT)
    # Where baseline differs from itself, so may any other metric's interval.
    failed = {scenario_of(check) for check in view.judgement.control if check.passed is False}
    for c in surely_worse(view, tuning):
        if scenario_of(c) not in failed and _matters(view, c):
            yield _compared(view, c, Basis.INTERVAL)
    for place in view.places:
        yield from _largest(view, tuning, place)


def _matters(view: View, c: Comparison) -> bool:
    """Return whether a change is as large as what the study calls large enough to matter there."""
    primary = view.primary_comparison(scenario_of(c))
    if primary is None or primary.margin is None or c.kind is not primary.kind:
        return True
    if c.kind is EffectKind.RATIO:
        return max(c.estimate, 1 / c.estimate) >= 1 + primary.margin
    return True


def surely_worse(view: View, tuning: str) -> Iterator[Comparison]:
    """Yield exploratory metrics that a guest's user feels, whose interval lies on the worse
    side."""
    for item in view.judgement.comparisons:
        if (
            (item.tuning, item.against) == (tuning, view.baseline)
            and item.role is Role.EXPLORATORY
            and is_felt(item.metric)
            and item.low is not None
            and item.high is not None
        ):
            none = 1.0 if item.kind is EffectKind.RATIO else 0.0
            if (item.better is Better.HIGHER and item.high < none) or (
                item.better is Better.LOWER and item.low > none
            ):
                yield item


def is_felt(metric: str) -> bool:
    """Return whether a guest's user feels a metric; others are causes, or side costs."""
    row = metric_of(base_name(metric))
    return row is not None and row.felt


def _compared(view: View, c: Comparison, tested: Basis) -> Worse:
    levels = {
        level.tuning: level.typical
        for level in view.levels(scenario_of(c))
        if level.metric == c.metric
    }
    title = metric_title(c.metric)
    change, interval = shown(c)
    if tested is Basis.VERDICT:
        words = f"{title} {effect(c)}: regresses"
    else:
        words = f"{title} {change} ({interval}, no verdict)"
    return Worse(
        workload=c.workload,
        condition=c.condition,
        metric=c.metric,
        unit=str(c.unit),
        tested=tested,
        statistic=Statistic.TYPICAL,
        before=levels.get(view.baseline),
        after=levels.get(c.tuning),
        trials=len(c.blocks),
        text=f"{words} in {scenario_of(c)}",
    )


def _largest(view: View, tuning: str, place: Scenario) -> Iterator[Worse]:
    """Yield the maxima of one place that stand out: no estimates, and not tested."""
    by_metric: dict[str, dict[str, Level]] = {}
    for level in view.levels(place):
        is_largest = base_name(level.metric).endswith("_max") and level.better is Better.LOWER
        if is_largest or level.metric == _BLOCKED:
            by_metric.setdefault(level.metric, {})[level.tuning] = level
    blocked = by_metric.pop(_BLOCKED, {})
    for metric, levels in by_metric.items():
        own, before = levels.get(tuning), levels.get(view.baseline)
        if own is None or before is None:
            continue
        control = levels.get(view.control)
        found = _standing_out(own, before, control)
        if found is None:
            continue
        statistic, before_value, after_value = found
        trials = len(own.values)
        # What the kernel does in each second shows in each trial.
        usual = median_low(own.values.values())
        why = ""
        if own.unit is Unit.SECONDS:
            why = _blocked(view.run.name, blocked.get(tuning), own)
            why = why or _why_stalled(view, tuning, usual)
            if not why and tuning not in blocked and after_value >= _LONG_S:
                why = "; with '--collect trace' a run finds the cause"
        title = "longest latency" if base_name(metric) == LARGEST else metric_title(metric)
        yield Worse(
            workload=place.workload,
            condition=place.condition,
            metric=metric,
            unit=str(own.unit),
            tested=Basis.NOT_TESTED,
            statistic=statistic,
            before=before_value,
            after=after_value,
            trials=trials,
            text=(
                f"{title} {quantity(before_value, own.unit)} → {quantity(after_value, own.unit)} "
                f"in {place} (the {statistic} of {trials} trials each: not tested)"
                f"{why}"
            ),
        )


_BLOCKED = "vcpu_blocked_max"


def _blocked(run: str, blocked: Level | None, own: Level) -> str:
    """Return that the vCPU's thread slept through most of the longest stall, as the end of a
    sentence; "" where no trace says so."""
    block = max(own.values, key=own.values.__getitem__)
    slept_s = blocked.values.get(block, 0.0) if blocked else 0.0
    if slept_s < own.values[block] / 2:
        return ""
    return (
        f"; for {quantity(slept_s, Unit.SECONDS)} of the longest its vCPU slept in the host "
        f"('labctl timeline {run}' names its waker)"
    )


_NEAR = 0.25
"""Share by which a stall may differ from the kernel's and still be that: part of a period is the
program's own, and a stall may begin before a window or end after it."""


def _why_stalled(view: View, tuning: str, stall_s: float) -> str:
    """Return that the kernel stops real-time threads for as long in each period, as the end of a
    sentence; "" where it doesn't, or not for as long (sched(7), real-time throttling)."""
    recorded, host = view.run.run.tunings.get(tuning), view.run.run.host
    sched = recorded.vcpu_sched if recorded else None
    try:
        period_us = float(host["sched_rt_period_us"])
        stopped_us = period_us - float(host["sched_rt_runtime_us"])
    except (KeyError, TypeError, ValueError):
        return ""
    if not sched or sched.get("policy") not in ("fifo", "rr") or not 0 < stopped_us < period_us:
        return ""
    if abs(stall_s * 1e6 / stopped_us - 1) > _NEAR:
        return ""
    period = "second" if period_us == 1e6 else f"{period_us / 1e6:g} s"
    return (
        f"; real-time throttling stops its vCPUs for up to {stopped_us / 1000:g} ms in each "
        f"{period}"
    )


_TWICE = 2
_LONG_S = 0.1
"""A stall that a guest's user notices, even if it came once."""


def stall(view: View, tuning: str) -> Level | None:
    """Return the longest latency of each trial, in the place where it is worst; None if it is no
    reason for a warning. It is one if the median is at least twice baseline's, or if the largest
    is, and takes 0.1 s or more."""
    found = []
    for place in view.places:
        levels = {
            level.tuning: level
            for level in view.levels(place)
            if base_name(level.metric) == LARGEST and level.unit is Unit.SECONDS
        }
        own, before = levels.get(tuning), levels.get(view.baseline)
        if own is None or before is None:
            continue
        equals = [before, *filter(None, [levels.get(view.control)])]
        longest = max(own.values.values())
        usual = max(median_high(e.values.values()) for e in equals)
        once = max(max(e.values.values()) for e in equals)
        if median_low(own.values.values()) >= _TWICE * usual or (
            longest >= max(_LONG_S, _TWICE * once)
        ):
            found.append((longest, own))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _standing_out(
    own: Level, before: Level, control: Level | None
) -> tuple[Statistic, float, float] | None:
    """Return what of a maximum stands out, baseline's and the tuning's; None where nothing does.
    One long wait decides the largest of all trials; what happens in every trial shows in their
    median."""
    equals = [before] if control is None else [before, control]
    for statistic, of_own, of_equal in (
        (Statistic.LARGEST, max, max),
        (Statistic.MEDIAN, median_low, median_high),
    ):
        value = of_own(own.values.values())
        if value > 0 and value >= STANDS_OUT * max(of_equal(e.values.values()) for e in equals):
            return statistic, of_equal(before.values.values()), value
    return None


# Show who pays for a tuning: the guest, its neighbour, the host's CPUs.


NEIGHBOUR = "neighbour"
"""Beginning of what a neighbour is called among those who pay."""
_DONE = "neighbour_ops_per_s"
_PER_CPU = "ops_per_cpu_s"


def side_costs_of(view: View, tuning: str, place: Scenario) -> list[SideCost]:
    """Return who pays for a tuning: the guest, its neighbour, the host's CPUs, per CPU-second.

    Without this a FIFO guest looks free. [] unless there is more to say than the guest's own
    change.
    """
    costs = []
    primary = view.primary(place.workload)
    parties = neighbour_columns(view, place)
    if primary is not None:
        parties.insert(0, MetricColumn("guest", primary_column(primary).names))
    for party in parties:
        found = view.comparison(tuning, view.baseline, place, party)
        if found is not None:
            costs.append(_side_cost(party.title, found))
    host = _host_cpu(view, tuning, place), _host_cpu(view, view.baseline, place)
    if host[0] and host[1]:
        ratio = host[0] / host[1]
        costs.append(
            SideCost(
                workload=place.workload,
                condition=place.condition,
                who="host CPU",
                change=change(ratio),
                interval="",
                ratio=ratio,
            )
        )
    per_cpu = MetricColumn("", (_PER_CPU,))
    found = view.comparison(tuning, view.baseline, place, per_cpu)
    if found is not None:
        costs.append(_side_cost("work per host CPU-second", found))
    return costs if len(costs) > 1 else []


def is_side_cost(metric: str) -> bool:
    """Return whether a metric says what neighbours got done, or a second of the host's CPUs."""
    return base_name(metric) in {_DONE, _PER_CPU}


def neighbour_columns(view: View, place: Scenario) -> list[MetricColumn]:
    """Return what neighbours got done there: of all together, or, where several workloads ran, of
    each."""
    named = (only_label(level.metric, _DONE, "workload") for level in view.levels(place))
    if several := dict.fromkeys(name for name in named if name is not None):
        return [
            MetricColumn(f"{NEIGHBOUR} {name}", (sample_key(_DONE, {"workload": name}),))
            for name in several
        ]
    return [MetricColumn(NEIGHBOUR, (_DONE,))]


def _side_cost(who: str, found: Comparison) -> SideCost:
    of, interval = shown(found)
    return SideCost(
        workload=found.workload,
        condition=found.condition,
        who=who,
        change=of,
        interval=interval,
        ratio=found.estimate if found.kind is EffectKind.RATIO else None,
    )


def _host_cpu(view: View, tuning: str, place: Scenario) -> float:
    """Return CPU seconds per second of all the guest's threads together."""
    return sum(
        level.typical
        for level in view.levels(place)
        if level.tuning == tuning
        and base_name(level.metric) == "host_cpu"
        and labels_of(level.metric).get("thread") in (VCPU, *HELPERS)
    )
