"""Simulate how often an interval of a judgement holds the truth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from labctl.analysis.model import Comparison, Role
from tools.calibrate.noise import KINDS
from tools.calibrate.rates import Rate
from tools.calibrate.sweeps import INSTRUMENTS, Sweep, verdicts

MOST = 0.97
"""Most coverage: an interval that holds more often, assumptions met, is wider than it says."""

# One test in its family, so that the interval that decides has 95 % too; the known loss's, against
# the same blocks, is exploratory.
ONE_TEST = Sweep(effects={"tuning": 1.1}, workloads=1, conditions=1)

UNEQUAL = {"control": 2.0, "handicap": 0.5, "tuning": 3.0}
"""Standard deviations of the arms, as multiples of baseline's."""

BLOCKS = (3, 5, 10, 30)

ONE_SIDED = (
    "a difference of arms that scatter alike is nearly symmetric, that of one skewed arm from "
    "steady ones is not, and the mean of few blocks is then off to one side"
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table. `text`, `holds` and `why` as in `Noise`."""

    name: str
    text: str
    sweep: Sweep
    holds: bool
    why: str | None = None

    @property
    def least(self) -> float | None:
        """The coverage that is promised; None of an exception."""
        if self.why is not None:
            return None
        return 0.93 if self.holds else 0.90


def _settings() -> Iterable[Setting]:
    for noise in KINDS.values():
        sweep = replace(ONE_TEST, noise=noise)
        yield Setting(noise.name, noise.text, sweep, noise.holds, noise.why)
    arms = ", ".join(f"{name} {times:g}" for name, times in UNEQUAL.items())
    yield Setting(
        "unequal variances",
        f"normal; standard deviations as multiples of baseline's: {arms}",
        replace(ONE_TEST, sds=UNEQUAL),
        holds=True,
    )
    shared = replace(ONE_TEST, boot_sd=1.0)
    yield Setting(
        "shared boots",
        "normal; two blocks share a boot, which does to each arm as much as a trial's noise",
        replace(shared, blocks_per_boot=2),
        holds=False,
    )
    yield Setting(
        "one boot",
        "the same with one boot for all blocks",
        replace(shared, blocks_per_boot=max(BLOCKS)),
        holds=False,
        why="what one boot does to an arm can't be told from the arm",
    )
    for kind, others in (("skewed", 0.3), ("bimodal", 0.4)):
        least = dict.fromkeys(INSTRUMENTS, others)
        yield Setting(
            f"{kind} in one arm",
            f"as {kind}; all arms but the tuning have {others:g} of its standard deviation",
            replace(ONE_TEST, noise=KINDS[kind], sds=least),
            holds=False,
            why=ONE_SIDED,
        )


SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _settings()}


@dataclass(frozen=True, slots=True)
class Coverage:
    """`deciding`: of the primary metric's interval at its own confidence. `exploratory`: of one of
    95 %. A comparison without an interval counts in neither."""

    deciding: Rate
    exploratory: Rate


def coverage(name: str, blocks: int, runs: int, seed: int) -> Coverage:
    """Shares of intervals against baseline that hold the true effect, in one of SETTINGS."""
    setting = SETTINGS[name]
    sweep = replace(setting.sweep, blocks=blocks)
    decided = verdicts(sweep, runs=runs, seed=seed, name=f"coverage/{name}/{blocks}")
    compared = [c for of in decided for c in of.comparisons]

    def of(role: Role) -> Rate:
        return Rate.of(
            holds(c, sweep.truth) for c in compared if c.role is role and c.low is not None
        )

    return Coverage(of(Role.PRIMARY), of(Role.EXPLORATORY))


def holds(comparison: Comparison, truth: Mapping[str, float]) -> bool:
    """Return whether the interval holds the true effect; one that doesn't exist rules nothing
    out."""
    if comparison.low is None or comparison.high is None:
        return True
    return comparison.low <= truth[comparison.tuning] <= comparison.high
