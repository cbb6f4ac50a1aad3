"""Account for time: the run's wall time, the cost of collecting, and the price of VM exits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labctl.analysis.answer.words import listed
from labctl.analysis.effects.design import ALPHA
from labctl.analysis.effects.intervals import spread, t_interval
from labctl.analysis.special import bdtr
from labctl.base.errors import UsageError
from labctl.base.notation import shares, significant
from labctl.base.stopping import FEWEST_BLOCKS, MOST_BLOCKS, Looks, looks
from labctl.base.wording import roughly
from labctl.store.exit_prices import Price
from labctl.store.records.plan_record import PlannedWorkload, PlanRecord
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialStatus
from labctl.trace.exit_names import IDLE

# Account for a run's time, and estimate the duration of a plan.


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTime:
    """Hold seconds. `total`: from the run's start to its end, interruptions included. Valid trials
    divide into measured `windows`, `warmups` before them, and the rest, `around`; `invalid` is
    whole attempts. `waited`: for a quiet host. The remainder lies between trials: boots, restores,
    hashing, and other changes of the machine."""

    total: float
    windows: float
    warmups: float
    around: float
    invalid: float
    waited: float

    @property
    def between(self) -> float:
        parts = (self.windows, self.warmups, self.around, self.invalid, self.waited)
        return self.total - sum(parts)

    @property
    def share(self) -> float:
        """Return the measured windows' share of all time."""
        return self.windows / self.total

    @property
    def share_without_warmups(self) -> float:
        """Return the measured windows' share of the time that was not warm-up."""
        return self.windows / (self.total - self.warmups)


OVERHEAD_S = 1.3
"""Seconds of each trial besides its measured window: warm-up, restore, its share of the boots. The
recorded quick sweep (`labctl report example`) had 1.2 up to the first look, and 1.6 over all
blocks: later ones have fewer trials for each boot. Its host has two CPUs, guests were emulated."""

OWN_BOOT_S = 11.0
"""Seconds that a guest of a tuning that isn't restored takes to boot, alone, in each block: 10.7 to
12.1 between two trials on that host, of which a restore takes 0.5."""

