"""Draw what the trials of a run may scatter like, on the log scale, with mean 0.

Noise is drawn for a run's trials at once, as an array [..., blocks, arms]. What follows the host's
time is drawn in the order in which the trials run; what belongs to an arm goes from block to block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Values]


@dataclass(frozen=True, slots=True)
class Noise:
    """`in_time`: the last axis is the position in the block and no arm yet.
    `holds`: the intervals' assumptions hold, or what breaks them is of no account at any number of
    blocks; their coverage is then held to 93 to 97 %, else to 90 %. `why`: for an exception from
    both, what it is that no interval from these blocks can know."""

    name: str
    text: str
    draw: Draw
    in_time: bool = False
    holds: bool = False
    why: str | None = None


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    return rng.standard_normal(shape)


_SHAPE = 0.75


def _skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """exp(s z), of mean exp(s^2 / 2) and variance (exp(s^2) - 1) exp(s^2)."""
    mean, square = math.exp(_SHAPE**2 / 2), math.exp(_SHAPE**2)
    drawn = np.exp(_SHAPE * rng.standard_normal(shape))
    return np.asarray((drawn - mean) / math.sqrt((square - 1) * square))


_SLOW_SHARE, _APART = 0.3, 5.0


def _bimodal(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    slow = rng.random(shape) < _SLOW_SHARE
    drawn = rng.standard_normal(shape) - _APART * (slow - _SLOW_SHARE)
    return np.asarray(drawn / math.sqrt(1 + _SLOW_SHARE * (1 - _SLOW_SHARE) * _APART**2))


def _heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    return np.asarray(rng.standard_t(3, shape) / math.sqrt(3))


_TREND, _WALK = 6.0, 3.0


def _drifting(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Return a line through the run and a random walk, both the same for every arm, on normal
    noise."""
    steps = shape[-2] * shape[-1]
    walk = rng.standard_normal((*shape[:-2], steps)).cumsum(axis=-1) * (_WALK / math.sqrt(steps))
    line = np.linspace(-_TREND / 2, _TREND / 2, steps)
    return np.asarray(rng.standard_normal(shape) + (walk + line).reshape(shape))


def _apart(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Each arm has a line of its own through the run, of mean 0, on normal noise."""
    slopes = rng.standard_normal((*shape[:-2], 1, shape[-1])) * (_TREND / 2)
    line = np.linspace(-0.5, 0.5, shape[-2])[:, np.newaxis]
    return np.asarray(rng.standard_normal(shape) + slopes * line)


def _recalling(values: Values, r: float) -> Values:
    """x_t = r x_(t-1) + sqrt(1 - r^2) e_t along the last axis, stationary from the first."""
    for step in range(1, values.shape[-1]):
        values[..., step] *= math.sqrt(1 - r**2)
        values[..., step] += r * values[..., step - 1]
    return values


def _from_trial_to_trial(r: float) -> Draw:
    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
        steps = rng.standard_normal((*shape[:-2], shape[-2] * shape[-1]))
        return _recalling(steps, r).reshape(shape)

    return draw


def _from_block_to_block(r: float) -> Draw:
    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
        arms = rng.standard_normal((*shape[:-2], shape[-1], shape[-2]))
        return np.asarray(_recalling(arms, r).swapaxes(-1, -2))

    return draw


_RECALLED = (0.1, 0.3, 0.5)
_MOST_RECALLED = 0.1
"""Up to this r intervals keep 90 %."""


def _recalling_arms(r: float) -> Noise:
    worth = (1 - r) / (1 + r)
    why = (
        f"a block is worth {worth:.2f} of an independent one, and so few blocks don't show it by "
        "themselves"
    )
    return Noise(
        f"arms recalling {r:g}",
        f"each arm's own, from block to block with r = {r:g}",
        _from_block_to_block(r),
        why=why if r > _MOST_RECALLED else None,
    )


NORMAL = Noise("normal", "independent, normal on the log scale", _normal, holds=True)
KINDS: dict[str, Noise] = {
    noise.name: noise
    for noise in (
        NORMAL,
        Noise("skewed", f"log-normal on the log scale (sigma {_SHAPE:g}: skewness 3.3)", _skewed),
        Noise(
            "bimodal",
            f"{100 * _SLOW_SHARE:g} % of trials in a mode {_APART:g} standard deviations slower",
            _bimodal,
        ),
        Noise("heavy-tailed", "Student's t with 3 degrees of freedom", _heavy),
        Noise(
            "drifting",
            f"normal, on a host that drifts by {_TREND:g} standard deviations in a line and by "
            f"{_WALK:g} in a random walk",
            _drifting,
            in_time=True,
        ),
        Noise(
            "autocorrelated",
            "from trial to trial with r = 0.8, in the order in which they ran",
            _from_trial_to_trial(0.8),
            in_time=True,
        ),
        Noise(
            "arms apart",
            f"normal, and each arm drifts in a line of its own ({_TREND / 2:g} standard "
            "deviations is a typical slope over the run)",
            _apart,
        ),
        *map(_recalling_arms, _RECALLED),
    )
}
