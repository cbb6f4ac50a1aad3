"""How often signs are seen where there are none, and where there are: `python -m tools.signs`.

A place of five arms (baseline, control, handicap and two tunings) in blocks as `labctl` plans
them; one arm has what is planted. Prints the tables of docs/signs.md, and with --critical the
critical ratios of a split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import click
import numpy as np

from labctl.analysis.signs import series
from labctl.analysis.signs.lines import LEVEL
from labctl.analysis.signs.order import layout, order_effects
from labctl.analysis.signs.series import Values
from labctl.study.williams import block_order

ARMS = ("baseline", "control", "handicap", "one", "two")
PLANTED = ARMS.index("two")
LINES = len(ARMS) - 1
BLOCKS = (10, 20, 30)

Rng = np.random.Generator
Kinds = frozenset[str]


@dataclass(frozen=True, slots=True)
class Place:
    """Values by block and arm, and the arm at each position."""

    values: Values
    order: Sequence[Sequence[int]]


def effects(values: Values) -> list[Values]:
    """Of control, handicap and tunings, as `labctl.analysis.signs.lines` has them."""
    reference = values[:, :2].mean(axis=1)
    others = [values[:, arm] - reference for arm in range(2, len(ARMS))]
    return [values[:, 1] - values[:, 0], *others]


def seen(place: Place) -> Kinds:
    """The kinds of sign at a place, by the rules of `labctl.analysis.signs`."""
    alpha = LEVEL / LINES
    lines = effects(place.values)
    n = len(place.values)
    whole = [range(n)]
    found = set()
    if any(series.outliers(line, alpha) for line in lines):
        found.add("outlier")
    if any(series.split(line).ratio > series.critical_split(n, alpha) for line in lines):
        found.add("two modes")
    if any(series.trend(line, whole) <= alpha for line in lines):
        found.add("drift")
    if any(series.alike_neighbours(line) <= alpha for line in lines):
        found.add("autocorrelation")
    if series.trend(place.values.mean(axis=1), whole) <= LEVEL:
        found.add("drift of all")
    by_arm = {arm: dict(enumerate(place.values[:, i])) for i, arm in enumerate(ARMS)}
    orders = {b: [ARMS[arm] for arm in order] for b, order in enumerate(place.order)}
    position, after = order_effects(layout(by_arm, orders))
    if position is not None and position.p <= LEVEL:
        found.add("position")
    if any(one.p <= LEVEL / len(ARMS) for one in after.values()):
        found.add("carry-over")
    return frozenset(found)


KINDS = (
    "outlier",
    "two modes",
    "drift",
    "drift of all",
    "autocorrelation",
    "position",
    "carry-over",
)

Draw = Callable[[Rng, tuple[int, ...]], Values]
SHAPES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "uniform": lambda rng, shape: rng.uniform(-1, 1, size=shape),
    "skewed (log-normal, σ 0.75)": lambda rng, shape: np.exp(rng.normal(0, 0.75, size=shape)),
    "heavy-tailed (t, 3 degrees)": lambda rng, shape: rng.standard_t(3, size=shape),
    "one arm five times as noisy": lambda rng, shape: (
        rng.normal(size=shape) * np.where(np.arange(shape[-1]) == PLANTED, 5, 1)
    ),
}


def places(draw: Draw, blocks: int, rng: Rng, runs: int) -> Iterator[Place]:
    for run in range(runs):
        order = [
            [ARMS.index(arm) for arm in block_order(ARMS, seed=run, block=b + 1, what="tunings")]
            for b in range(blocks)
        ]
        yield Place(draw(rng, (blocks, len(ARMS))), order)


SD = 1.5**0.5
"""Of an effect, where that of a trial is 1: d = T - (B + C) / 2."""

Plant = Callable[[Place, float, Rng], None]


def _outlier(place: Place, size: float, rng: Rng) -> None:
    place.values[rng.integers(len(place.values)), PLANTED] += size * SD


def _modes(place: Place, size: float, rng: Rng) -> None:
    n = len(place.values)
    place.values[rng.permutation(n)[: 2 * n // 5], PLANTED] += size * SD


def _drift(place: Place, size: float, _: Rng) -> None:
    place.values[:, PLANTED] += np.linspace(0, size * SD, len(place.values))


def _alike(place: Place, r: float, _: Rng) -> None:
    """Its effects become x_t = r x_(t-1) + sqrt(1 - r^2) e_t; the references stay as they are."""
    values = place.values
    line = (values[:, PLANTED] - values[:, :2].mean(axis=1)).copy()
    for block in range(1, len(line)):
        line[block] = r * line[block - 1] + (1 - r * r) ** 0.5 * line[block]
    values[:, PLANTED] = line + values[:, :2].mean(axis=1)


def _position(place: Place, size: float, _: Rng) -> None:
    for block, order in enumerate(place.order):
        place.values[block, list(order)] += np.linspace(0, size, len(order))


def _carry(place: Place, size: float, _: Rng) -> None:
    for block, order in enumerate(place.order):
        behind = list(order).index(PLANTED) + 1
        if behind < len(order):
            place.values[block, order[behind]] += size


PLANTS: dict[str, tuple[str, Plant, Sequence[float]]] = {
    "outlier": ("one block off by so many σ", _outlier, (6, 8, 10)),
    "two modes": ("four blocks of ten, so many σ apart", _modes, (6, 8, 10)),
    "drift": ("from first to last block, in σ", _drift, (3, 4, 6)),
    "autocorrelation": ("correlation with the block before", _alike, (0.5, 0.7, 0.9)),
    "position": ("from first to last position, in trials' σ", _position, (1, 2, 3)),
    "carry-over": ("after one arm, in trials' σ", _carry, (2, 3, 4)),
}


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def false_alarms(runs: int, rng: Rng) -> Iterator[str]:
    yield row(["trials scatter", "blocks", *KINDS, "any"])
    yield row(["---", *["---:"] * (len(KINDS) + 2)])
    for name, draw in SHAPES.items():
        for blocks in BLOCKS:
            found = [seen(place) for place in places(draw, blocks, rng, runs)]
            rates = [sum(kind in kinds for kinds in found) for kind in KINDS]
            rates.append(sum(map(bool, found)))
            yield row([name, str(blocks), *(f"{100 * rate / runs:.1f}" for rate in rates)])


def power(runs: int, rng: Rng) -> Iterator[str]:
    yield row(["kind", "planted", "size", *(f"{blocks} blocks" for blocks in BLOCKS)])
    yield row(["---", "---", *["---:"] * (len(BLOCKS) + 1)])
    for kind, (what, plant, sizes) in PLANTS.items():
        for size in sizes:
            rates = []
            for blocks in BLOCKS:
                hits = 0
                for place in places(SHAPES["normal"], blocks, rng, runs):
                    plant(place, size, rng)
                    hits += kind in seen(place)
                rates.append(f"{100 * hits / runs:.0f}")
            yield row([kind, what, f"{size:g}", *rates])


def critical(runs: int, rng: Rng) -> Iterator[str]:
    """Quantiles of the best split's ratio in normal values, by number of values and level."""
    k_least = series.FEWEST_PER_MODE
    for n in series.SPLIT_RATIOS:
        ratios = []
        for _ in range(10):
            x = np.sort(rng.normal(size=(runs // 10, n)), axis=1)
            x -= x.mean(axis=1, keepdims=True)
            total = np.square(x).sum(axis=1)
            sizes = np.arange(k_least, n - k_least + 1)
            between = np.square(x.cumsum(axis=1)[:, sizes - 1]) * n / (sizes * (n - sizes))
            ratios.append(total / (total - between.max(axis=1)))
        quantiles = np.quantile(np.concatenate(ratios), 1 - np.array(series.SPLIT_LEVELS))
        yield f"    {n}: ({', '.join(f'{q:.2f}' for q in quantiles)}),"


@click.command()
@click.option("--runs", type=click.IntRange(min=10), default=2000, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@click.option("--critical", "as_critical", is_flag=True, help="Critical ratios of a split instead.")
def main(runs: int, seed: int, as_critical: bool) -> None:
    rng = np.random.default_rng(seed)
    if as_critical:
        for line in critical(runs, rng):
            click.echo(line)
        return
    for table in (false_alarms(runs, rng), power(runs, rng)):
        for line in table:
            click.echo(line)
        click.echo()


if __name__ == "__main__":
    main()