_OVERHEAD_OF = frozenset({"sysbench-cpu", "cyclictest"})
"""Programs that it was taken from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTime:
    """Hold a plan's estimated seconds, without spare blocks and repeats: its `windows`, and the
    `total` at the overhead per trial of the run `paced_by`; None: of the recorded quick sweep. With
    looks both are the most that it takes, and `first_look` is the time to the first one.
    `unpaced`: programs that that run did not have, so that the plan may take longer: in an emulated
    guest a program may start for minutes."""

    windows: float
    total: float
    paced_by: str | None
    first_look: float | None = None
    unpaced: tuple[str, ...] = ()


def expected_time(plan: PlanRecord, earlier: LoadedRun | None) -> ExpectedTime:
    """Estimate each trial as its window plus the overhead of a trial of `earlier`. If that is None
    or does not record it: the recorded quick sweep's overhead, plus the seconds that the workload
    leaves out. Boots of tunings that are not restored are extra, unless `earlier` had such
    tunings too."""
    rule = plan.rule
    if not (isinstance(rule, Looks) and rule.drops):
        return _expected_time(plan, earlier)
    first = rule.at[0]
    # After the first look native arms run at most in every second block.
    most = [
        trial
        for trial in plan.trials
        if trial.block <= first
        or (trial.block - first) % 2 == 0
        or plan.tunings[trial.cell["tuning"]].kind != "native"
    ]
    sooner = [trial for trial in plan.trials if trial.block <= first]
    return replace(
        _expected_time(plan.but(trials=tuple(most)), earlier),
        first_look=_expected_time(plan.but(trials=tuple(sooner)), earlier).total,
    )


def looks_within(plan: PlanRecord, earlier: LoadedRun | None, seconds: float) -> Looks:
    """Return the looks of a plan that ends within so many seconds, whatever its looks find.

    `plan`: has looks, the first after ten blocks; its blocks give the time of a block, and its last
    look is ignored. Raises UsageError if the time is not enough for ten blocks.
    """
    expected = expected_time(plan, earlier)
    first, blocks = expected.first_look, plan.blocks or 0
    if first is None or blocks <= FEWEST_BLOCKS:
        raise ValueError("a plan with looks is needed")
    each = (expected.total - first) / (blocks - FEWEST_BLOCKS)
    more = int((seconds - first) / each)
    if more < 1:
        raise UsageError(
            f"ten blocks, the fewest for a verdict, and one more take about {roughly(first + each)}"
            f"; {roughly(seconds)} are too short",
            hint="Choose fewer tunings (--tuning) or workloads (--workload), or a shorter "
            "--duration.",
        )
    last = min(FEWEST_BLOCKS + more, MOST_BLOCKS)
    middle = (FEWEST_BLOCKS + last) // 2
    few = last < FEWEST_BLOCKS + 6
    at = (FEWEST_BLOCKS, last) if few else (FEWEST_BLOCKS, middle, last)
    return looks(at, within_s=seconds)


def _expected_time(plan: PlanRecord, earlier: LoadedRun | None) -> ExpectedTime:
    windows = sum(plan.workloads[trial.cell["workload"]].duration_s or 0 for trial in plan.trials)
    spent = None if earlier is None else wall_time(earlier)
    boots_s = OWN_BOOT_S * _own_boots(plan)
    if earlier is None or spent is None:
        skipped = sum(_skipped_s(plan.workloads[trial.cell["workload"]]) for trial in plan.trials)
        return ExpectedTime(
            windows=windows,
            total=windows + skipped + OVERHEAD_S * len(plan.trials) + boots_s,
            paced_by=None,
            unpaced=_unpaced(plan, _OVERHEAD_OF),
        )
    done = sum(trial.record.status is TrialStatus.DONE for trial in earlier.trials)
    overhead = (spent.total - spent.windows - spent.waited - spent.invalid) / done
    return ExpectedTime(
        windows=windows,
        total=windows + overhead * len(plan.trials) + (0 if _own_boots(earlier.plan) else boots_s),
        paced_by=earlier.name,
        unpaced=_unpaced(plan, {one.program for one in earlier.plan.workloads.values()}),
    )


def _own_boots(plan: PlanRecord) -> int:
    """Return how many guests boot for the trials of one tuning in one block."""
    own = {name for name, arm in plan.tunings.items() if arm.kind == "guest" and not arm.restore}
    cells = {(trial.block, trial.cell.get("tuning")) for trial in plan.trials}
    return sum(name in own for _, name in cells)


def _unpaced(plan: PlanRecord, known: Collection[str | None]) -> tuple[str, ...]:
    """Return the plan's programs that are not known, in order."""
    programs = (plan.workloads[trial.cell["workload"]].program for trial in plan.trials)
    return tuple(dict.fromkeys(name for name in programs if name and name not in known))


def _skipped_s(workload: PlannedWorkload) -> float:
    """Return the seconds at the start of a program that the workload's metrics leave out."""
    trial = (workload.definition or {}).get("trial")
    skipped = trial.get("skip_s") if isinstance(trial, dict) else None
    return skipped if isinstance(skipped, (int, float)) else 0.0


def wall_time(run: LoadedRun) -> WallTime | None:
    """Return the times of a finished run; None if its files do not have them, as for imported
    runs."""
    total = _between(run.run.started_at, run.run.ended_at)
    records = [trial.record for trial in run.trials]
    if total is None or run.run.status != "done":
        return None
    done = [record for record in records if record.status is TrialStatus.DONE]
    invalid = [record for record in records if record.status is TrialStatus.INVALID]
    windows = sum(record.measured_s for record in done)
    warmups = sum(record.warmup_s for record in done)
    spent = WallTime(
        total=total,
        windows=windows,
        warmups=warmups,
        around=sum(record.wall_s for record in done) - windows - warmups,
        invalid=sum(record.wall_s for record in invalid),
        # Older versions do not record it, and never waited.
        waited=run.run.waited_for_quiet_s or 0.0,
    )
    # A file may hold anything, and a clock may have been set meanwhile.
    possible = all(0 <= seconds < math.inf for seconds in (*astuple(spent), spent.between))
    return spent if possible and windows > 0 else None


