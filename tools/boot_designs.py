"""Estimate what other numbers of boots would have given a run: `python -m tools.boot_designs RUN`.

For each primary metric the components of variance of a run whose boots served several blocks each
(medians over the tunings, `labctl/analysis/variance.py`), and for layouts of ten blocks the
half-width to expect of the interval that decides, t over boots, and the seconds that blocks and
boots would take by what they took in that run. docs/decisions/boots-and-blocks.md holds the table.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import click

from labctl.analysis.boots import mean_squares, sharing
from labctl.analysis.cells import Scenario
from labctl.analysis.compare import Compared
from labctl.analysis.decide import decide
from labctl.analysis.intervals import quantile
from labctl.analysis.variance import Components, components, costs_of
from labctl.base.errors import UsageError
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.store.trial import TrialRecord


@dataclass(frozen=True, slots=True)
class Layout:
    """`longer`: how many times as long as in the run each trial is."""

    boots: int
    blocks_per_boot: int
    longer: float = 1.0

    @property
    def blocks(self) -> int:
        return self.boots * self.blocks_per_boot


LAYOUTS = (Layout(5, 2), Layout(10, 1), Layout(5, 2, 1.5), Layout(10, 1, 1.5))


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: of a block, of a boot beyond the restore that comes with it, and of all that the
    trials of a block measured."""

    block: float
    boot: float
    measured: float

    def of(self, layout: Layout) -> float:
        block = self.block + (layout.longer - 1) * self.measured
        return layout.blocks * block + layout.boots * self.boot


def expected_half_width(of: Components, layout: Layout, alpha: float) -> float:
    """Return the expected half-width of the t interval over boots, on the scale of effects. Longer
    trials are taken at their best: as if all of the variance between blocks came from within
    trials, and fell with their length."""
    between = max(0.0, of.boots or 0.0)
    variance = between / layout.boots + of.blocks / (layout.blocks * layout.longer)
    return quantile(1 - alpha / 2, layout.boots - 1) * math.sqrt(variance)


def components_of(made: Sequence[Compared]) -> Components:
    """Return the medians over tunings; raises UsageError where a run's boots can't be told
    apart."""
    found = []
    for one in made:
        effects = one.effects
        groups = sharing(effects.by_block, effects.boots)
        if not 1 < len(groups) < len(effects.by_block):
            raise UsageError(
                "the run's boots can't be told from its blocks",
                hint="Make one whose boots serve several blocks: '--blocks-per-boot 2'.",
            )
        found.append(
            components(mean_squares([[effects.by_block[b] for b in group] for group in groups]))
        )
    return Components(median(of.boots or 0.0 for of in found), median(of.blocks for of in found))


def costs(run: LoadedRun) -> Costs:
    records = sorted((trial.record for trial in run.trials), key=_begun)
    at_boots, at_restores = [], []
    for before, after in pairwise(records):
        if after.parsed_with.get("kind") == "native":
            continue
        gap = _begun(after) - _begun(before) - before.wall_s
        if after.boot != _boot_before(records, after):
            at_boots.append(gap)
        elif (before.block, before.position) != (after.block, after.position):
            at_restores.append(gap)
    measured: defaultdict[int, float] = defaultdict(float)
    for record in records:
        measured[record.block] += record.measured_s
    # The median block holds no boot.
    return Costs(
        costs_of(run).block,
        mean(at_boots) - median(at_restores),
        median(measured.values()),
    )


def _begun(record: TrialRecord) -> float:
    return datetime.fromisoformat(record.started_at).timestamp()


def _boot_before(records: Sequence[TrialRecord], trial: TrialRecord) -> int | None:
    """Return the boot of the guest that ran before it."""
    earlier = [
        r.boot
        for r in records
        if r.parsed_with.get("kind") != "native" and _begun(r) < _begun(trial)
    ]
    return earlier[-1] if earlier else None


def table(run: LoadedRun) -> Iterator[str]:
    """Yield lines of Markdown."""
    by_place: defaultdict[Scenario, list[Compared]] = defaultdict(list)
    for one in decide(run).made:
        if one.is_primary:
            by_place[one.place].append(one)
    taken = costs(run)
    found = {place: components_of(made) for place, made in by_place.items()}
    alpha = 1 - next(iter(by_place.values()))[0].comparison.confidence
    names = [f"{place.workload}, {by_place[place][0].comparison.metric}" for place in found]
    yield f"a block {taken.block:.1f} s, a boot {taken.boot:.1f} s"
    for name, of in zip(names, found.values(), strict=True):
        between = math.copysign(math.sqrt(abs(of.boots or 0.0)), of.boots or 0.0)
        yield f"{name}: sd between boots {between:.3f}, between blocks {math.sqrt(of.blocks):.3f}"
    yield ""
    yield f"| boots × blocks to each | trials | {' | '.join(names)} | blocks and boots take |"
    yield f"|{'---|' * (3 + len(names))}"
    for layout in LAYOUTS:
        widths = (
            f"±{math.expm1(expected_half_width(of, layout, alpha)):.0%}" for of in found.values()
        )
        yield (
            f"| {layout.boots} × {layout.blocks_per_boot} | × {layout.longer:g} "
            f"| {' | '.join(widths)} | {taken.of(layout):.0f} s |"
        )


def judged_by(run: LoadedRun, primaries: Sequence[str]) -> LoadedRun:
    """Return the run as if its plan had named these metrics, each "WORKLOAD=METRIC"."""
    workloads = dict(run.plan.workloads)
    for said in primaries:
        workload, _, metric = said.partition("=")
        workloads[workload] = workloads[workload].model_copy(update={"primary": metric})
    return replace(run, plan=run.plan.but(workloads=workloads))


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--primary", "primaries", multiple=True, metavar="WORKLOAD=METRIC")
def main(run: Path, primaries: tuple[str, ...]) -> None:
    """Print the table of RUN, a run's folder."""
    for line in table(judged_by(RunFolder(run).load(), primaries)):
        click.echo(line)


if __name__ == "__main__":
    main()
