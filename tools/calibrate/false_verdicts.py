"""How many runs of equal arms claim a difference somewhere (METHOD 23)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from labctl.analysis.judge import judge
from labctl.analysis.model import Comparison, Judgement, Role, Verdict
from labctl.store.run_folder import LoadedRun
from tools.calibrate.coverage import holds
from tools.calibrate.noise import KINDS
from tools.calibrate.rates import Rate
from tools.calibrate.sweeps import Sweep, simulate

LIMIT = 0.06
"""Of the upper 95 % limit of the rate."""

CLAIMS = frozenset({Verdict.IMPROVES, Verdict.REGRESSES, Verdict.SMALL})

A_A = Sweep(effects={"one": 1.0, "other": 1.0, "third": 1.0})
"""A study's shape: three tunings that do nothing, two workloads, two conditions: twelve tests."""

UNEQUAL = {"control": 2.0, "one": 0.5, "other": 2.0, "third": 4.0}


@dataclass(frozen=True, slots=True)
class Scenario:
    """`why`: of an exception, what it is that no judgement of these blocks can know."""

    name: str
    sweep: Sweep
    text: str = ""
    why: str | None = None


def _scenarios() -> Iterable[Scenario]:
    yield Scenario("equal variances", A_A, f"normal noise, {A_A.sd:.0%} in every trial")
    arms = ", ".join(f"{name} {times:g}" for name, times in UNEQUAL.items())
    yield Scenario(
        "unequal variances",
        replace(A_A, sds=UNEQUAL),
        f"standard deviations as multiples of baseline's: {arms}",
    )
    for name, sd in (("little noise", 0.005), ("much noise", 0.15)):
        yield Scenario(name, replace(A_A, sd=sd), f"{100 * sd:g} % in every trial")
    for noise in KINDS.values():
        if noise.name != "normal":
            yield Scenario(noise.name, replace(A_A, noise=noise), why=noise.why)


SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in _scenarios()}


@dataclass(frozen=True, slots=True)
class FalseVerdicts:
    """`claims`: runs with any false verdict. `misses`: runs of which any interval of the family
    excludes the truth, whatever the control and the margin make of it. `suspended`: tests."""

    claims: Rate
    misses: Rate
    suspended: Rate
    blocks: float
    """On average."""


def false_verdicts(scenario: Scenario, *, runs: int, seed: int) -> FalseVerdicts:
    """What runs of the scenario claim, none of whose tunings does anything."""
    sweep = scenario.sweep
    simulated = simulate(sweep, runs=runs, seed=seed, name=f"false verdicts/{scenario.name}")
    families = [_family(_end(run)) for run in simulated]
    return FalseVerdicts(
        claims=Rate.of(any(c.verdict in CLAIMS for c in family) for family in families),
        misses=Rate.of(not all(holds(c, sweep.truth) for c in family) for family in families),
        suspended=Rate.of(c.verdict is Verdict.SUSPENDED for family in families for c in family),
        blocks=fmean(max(len(c.blocks) for c in family) for family in families),
    )


def _end(run: LoadedRun) -> Judgement:
    return judge(run)


def _family(judgement: Judgement) -> list[Comparison]:
    return [c for c in judgement.comparisons if c.role is Role.PRIMARY]