def _between(start: str | None, end: str | None) -> float | None:
    try:
        began, ended = (datetime.fromisoformat(moment or "") for moment in (start, end))
        return (ended - began).total_seconds()
    except (ValueError, TypeError):
        return None


# Compute the cost of collecting: from paired windows with and without it, and for a run's report.


LEAST = "counters"
"""Level of runs that do not record one."""

_TIED = 1e-9
"""Difference below which log ratios are equal: sysbench prints two decimals."""


class Cost(NamedTuple):
    """Hold the lost share of the throughput, with its 95 % interval; below 0 it is a gain."""

    estimate: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """Return "3.1 % (2.0 to 4.2 %)"."""
        return shares(*self)


def cost(collected: Sequence[float], bare: Sequence[float]) -> Cost:
    """Return the cost from throughputs with and without collecting, in pairs: 1 - exp(mean of
    ln(with / without)), its interval from Student's t on the pairs. Raises ValueError without a
    pair, or for throughputs that are not above 0."""
    effects = [math.log(a / b) for a, b in zip(collected, bare, strict=True)]
    found = spread(effects, _TIED)
    interval = t_interval(found, ALPHA)
    if interval is None:
        return Cost(_lost(found.mean), None, None)
    return Cost(_lost(found.mean), _lost(interval.high), _lost(interval.low))


def _lost(effect: float) -> float:
    return -math.expm1(effect)


def busy_words(labctl_cpu: float) -> str:
    """Return CPU seconds per second as "0.05 % of a CPU"."""
    return f"{significant(100 * labctl_cpu, 2)} % of a CPU"


def _own(busy: float | None) -> str:
    # Older measurements do not have it
    return "" if busy is None else f" and {busy_words(busy)} for labctl itself"


def level_of(run: LoadedRun) -> str:
    """Return the level at which a run's trials collected."""
    return run.plan.collect or LEAST


def costs_said(run: LoadedRun) -> str:
    """Return the cost of collecting at the run's level, as known at its start, as a sentence."""
    level = level_of(run)
    costs = run.run.collecting_costs
    if not costs:
        return (
            f"Collected at level '{level}': its cost on this host is not measured. 'labctl "
            f"collectors --overhead --level {level}' measures it."
        )
    named = [
        f"{Cost(cost.estimate, cost.low, cost.high)} of {cost.workload}'s throughput "
        f"{'natively' if cost.side == 'native' else 'in the guest'}"
        f"{_own(cost.labctl_cpu)} (measured {str(cost.measured_at)[:10]})"
        for cost in costs
    ]
    return f"Collected at level '{level}', which cost {listed(named, 8)} here."


# Compute the expected cost of a guest's VM exits from the host's price list. Pure.


