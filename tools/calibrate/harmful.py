"""Simulate how often a run recommends what does harm, and how often what does none (METHOD 25).

Every tuning gains in one workload as much as was once seen (+62 %), so that what else it does
decides. Harmful is one that is worse by the study's `no_worse_than` or more under any workload:
exactly that much counts, where a wrong recommendation is likeliest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from labctl.analysis.answer.standing import standings
from labctl.analysis.model import AnswerCode
from labctl.base.stopping import looks, until_width
from tools.calibrate.coverage import ONE_SIDED
from tools.calibrate.noise import KINDS
from tools.calibrate.rates import Rate
from tools.calibrate.sweeps import INSTRUMENTS, Latency, Sweep, verdicts

LIMIT = 0.05
"""Most for the upper 95 % limit of the rate of harmful recommendations."""

NOISES = (0.03, 0.1, 0.3, 0.6, 1.2)
"""Standard deviations of a trial's latency, on the log scale."""

ALLOWED = 0.5
"""The loss that recommendations must exclude: a latency of 1.5 times baseline's."""
AT_THE_MARGIN = 1 + ALLOWED

TRUE_LOSSES = (0.7, 1.0, 1.2, 1.5)
"""True factors on the latency of a tuning that might be recommended; the last is harmful."""

STEADY = 0.3
"""Share of a skewed tuning's standard deviation the other arms have."""

_GAIN = 1.62
_BARELY_HARMFUL = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class Scenario:
    """`losses`: of each tuning, its true factors on the latency under each workload that is judged
    by one. `sweep`: all else. `why`: of an exception, what no judgement of these blocks can know.
    """

    name: str
    text: str
    losses: Mapping[str, tuple[float, ...]]
    sweep: Sweep
    why: str | None = None

    def with_noise(self, sd: float) -> Sweep:
        """Return the sweep whose latencies scatter by `sd`."""
        workloads = range(len(next(iter(self.losses.values()))))
        return replace(
            self.sweep,
            latencies=[
                Latency(
                    effects={name: losses[w] for name, losses in self.losses.items()},
                    sd=sd,
                    no_worse_than=ALLOWED,
                )
                for w in workloads
            ],
        )

    @property
    def harmful(self) -> frozenset[str]:
        worst = AT_THE_MARGIN * _BARELY_HARMFUL
        return frozenset(name for name, losses in self.losses.items() if max(losses) >= worst)


def _scenario(
    name: str,
    text: str,
    losses: Iterable[tuple[float, ...]],
    sweep: Sweep | None = None,
    why: str | None = None,
) -> Scenario:
    of = {f"tuning {number}": factors for number, factors in enumerate(losses, start=1)}
    plain = sweep or Sweep(effects={})
    effects = dict.fromkeys(of, _GAIN)
    made = replace(plain, effects=effects, workloads=1, conditions=1)
    return Scenario(name, text, of, made, why)


def _scenarios() -> Iterable[Scenario]:
    edge, plain = AT_THE_MARGIN, Sweep(effects={})
    yield _scenario("one at the margin", "its latency is 1.5 times baseline's", [(edge,)])
    yield _scenario("three at the margin", "three such tunings", [(edge,)] * 3)
    yield _scenario("six at the margin", "six such tunings", [(edge,)] * 6)
    yield _scenario("three double it", "the latency of three tunings is doubled", [(2.0,)] * 3)
    yield _scenario(
        "one among others",
        "one at the margin beside one that does nothing and one that halves the latency",
        [(edge,), (1.0,), (0.5,)],
    )
    yield _scenario(
        "in one of three",
        "three tunings, each at the margin under one of three workloads and better under two",
        [(edge, 0.5, 0.5), (0.5, edge, 0.5), (0.5, 0.5, edge)],
    )
    three = [(edge,)] * 3
    boots = replace(plain, boot_sd=1.0)
    yield _scenario(
        "five boots",
        "three at the margin; two blocks share a boot, which does to each arm as much as a trial's "
        "noise",
        three,
        replace(boots, blocks_per_boot=2),
    )
    yield _scenario(
        "one boot",
        "the same with one boot for all blocks",
        three,
        replace(boots, blocks_per_boot=boots.blocks),
        why="what one boot does to an arm can't be told from the arm",
    )
    arms = {"control": 2.0, "tuning 1": 0.3, "tuning 2": 1.0, "tuning 3": 3.0}
    told = ", ".join(f"{name} {times:g}" for name, times in arms.items())
    yield _scenario(
        "unequal variances",
        f"three at the margin; standard deviations as multiples of baseline's: {told}",
        three,
        replace(plain, sds=arms),
    )
    for name, rule in (
        ("until a width", until_width(0.2, 20)),
        ("declared looks", looks((10, 20))),
    ):
        yield _scenario(
            name,
            f"three at the margin; a run {rule.words}",
            three,
            replace(plain, stopping=rule, blocks=rule.most_blocks),
        )
    for kind in ("skewed", "bimodal", "heavy-tailed", "drifting", "autocorrelated"):
        noise = KINDS[kind]
        yield _scenario(
            kind, f"three at the margin; {noise.text}", three, replace(plain, noise=noise)
        )
    yield _scenario(
        "skewed tunings",
        f"three at the margin; {KINDS['skewed'].text}; baseline, control and known loss have "
        f"{STEADY:g} of the tunings' standard deviation",
        three,
        replace(plain, noise=KINDS["skewed"], sds=dict.fromkeys(INSTRUMENTS, STEADY)),
        why=ONE_SIDED,
    )


SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in _scenarios()}


@dataclass(frozen=True, slots=True)
class Recommended:
    """Shares of runs: in which anything harmful is recommended, in which anything is, and of which
    the answer names a price."""

    harmful: Rate
    any: Rate
    priced: Rate


def recommended(scenario: Scenario, sd: float, *, runs: int, seed: int) -> Recommended:
    """Return what runs of the scenario recommend where latencies scatter by `sd`."""
    sweep = scenario.with_noise(sd)
    harmful, anything, priced = [], [], []
    for decided in verdicts(sweep, runs=runs, seed=seed, name=f"harmful/{scenario.name}/{sd}"):
        found = standings(decided.design, decided.comparisons, decided.checked)
        named = {of.tuning for of in found if of.code is AnswerCode.RECOMMENDED}
        harmful.append(bool(named & scenario.harmful))
        anything.append(bool(named))
        priced.append(not named and found[0].code is AnswerCode.PRICED)
    return Recommended(Rate.of(harmful), Rate.of(anything), Rate.of(priced))


def of_scenario(name: str, sd: float, runs: int, seed: int) -> Recommended:
    """`recommended` of one of SCENARIOS."""
    return recommended(SCENARIOS[name], sd, runs=runs, seed=seed)


def of_loss(factor: float, sd: float, runs: int, seed: int) -> Recommended:
    """`recommended` of a run with two tunings whose latency truly is `factor` times baseline's."""
    one = _scenario(f"{factor:g} times the latency", "", [(factor,)] * 2)
    return recommended(one, sd, runs=runs, seed=seed)
