"""Simulate how many runs of equal arms claim a difference somewhere (METHOD 23)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from labctl.analysis.model import Role
from labctl.analysis.verdicts.table import Verdict
from labctl.base.stopping import Stopping, looks, until_width
from tools.calibrate.coverage import holds
from tools.calibrate.noise import KINDS
from tools.calibrate.rates import Rate
from tools.calibrate.sweeps import Sweep, verdicts

LIMIT = 0.06
"""Most for the upper 95 % limit of the rate."""

CLAIMS = frozenset({Verdict.IMPROVES, Verdict.REGRESSES, Verdict.SMALL})

A_A = Sweep(effects={"one": 1.0, "other": 1.0, "third": 1.0})
"""A study's shape: three tunings that do nothing, two workloads, two conditions: twelve tests."""

_CORRELATED = frozenset({"arms recalling 0.1"})
_NARROW = "blocks that correlate narrow the control's interval, so that it fails more often"

UNEQUAL = {"control": 2.0, "one": 0.5, "other": 2.0, "third": 4.0}


@dataclass(frozen=True, slots=True)
class Scenario:
    """`times`: as many times the runs as of others, where a rate near 5 % takes more of them to
    prove. `why`: of an exception, what it is that no judgement of these blocks can know.
    `why_control`: why more controls fail than promised, although claims keep their limit."""

    name: str
    sweep: Sweep
    text: str
    times: int = 1
    why: str | None = None
    why_control: str | None = None


def _scenarios() -> Iterable[Scenario]:
    yield Scenario("equal variances", A_A, f"normal noise, {100 * A_A.sd:g} % in every trial")
    arms = ", ".join(f"{name} {times:g}" for name, times in UNEQUAL.items())
    yield Scenario(
        "unequal variances",
        replace(A_A, sds=UNEQUAL),
        f"standard deviations as multiples of baseline's: {arms}",
    )
    yield Scenario(
        "little noise",
        replace(A_A, sd=0.005),
        "0.5 % in every trial, so that the margin and the control hold next to nothing back",
        times=4,
    )
    yield Scenario(
        "eight places",
        replace(A_A, effects={"one": 1.0}, workloads=4),
        "one tuning, four workloads and two conditions: eight checks of the control",
        times=4,
    )
    yield Scenario("much noise", replace(A_A, sd=0.15), "15 % in every trial")
    shared = replace(A_A, boot_sd=1.0)
    text = "a boot does to each arm as much as a trial's noise; "
    for per_boot in (2, 5):
        yield Scenario(
            f"{per_boot} blocks per boot",
            replace(shared, blocks_per_boot=per_boot),
            f"{text}{per_boot} blocks share it",
        )
    yield Scenario(
        "one boot",
        replace(shared, blocks_per_boot=shared.blocks),
        f"{text}all blocks share it",
        why="what one boot does to an arm can't be told from the arm",
    )
    rules: dict[str, Stopping] = {
        "until a width": until_width(0.05, 20),
        "declared looks": looks((10, 15, 20)),
    }
    for name, rule in rules.items():
        yield Scenario(
            name, replace(A_A, stopping=rule, blocks=rule.most_blocks), f"a run {rule.words}"
        )
    one = replace(A_A, effects={"one": 1.0}, workloads=1, conditions=1)
    narrow = until_width(0.02, 40)
    yield Scenario(
        "one test until a width",
        replace(one, stopping=narrow, blocks=narrow.most_blocks),
        f"a family of one; a run {narrow.words}",
    )
    for noise in KINDS.values():
        if noise.name != "normal":
            yield Scenario(
                noise.name,
                replace(A_A, noise=noise),
                noise.text,
                why=noise.why,
                why_control=_NARROW if noise.name in _CORRELATED else None,
            )


SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in _scenarios()}


@dataclass(frozen=True, slots=True)
class FalseVerdicts:
    """`claims`: runs with any false verdict. `misses`: runs of which any interval of the family
    excludes the truth, whatever the control and the margin make of it. `failed`: runs that open
    with a control that failed. `suspended`: tests."""

    claims: Rate
    misses: Rate
    failed: Rate
    suspended: Rate
    blocks: float
    """Mean over all sweeps."""


def false_verdicts(scenario: Scenario, *, runs: int, seed: int) -> FalseVerdicts:
    """Return what runs of the scenario claim, none of whose tunings does anything."""
    sweep = scenario.sweep
    name = f"false verdicts/{scenario.name}"
    families, failed = [], []
    for decided in verdicts(sweep, runs=runs, seed=seed, name=name):
        families.append([c for c in decided.comparisons if c.role is Role.PRIMARY])
        failed.append(any(of.control.passed is False for of in decided.checked.values()))
    return FalseVerdicts(
        claims=Rate.of(any(c.verdict in CLAIMS for c in family) for family in families),
        misses=Rate.of(not all(holds(c, sweep.truth) for c in family) for family in families),
        failed=Rate.of(failed),
        suspended=Rate.of(c.verdict is Verdict.SUSPENDED for family in families for c in family),
        blocks=fmean(max(len(c.blocks) for c in family) for family in families),
    )


def of_scenario(name: str, runs: int, seed: int) -> FalseVerdicts:
    """`false_verdicts` of one of SCENARIOS."""
    return false_verdicts(SCENARIOS[name], runs=runs, seed=seed)