_TO_QEMU = {"io-qemu": "IO", "mmio-qemu": "MMIO"}
"""Reason with which KVM passes an exit to QEMU, by kind of price (linux/kvm.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCost:
    """Estimate the CPU seconds per second that the exits take: from `low` to `high`, with `typical`
    in between. `exits`: number per second, without idle ones; `priced`: their share with a price;
    `unpriced`: the reasons of the others, the most frequent first."""

    exits: float
    low: float
    typical: float
    high: float
    priced: float
    unpriced: tuple[str, ...]


def exit_cost(
    exits: Mapping[str, float], to_qemu: Mapping[str, float], prices: Sequence[Price]
) -> ExitCost | None:
    """Sum exits times price over reasons; None without exits, or without a price for any.

    `exits`: per second, by reason; `to_qemu`: those passed to QEMU, by KVM's reason for that. The
    cost of an exit that ends in KVM and has several prices is between the lowest and the highest.
    """
    left = {reason: rate for reason, rate in exits.items() if reason not in IDLE and rate > 0}
    total = sum(left.values())
    cost = np.zeros(3)
    for price in prices:
        rate = min(to_qemu.get(_TO_QEMU.get(price.kind, ""), 0.0), left.get(price.reason, 0.0))
        if price.ns is not None:
            cost += rate * _nanoseconds([price])
            left[price.reason] = left.get(price.reason, 0.0) - rate
    unpriced: dict[str, float] = {}
    for reason, rate in left.items():
        inside = [
            price
            for price in prices
            if price.reason == reason and not price.to_qemu and price.ns is not None
        ]
        if inside:
            cost += rate * _nanoseconds(inside)
        elif rate > 0:
            unpriced[reason] = rate
    if total <= 0 or sum(unpriced.values()) >= total:
        return None
    low, typical, high = (float(value) / 1e9 for value in cost)
    return ExitCost(
        exits=total,
        low=low,
        typical=typical,
        high=high,
        priced=1 - sum(unpriced.values()) / total,
        unpriced=tuple(sorted(unpriced, key=lambda reason: -unpriced[reason])),
    )


def _nanoseconds(prices: Sequence[Price]) -> NDArray[np.float64]:
    """Return the lowest end, the mean and the highest end of the known prices."""
    known = np.array([(price.low_ns, price.ns, price.high_ns) for price in prices], dtype=float)
    return np.array([known[:, 0].min(), known[:, 1].mean(), known[:, 2].max()])


# Estimate the price of one VM exit from the cycles of a guest's rounds. Pure.


LEAST_EXITS = 0.5
"""Exits per instruction below which the instruction is not their cause."""
_CONFIDENCE = 0.975
"""Confidence of either median's interval, so that their difference has one of at least 95 %
(Bonferroni).
"""


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its distribution-free interval of at least 97.5 %: the order statistics
    between which a binomial count lies (David & Nagaraja, Order Statistics, 3rd ed., 7.1).

    With too few values the interval is the whole range. Raises ValueError without values.
    """
    if not values:
        raise ValueError("the median of nothing")
    ordered = np.sort(np.asarray(values, dtype=float))
    count = len(ordered)
    outside = [rank for rank in range(count // 2) if 2 * bdtr(rank, count, 0.5) <= 1 - _CONFIDENCE]
    cut = outside[-1] if outside else 0
    return float(np.median(ordered)), float(ordered[cut]), float(ordered[count - 1 - cut])


def price(
    kind: str,
    what: str,
    reason: str,
    *,
    to_qemu: bool,
    cycles: Sequence[float],
    alone: Sequence[float],
    exits_per_op: float | None,
    tsc_hz: float | None,
    problem: str = "",
) -> Price:
    """Return the price of an exit of a kind: the instruction's cycles minus those of the loop
    `alone` (both with a value per round), divided by its exits, in nanoseconds of `tsc_hz`.

    If it is unknown, the price has a problem, as a sentence.
    """
    ns = low_ns = high_ns = None
    if not problem and tsc_hz is None:
        problem = "the rate of the host's time-stamp counter is unknown."
    if not problem and exits_per_op is not None and exits_per_op < LEAST_EXITS:
        problem = f"makes no VM exit here: KVM counted {exits_per_op:.2f} for each instruction."
    if not problem and tsc_hz is not None:
        # If KVM does not count exits, one exit per instruction is assumed.
        exits = exits_per_op or 1.0
        middle, low, high = median_interval(cycles)
        alone_middle, alone_low, alone_high = median_interval(alone)
        per_cycle = 1e9 / tsc_hz / exits
        if low <= alone_high:
            problem = "took no longer than the loop alone, within the resolution of its rounds."
        else:
            ns = (middle - alone_middle) * per_cycle
            low_ns, high_ns = (low - alone_high) * per_cycle, (high - alone_low) * per_cycle
    return Price(
        kind=kind,
        what=what,
        reason=reason,
        to_qemu=to_qemu,
        ns=ns,
        low_ns=low_ns,
        high_ns=high_ns,
        exits_per_op=exits_per_op,
        problem=problem,
    )
