"""List what one host's run adds to a fleet: effects and baseline levels, from its own verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from labctl.analysis.cells import Cell, scenario_of
from labctl.analysis.decide import Decided, decide
from labctl.analysis.effects import alone
from labctl.analysis.model import Comparison, EffectKind, Role, RunCheck
from labctl.base.wording import printable
from labctl.store.run_folder import LoadedRun

LEVEL = "level"
"""Kind of a row that holds an arm's own typical value in place of an effect."""

NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Hold what hosts are grouped by, as text. `boot_id`: of the host's own boot, by which one
    machine under two names shows; None where it wasn't recorded."""

    cpu_model: str
    kernel: str
    firmware: str
    topology: str
    accelerator: str
    boot_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Name what an effect is of: one tuning against another arm, or an arm's own level (`against`
    ""), for one workload, condition and metric."""

    tuning: str
    against: str
    workload: str
    condition: str
    metric: str
    unit: str
    better: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEffect(Where):
    """Hold one effect, or one level, of one host's run.

    `estimate` and `error` are on the scale of effects: logarithms for `kind` "ratio" and "level",
    else in `unit`. `error` is None where the run shows no spread. `boots`: of `blocks` blocks; 1
    says nothing about a second boot.
    """

    role: str
    estimate: float
    error: float | None
    units: int
    boots: int
    blocks: int
    verdict: str | None
    margin: float | None
    no_worse_than: float | None
    control: str | None
    """State of the control there, of an effect against baseline: `Control`. Unlike the verdict it
    doesn't hang on the effect, so hosts can be left out by it without choosing among effects."""


class Control(StrEnum):
    """Name what the control's check found at a place."""

    PASSED = "passed"
    OPEN = "open"
    """It found no bias, and can't rule out one beyond the threshold."""
    FAILED = "failed"
    MISSING = "missing"


def host_facts(run: LoadedRun) -> HostFacts:
    """Return the facts by which a run's host is alike or unlike others."""
    host = run.run.host
    return HostFacts(
        cpu_model=_text(host.get("cpu_model")),
        kernel=_text(host.get("kernel_release", host.get("kernel"))),
        firmware=_text(host.get("microcode")),
        topology=_text(host.get("topology")),
        accelerator=_text(run.run.accelerator),
        boot_id=_boot_id(run),
    )


def _boot_id(run: LoadedRun) -> str | None:
    """Return None for a redacted run as well, where all have the same in its place."""
    found = run.run.host.get("boot_id")
    return _short(found) if isinstance(found, str) and run.run.redacted is None else None


def host_effects(run: LoadedRun) -> list[HostEffect]:
    """Return every comparison of a run as its verdict engine made it, and the level of each primary
    metric in the baseline."""
    decided = decide(run)
    controls = {place: _control(of.control) for place, of in decided.checked.items()}
    effects = [
        _of_comparison(one, controls.get(scenario_of(one)))
        for one in decided.comparisons
        if math.isfinite(one.estimate)
    ]
    return [*(one for one in effects if one is not None), *_levels(decided)]


def _control(check: RunCheck) -> Control:
    if check.passed is None:
        return Control.MISSING if check.estimate is None else Control.OPEN
    return Control.PASSED if check.passed else Control.FAILED


def _of_comparison(one: Comparison, control: Control | None) -> HostEffect | None:
    estimate = one.estimate
    if one.kind is EffectKind.RATIO:
        if estimate <= 0:
            return None
        estimate = math.log(estimate)
    return HostEffect(
        tuning=one.tuning,
        against=one.against,
        workload=one.workload,
        condition=one.condition,
        metric=one.metric,
        unit=str(one.unit),
        better=str(one.better),
        kind=str(one.kind),
        role=str(one.role),
        estimate=estimate,
        error=one.error,
        units=one.units,
        boots=one.boots,
        blocks=len(one.blocks),
        verdict=None if one.verdict is None else str(one.verdict),
        margin=one.margin,
        no_worse_than=one.no_worse_than,
        control=None if control is None else str(control),
    )


def _levels(decided: Decided) -> Iterator[HostEffect]:
    """Yield the baseline's primary metrics, where no value is 0 or less."""
    design, cells = decided.design, decided.cells
    if design.baseline is None:
        return
    for place in design.places:
        primary = design.primaries.get(place.workload)
        if primary is None:
            continue
        series = cells.series.get(Cell(design.baseline, place), {}).get(primary.metric)
        if series is None or series.least <= 0 or series.is_maximum:
            continue
        spread = alone(series, logs=True)
        yield HostEffect(
            tuning=design.baseline,
            against="",
            workload=place.workload,
            condition=place.condition,
            metric=primary.metric,
            unit=str(series.sample.unit),
            better=str(series.sample.better),
            kind=LEVEL,
            role=str(Role.PRIMARY),
            estimate=spread.mean,
            error=spread.error if spread.n > 1 and spread.error > 0 else None,
            units=spread.units,
            boots=spread.boots,
            blocks=spread.n,
            verdict=None,
            margin=None,
            no_worse_than=None,
            control=None,
        )


def _text(value: Any) -> str:
    """Return a recorded fact as one short text; what wasn't recorded has a word of its own."""
    if value is None or value == "":
        return NOT_RECORDED
    if isinstance(value, dict):
        if "unavailable" in value:
            return NOT_RECORDED
        value = ", ".join(f"{key} {item}" for key, item in sorted(value.items()))
    return _short(str(value))


def _short(text: str) -> str:
    return printable(text[:_LONGEST])


_LONGEST = 200
"""Letters of a fact: it comes from a host that may say anything."""
