"""Gather what diagnostics look at: the effects that a verdict or a check follows from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labctl.analysis.boots import sharing
from labctl.analysis.cells import Cells, Scenario, Series
from labctl.analysis.compare import Compared
from labctl.analysis.design import Design, Primary
from labctl.analysis.diagnostics.series import Groups, Values
from labctl.analysis.effects import Effects, effects_of
from labctl.analysis.model import Diagnostic, DiagnosticKind
from labctl.analysis.verdict_table import Verdict
from labctl.analysis.verdicts import FEWEST_BLOCKS, Eligibility
from labctl.analysis.words import change_text

LEVEL = 0.01
"""The chance of any false alarm of one kind at one place. It is shared out among the series that
are looked at there (Bonferroni)."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Hold a workload and condition with the input of its verdicts."""

    design: Design
    place: Scenario
    primary: Primary
    eligibility: Eligibility
    verdicts: Mapping[str, Verdict | None]
    """Verdicts by tuning, as given."""

    def diagnostic(
        self,
        kind: DiagnosticKind,
        tuning: str | None,
        sentence: str,
        *,
        blocks: Iterable[int] = (),
        grave: bool = True,
    ) -> Diagnostic:
        return Diagnostic(
            kind=kind,
            tuning=tuning,
            workload=self.place.workload,
            condition=self.place.condition,
            metric=self.primary.metric,
            sentence=sentence,
            blocks=tuple(sorted(blocks)),
            grave=grave,
        )


@dataclass(frozen=True, slots=True)
class Line:
    """Hold the effects by block of one arm: of a candidate or the known loss against baseline and
    control, or of the control against baseline."""

    name: str
    side: Series
    effects: Effects
    values: Values
    boots: Groups
    """Indices of the blocks by the boots that they share; in one group where they share none."""

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(self.effects.by_block)

    @property
    def apart_from_boots(self) -> Values:
        """Return the values as if all boots had the same mean: what boots differ by is in the
        interval already, where several share the blocks."""
        if not self.shares_boots:
            return self.values
        apart = self.values.copy()
        for group in self.boots:
            apart[list(group)] += self.values.mean() - self.values[list(group)].mean()
        return apart

    @property
    def shares_boots(self) -> bool:
        return len(self.boots) > 1

    def at(self, indices: Iterable[int]) -> tuple[int, ...]:
        """Return the blocks of these values."""
        return tuple(sorted(self.blocks[i] for i in indices))

    def text(self, effect: float) -> str:
        return change_text(self.effects.shown(effect), self.effects.kind, self.side.sample.unit)


def lines(
    design: Design, cells: Cells, place: Scenario, primary: Primary, made: Iterable[Compared]
) -> Iterator[Line]:
    """Yield those that have blocks enough for a verdict."""
    baseline, control = (
        cells.get(name, place, primary.metric) for name in (design.baseline, design.control)
    )
    found: dict[str, Effects | None] = {}
    if design.control is not None and baseline is not None and control is not None:
        found[design.control] = effects_of(control, [baseline], against_native=False)
    for one in made:
        c = one.comparison
        if one.place == place and c.metric == primary.metric and c.against == design.baseline:
            found[c.tuning] = one.effects
    for name in filter(None, (design.control, design.known_loss, *design.candidates)):
        effects, side = found.get(name), cells.get(name, place, primary.metric)
        if effects is None or side is None or effects.fallback is not None or not effects.paired:
            continue
        if effects.spread.n >= FEWEST_BLOCKS:
            values = np.fromiter(effects.by_block.values(), dtype=float)
            yield Line(name, side, effects, values, by_boot(effects.by_block, effects.boots))


def by_boot(blocks: Iterable[int], boots: Sequence[Mapping[int, int]]) -> Groups:
    """Return indices of the blocks, in groups that share a boot; in one where none is shared, or
    one is by all. `boots`: of each arm, its boots by block."""
    index = {block: i for i, block in enumerate(blocks)}
    # An arm that boots for itself in each block joins no blocks; mostly all arms are such.
    own = [side for side in boots if len(set(side.values())) < len(side)]
    groups = sharing(index, own) if own else []
    if not 1 < len(groups) < len(index):
        return [range(len(index))]
    return [sorted(index[block] for block in group) for group in groups]


def whose(ground: Ground, line: Line) -> str:
    if line.name == ground.design.control:
        return "the A/A control's difference from baseline"
    return f"the effect of '{line.name}'"
