"""Signs that what the intervals take for granted does not hold here.

The t interval takes the effects of blocks as independent, alike and roughly normal, and a block's
order as harmless. docs/signs.md has each sign's rule with its source, level and power.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from labctl.analysis.cells import Cells, Place
from labctl.analysis.compare import Compared
from labctl.analysis.design import Design
from labctl.analysis.model import Sign
from labctl.analysis.signs.lines import Ground, lines, orders
from labctl.analysis.signs.of_effects import drifts, outliers, resemblances, two_modes
from labctl.analysis.signs.of_order import level_signs
from labctl.analysis.verdicts import Licence
from labctl.store.run_folder import LoadedRun


def find_signs(
    run: LoadedRun,
    design: Design,
    cells: Cells,
    licences: Mapping[Place, Licence],
    made: Sequence[Compared],
) -> Iterator[Sign]:
    """Every sign in the primary metric of each place with blocks enough for a verdict. Nothing is
    removed or changed because of one."""
    ran = orders(run)
    for place, licence in licences.items():
        primary = design.primaries[place.workload]
        here = list(lines(design, cells, place, primary, made))
        if not here:
            continue
        given = {
            one.comparison.tuning: one.comparison.verdict
            for one in made
            if one.is_primary and one.place == place
        }
        ground = Ground(design, place, primary, licence, given)
        yield from outliers(ground, here, run)
        yield from two_modes(ground, here)
        drifting = list(drifts(ground, here))
        yield from drifting
        yield from resemblances(ground, here, {sign.tuning for sign in drifting})
        yield from level_signs(ground, cells, ran)
