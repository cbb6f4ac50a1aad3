"""Compare two runs: two hosts, two kernels, two days.

    facts ── differences ─▶ conflicts that prevent a comparison ─▶ refused
    tunings with the same meaning in both ─▶ levels (B / A) ─▶ effects on baseline (B's / A's)

Blocks of two runs have nothing in common, so nothing is paired here: intervals are Welch's
(B. L. Welch, Biometrika 34, 1947), which pools no variances. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from labctl.analysis.effects.cells import Cells, Scenario, Series, is_interleaved, read_cells
from labctl.analysis.effects.design import Design, joint_level, read_design
from labctl.analysis.effects.effects import (
    Effects,
    alone,
    by_ratio,
    effects_of,
    natural,
    on_scale,
    ratio_of,
)
from labctl.analysis.effects.intervals import Spread, blocks_needed, unpaired, welch_interval
from labctl.analysis.model import EffectKind
from labctl.analysis.times import LEAST
from labctl.analysis.verdicts.checks import Checked, check
from labctl.analysis.verdicts.decide import confirmatory
from labctl.analysis.verdicts.rules import Eligibility
from labctl.base.hostfacts import FACT_NAMES
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.base.units import Better, Unit
from labctl.base.wording import counted
from labctl.store.records.run_record import RunRecord
from labctl.store.records.tolerant import Record
from labctl.store.run_folder import LoadedRun

# Compare the recorded facts of two runs, their hosts and their guests.


@dataclass(frozen=True, slots=True, kw_only=True)
class FactDifference:
    """Hold a fact that the runs recorded differently; None for a run that did not record it."""

    name: str
    a: str | None
    b: str | None


def fact_differences(a: RunRecord, b: RunRecord) -> Iterator[FactDifference]:
    """Yield the facts of host, guest and run that differ between two run.json, in the order of
    FACT_NAMES: facts that affect every figure come first."""
    for section, title in (("host", ""), ("guest", "guest's ")):
        ours, theirs = getattr(a, section), getattr(b, section)
        for key, name in FACT_NAMES.items():
            if ours.get(key) != theirs.get(key):
                yield FactDifference(
                    name=f"{title}{name}",
                    a=fact_words(ours.get(key)),
                    b=fact_words(theirs.get(key)),
                )
    for key, name in OF_THE_RUN.items():
        ours, theirs = (fact_of_run(run, key) for run in (a, b))
        if ours != theirs:
            yield FactDifference(name=name, a=fact_words(ours), b=fact_words(theirs))


OF_THE_RUN = {
    "accelerator": "accelerator",
    "vcpus": "vCPUs",
    "memory_mib": "guest's memory in MiB",
    "image": "image",
    "fresh_boots": "booted for each tuning",
    "collect": "level of collecting",
}

_BEFORE_IT_WAS_SAID = {"collect": LEAST}


def fact_of_run(record: RunRecord, key: str) -> Any:
    """Return one of OF_THE_RUN from a run.json; None if it is not recorded."""
    found = getattr(record, key)
    if found is None:
        return _BEFORE_IT_WAS_SAID.get(key)
    return found.to_json() if isinstance(found, Record) else found


def fact_words(value: Any) -> str | None:
    """Return a recorded fact as text for people; None if it is missing."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        if "unavailable" in value:
            return f"not available ({value['unavailable']})"
        return ", ".join(
            f"{item} {key}" if _is_number(item) else f"{key} {fact_words(item)}"
            for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "none"


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Compare one number of run B with the same of run A.

    `of_effect`: compares the tuning's effect on its baseline, else the value itself. `estimate`,
    `low`, `high`: B / A for ratios, else B - A in `unit`; `low` and `high` are None without an
    interval. `confidence`: such that all rows of effects and of values hold with 95 % together.
    `margin`: the practical threshold of A's study, as in Comparison.
    """

    tuning: str
    workload: str
    condition: str
    metric: str
    unit: Unit
    better: Better
    of_effect: bool
    kind: EffectKind
    in_a: float
    in_b: float
    estimate: float
    low: float | None
    high: float | None
    confidence: float
    margin: float | None
    """None if the threshold is a share and the values have no ratio."""
    blocks_a: int
    blocks_b: int
    before_look: bool
    """True if one of the runs reached none of the looks that its plan declares."""
    judges: bool = True
    """True if the controls of both runs let them judge the effect (METHOD 18)."""
    sees: bool = True
    """True if both runs have shown that they detect a loss as small as `margin` (METHOD 5)."""
    needed: int | None = None
    """Blocks of each run that would show a difference of `margin` with 80 % power; None if the
    present blocks do, or if the number is unknown."""

    @property
    def finding(self) -> str:
        """Return the interval's result, "differs", "the same" (within the threshold) or "not
        shown", or the reason why it gives none yet: "too few blocks" (METHOD 21), "before the first
        look"."""
        if self.low is None or self.high is None:
            return "not shown"
        if min(self.blocks_a, self.blocks_b) < FEWEST_BLOCKS:
            return "too few blocks"
        if self.before_look:
            return "before the first look"
        if not self.judges:
            return "not shown"
        nothing = 1.0 if self.kind is EffectKind.RATIO else 0.0
        if not self.low <= nothing <= self.high:
            return "differs"
        if self.margin is None or not self.sees:
            return "not shown"
        if self.kind is EffectKind.RATIO:
            within = self.low > 1 / (1 + self.margin) and self.high < 1 + self.margin
        else:
            within = -self.margin < self.low and self.high < self.margin
        return "the same" if within else "not shown"

    @property
    def blocks_needed(self) -> int | None:
        """Return the blocks of each run that would decide an open result; None if it is open for
        another reason."""
        return self.needed if self.finding == "not shown" and self.judges and self.sees else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Compare two runs. `refusals`: reasons why they can't be compared; with any, the numbers do
    not answer the question. `left_out`: numbers that only one run has, or that the runs define
    differently."""

    a: str
    b: str
    facts: tuple[FactDifference, ...]
    refusals: tuple[str, ...]
    left_out: tuple[str, ...]
    levels: tuple[Difference, ...]
    effects: tuple[Difference, ...]
    cautions: tuple[str, ...]


def compare_runs(a: LoadedRun, b: LoadedRun) -> RunComparison:
    """Return all differences of run `b` from run `a`. Never raises.

    The comparison covers the primary metrics of workloads that both ran in the same way, for the
    tunings and conditions that both have.
    """
    ours, theirs = _Side.of(a), _Side.of(b)
    left_out = [
        f"{run.name} has no plan: its arms are unknown." for run in (a, b) if run.plan.is_lost
    ]
    spots = [] if left_out else _spots(ours, theirs, left_out)
    measured = [spot for spot in spots if ours.has(spot) and theirs.has(spot)]
    if spots and not measured:
        left_out.append("No tuning has a primary metric measured in both runs.")
    judged = [spot for spot in measured if spot.tuning in ours.design.candidates]
    # Effects and values get half of alpha each: equal runs must not differ in a row of either.
    level = joint_level(ours.design, theirs.design) / (2 if judged else 1)
    effects = (_effect(ours, theirs, spot, level / len(judged)) for spot in judged)
    return RunComparison(
        a=a.name,
        b=b.name,
        facts=() if _either_imported(a, b) else tuple(fact_differences(a.run, b.run)),
        refusals=tuple(refusals(a, b)),
        left_out=tuple(left_out),
        levels=tuple(_level(ours, theirs, spot, level / len(measured)) for spot in measured),
        effects=tuple(found for found in effects if found is not None),
        cautions=(*_cautions(ours, theirs), *_unchecked(ours, theirs, judged)),
    )


def _spots(a: _Side, b: _Side, left_out: list[str]) -> list[_Spot]:
    places = _matched_places(a, b, left_out)
    left_out += _unmatched_tunings(a, b)
    return [
        _Spot(tuning, place, a.design.primaries[place.workload].metric)
        for place in places
        for tuning in _matched_tunings(a, b)
    ]


class _Spot(NamedTuple):
    """Hold the object of a comparison: a tuning's primary metric at a workload and condition."""

    tuning: str
    place: Scenario
    metric: str


@dataclass(frozen=True, slots=True)
class _Side:
    run: LoadedRun
    design: Design
    cells: Cells

    @classmethod
    def of(cls, run: LoadedRun) -> _Side:
        run = confirmatory(run)
        return cls(run, read_design(run), read_cells(run))

    def has(self, spot: _Spot) -> bool:
        return self.cells.get(spot.tuning, spot.place, spot.metric) is not None

    def checked(self, place: Scenario) -> Checked:
        """Control and known loss of the run at a place whose workload has a primary metric."""
        return check(self.design, self.cells, place, self.design.primaries[place.workload])

    def eligibility(self, place: Scenario) -> Eligibility:
        return self.checked(place).eligibility

    def series(self, spot: _Spot) -> Series:
        return self.cells.at(spot.tuning, spot.place)[spot.metric]


def _either_imported(a: LoadedRun, b: LoadedRun) -> bool:
    return bool(a.run.imported or b.run.imported)


def refusals(a: LoadedRun, b: LoadedRun) -> Iterator[str]:
    """Yield the reasons why two runs can't be compared, as ends of sentences."""
    if bool(a.run.imported) is not bool(b.run.imported):
        imported, other = (a, b) if a.run.imported else (b, a)
        yield (
            f"{imported.name} was imported and {other.name} was measured by labctl: it is "
            "unknown whether the same names mean the same"
        )
        return
    ours, theirs = a.run.accelerator, b.run.accelerator
    if ours != theirs:
        known = {ours, theirs} == {"tcg", "kvm"}
        yield (
            f"the guests of {a.name} ran under {accelerator_title(ours)} and those of "
            f"{b.name} under {accelerator_title(theirs)}: "
            + ("one is emulated, so their difference is that" if known else "one may be emulated")
        )
    programs = {str(workload.program) for workload in a.plan.workloads.values()}
    built, otherwise = builds(a.run, programs), builds(b.run, programs)
    for binary in sorted(set(built) & set(otherwise)):
        if built[binary] != otherwise[binary]:
            yield (
                f"the guests ran different builds of {binary}, so a difference may be the program's"
            )


def builds(record: RunRecord, programs: Collection[str]) -> dict[str, str | None]:
    """Return the digests of these programs' files in the guest, by the binary's name."""
    return {
        binary: digests.get("guest")
        for binary, digests in record.binaries.items()
        if any(name == binary or name.startswith(f"{binary}-") for name in programs)
    }


def accelerator_title(name: Any) -> str:
    """Return the accelerator in words, from a run.json's value."""
    return {"tcg": "TCG", "kvm": "KVM"}.get(str(name), "an unknown accelerator")


def _matched_tunings(a: _Side, b: _Side) -> list[str]:
    """Return tunings of the same name and definition, in A's order."""
    ours, theirs = (side.run.plan.tunings for side in (a, b))
    return [name for name in ours if name in theirs and same_tuning(a.run, b.run, name)]


def same_tuning(a: LoadedRun, b: LoadedRun, name: str) -> bool:
    """Return whether a tuning of both runs is the same; imported tunings have only their name."""
    ours, theirs = (run.plan.tunings[name].digest for run in (a, b))
    return _either_imported(a, b) or ours == theirs


def _unmatched_tunings(a: _Side, b: _Side) -> Iterator[str]:
    ours, theirs = (side.run.plan.tunings for side in (a, b))
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in ours or name not in theirs:
            run = a.run.name if name in ours else b.run.name
            yield f"Tuning '{name}' is only in {run}."
        elif not same_tuning(a.run, b.run, name):
            yield f"Tuning '{name}' has a different definition in {b.run.name}."


def _matched_places(a: _Side, b: _Side, left_out: list[str]) -> list[Scenario]:
    ours, theirs = (side.run.plan.workloads for side in (a, b))
    same = set()
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if name not in ours or name not in theirs:
            run = a.run.name if name in ours else b.run.name
            left_out.append(f"Workload '{name}' is only in {run}.")
        elif differing := workload_differences(a.run, b.run, name):
            left_out.append(
                f"Workload '{name}' ran differently in {b.run.name} ({', '.join(differing)})."
            )
        elif name in a.design.primaries and name in b.design.primaries:
            same.add(name)
    other = _other_neighbours(a, b)
    left_out += [f"Condition '{name}' has other neighbours in {b.run.name}." for name in other]
    return [
        place
        for place in a.design.places
        if place in set(b.design.places) and place.workload in same and place.condition not in other
    ]


def _other_neighbours(a: _Side, b: _Side) -> list[str]:
    """Return the conditions that both runs define, but differently."""
    ours, theirs = (side.run.plan.neighbours for side in (a, b))
    return [name for name in ours if name in theirs and ours[name] != theirs[name]]


def workload_differences(a: LoadedRun, b: LoadedRun, name: str) -> list[str]:
    """Return the settings of a shared workload that differ between the runs."""
    ours, theirs = (run.plan.workloads[name] for run in (a, b))
    known = ("primary",) if _either_imported(a, b) else MADE_BY
    return [key for key in known if getattr(ours, key) != getattr(theirs, key)]


MADE_BY = ("program", "parameters", "duration_s", "primary")


def _level(a: _Side, b: _Side, spot: _Spot, alpha: float) -> Difference:
    ours, theirs = a.series(spot), b.series(spot)
    logs = by_ratio([ours, theirs])
    return _difference(
        a,
        b,
        spot,
        EffectKind.RATIO if logs else EffectKind.DIFFERENCE,
        (alone(ours, logs=logs), alone(theirs, logs=logs)),
        shown=(ours.typical, theirs.typical),
        alpha=alpha,
        of_effect=False,
        eligibilities=(),
    )


def _effect(a: _Side, b: _Side, spot: _Spot, alpha: float) -> Difference | None:
    ours, theirs = _effects(a, spot), _effects(b, spot)
    if ours is None or theirs is None or ours.kind is not theirs.kind:
        return None
    return _difference(
        a,
        b,
        spot,
        ours.kind,
        (ours.spread, theirs.spread),
        shown=(ours.shown(ours.spread.mean), theirs.shown(theirs.spread.mean)),
        alpha=alpha,
        of_effect=True,
        eligibilities=(a.eligibility(spot.place), b.eligibility(spot.place)),
    )


def _effects(side: _Side, spot: _Spot) -> Effects | None:
    """Return the tuning against its run's baseline and control, as in the run's judgement."""
    references = (
        side.cells.get(name, spot.place, spot.metric)
        for name in (side.design.baseline, side.design.control)
    )
    if side.cells.get(side.design.baseline, spot.place, spot.metric) is None:
        return None
    return effects_of(
        side.series(spot), [one for one in references if one is not None], against_native=False
    )


def _difference(
    a: _Side,
    b: _Side,
    spot: _Spot,
    kind: EffectKind,
    spreads: tuple[Spread, Spread],
    *,
    shown: tuple[float, float],
    alpha: float,
    of_effect: bool,
    eligibilities: Sequence[Eligibility],
) -> Difference:
    interval = welch_interval(*spreads, alpha)

    def scaled(value: float) -> float:
        return ratio_of(value) if kind is EffectKind.RATIO else value

    sample = a.series(spot).sample
    # A threshold that is a share does not apply to a difference.
    usual = kind is EffectKind.RATIO or natural(sample.metric, sample.unit, against_native=False)
    margin = a.design.primaries[spot.place.workload].margin
    return Difference(
        tuning=spot.tuning,
        workload=spot.place.workload,
        condition=spot.place.condition,
        metric=spot.metric,
        unit=sample.unit,
        better=sample.better,
        of_effect=of_effect,
        kind=kind,
        in_a=shown[0],
        in_b=shown[1],
        estimate=scaled(spreads[1].mean - spreads[0].mean),
        low=None if interval is None else scaled(interval.low),
        high=None if interval is None else scaled(interval.high),
        confidence=1 - alpha,
        margin=margin if usual else None,
        blocks_a=spreads[0].n,
        blocks_b=spreads[1].n,
        before_look=a.design.before_look or b.design.before_look,
        judges=all(eligibility.judges for eligibility in eligibilities),
        sees=all(eligibility.sees(on_scale(margin, kind)) for eligibility in eligibilities),
        needed=blocks_needed(unpaired(spreads[1], spreads[:1]), alpha, on_scale(margin, kind))
        if usual
        else None,
    )


def _unchecked(a: _Side, b: _Side, judged: Collection[_Spot]) -> Iterator[str]:
    """Yield the limits that the control and the known loss of either run put on its effects."""
    for place in dict.fromkeys(spot.place for spot in judged):
        for side in (a, b):
            checked = side.checked(place)
            if side.cells.blocks < FEWEST_BLOCKS:
                continue  # reported already, and then checks are impossible
            if not checked.eligibility.judges:
                yield f"{side.run.name}: {checked.control.sentence}"
            elif checked.known_loss.passed is not True:
                yield f"{side.run.name}: {checked.known_loss.sentence}"


def _cautions(a: _Side, b: _Side) -> Iterator[str]:
    for side in (a, b):
        if side.run.run.imported:
            yield (
                f"{side.run.name} was imported, not measured by labctl: nothing is known "
                "about its host, and its tunings and workloads are known only by name."
            )
        if not is_interleaved(side.run):
            yield (
                f"{side.run.name}: its effects are unpaired, because it is unknown whether "
                "its trials were interleaved."
            )
        if 0 < side.cells.blocks < FEWEST_BLOCKS:
            yield (
                f"{side.run.name} has {counted(side.cells.blocks, 'block')}; a finding "
                f"needs {FEWEST_BLOCKS}: a demonstration."
            )
        if side.cells.boots == 1 < side.cells.blocks:
            yield (
                f"{side.run.name}: {side.cells.blocks} blocks share one boot, so its "
                "intervals do not include differences between boots, and two runs differ "
                "by those as well."
            )
        status = side.run.run.status
        if status != "done":
            yield f"{side.run.name} is not finished (status: {status or 'unknown'})."
        yield from (f"{side.run.name}: {text}" for text in side.run.problems)


# Compare performance per price of two runs' hosts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Hold the price of an hour of each run's host, in one currency."""

    a: float
    b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PerPrice:
    """Hold the performance of run B's host for the same money as run A's (2: twice as much).

    `low`, `high`: from the ratio of the row that it is computed from; prices count as exact. `why`:
    the reason if `estimate` is missing."""

    tuning: str
    workload: str
    condition: str
    metric: str
    better: Better
    estimate: float | None
    low: float | None
    high: float | None
    confidence: float
    why: str = ""


def per_price(rows: Iterable[Difference], prices: Prices) -> Iterator[PerPrice]:
    """Yield performance per price for each value that both runs have.

    It is (metric_A / metric_B) x (price_A / price_B) where less is better, else (metric_B /
    metric_A) x (price_A / price_B).
    """
    for row in rows:
        why = _why_none(row)
        of = (row.estimate, row.low, row.high) if not why else (None, None, None)
        estimate, low, high = (_of(ratio, row.better, prices) for ratio in of)
        if row.better is Better.LOWER:
            low, high = high, low
        yield PerPrice(
            tuning=row.tuning,
            workload=row.workload,
            condition=row.condition,
            metric=row.metric,
            better=row.better,
            estimate=estimate,
            low=low,
            high=high,
            confidence=row.confidence,
            why=why,
        )


def _why_none(row: Difference) -> str:
    if row.better is Better.NEITHER:
        return "it has no better direction"
    if row.kind is not EffectKind.RATIO or not row.estimate > 0:
        return "it is compared by difference, but performance per price needs a ratio"
    return ""


def _of(ratio: float | None, better: Better, prices: Prices) -> float | None:
    if ratio is None or ratio <= 0:
        return None
    performance = 1 / ratio if better is Better.LOWER else ratio
    return performance * prices.a / prices.b
