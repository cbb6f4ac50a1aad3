"""Count how often diagnostics are false, and how often they find what is there: `python -m
tools.diagnostics`.

A place of five arms (baseline, control, known loss and two tunings); one arm has what is planted.
Prints the tables of docs/diagnostics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import click
import numpy as np

from labctl.analysis.diagnostics import series
from labctl.analysis.diagnostics.lines import LEVEL
from labctl.analysis.diagnostics.series import Values

ARMS = ("baseline", "control", "handicap", "one", "two")
PLANTED = ARMS.index("two")
LINES = len(ARMS) - 1
BLOCKS = (10, 20, 30)
KINDS = ("outlier", "drift", "drift of all")

Rng = np.random.Generator


def effects(values: Values) -> list[Values]:
    """Return the effects of control, known loss and tunings, as `labctl.analysis.diagnostics.lines`
    has them. `values` are by block and arm."""
    reference = values[:, :2].mean(axis=1)
    others = [values[:, arm] - reference for arm in range(2, len(ARMS))]
    return [values[:, 1] - values[:, 0], *others]


def seen(values: Values) -> frozenset[str]:
    """Return the kinds of diagnostic at a place, by the rules of `labctl.analysis.diagnostics`."""
    alpha = LEVEL / LINES
    lines = effects(values)
    whole = [range(len(values))]
    found = set()
    if any(series.outliers(line, alpha) for line in lines):
        found.add("outlier")
    if any(series.trend(line, whole) <= alpha for line in lines):
        found.add("drift")
    if series.trend(values.mean(axis=1), whole) <= LEVEL:
        found.add("drift of all")
    return frozenset(found)


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


def places(draw: Draw, blocks: int, rng: Rng, runs: int) -> Iterator[Values]:
    for _ in range(runs):
        yield draw(rng, (blocks, len(ARMS)))


SD = 1.5**0.5
"""Standard deviation of an effect, where a trial's is 1: d = T - (B + C) / 2."""

Plant = Callable[[Values, float, Rng], None]


def _outlier(values: Values, size: float, rng: Rng) -> None:
    values[rng.integers(len(values)), PLANTED] += size * SD


def _drift(values: Values, size: float, _: Rng) -> None:
    values[:, PLANTED] += np.linspace(0, size * SD, len(values))


PLANTS: dict[str, tuple[str, Plant, Sequence[float]]] = {
    "outlier": ("one block off by so many σ", _outlier, (6, 8, 10)),
    "drift": ("from first to last block, in σ", _drift, (3, 4, 6)),
}


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def false_alarms(runs: int, rng: Rng) -> Iterator[str]:
    yield row(["trials scatter", "blocks", *KINDS, "any"])
    yield row(["---", *["---:"] * (len(KINDS) + 2)])
    for name, draw in SHAPES.items():
        for blocks in BLOCKS:
            found = [seen(values) for values in places(draw, blocks, rng, runs)]
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
                for values in places(SHAPES["normal"], blocks, rng, runs):
                    plant(values, size, rng)
                    hits += kind in seen(values)
                rates.append(f"{100 * hits / runs:.0f}")
            yield row([kind, what, f"{size:g}", *rates])


@click.command()
@click.option("--runs", type=click.IntRange(min=10), default=2000, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
def main(runs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for table in (false_alarms(runs, rng), power(runs, rng)):
        for line in table:
            click.echo(line)
        click.echo()


if __name__ == "__main__":
    main()
