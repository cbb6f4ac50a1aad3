from __future__ import annotations

import pytest

from labctl.base.tuning import Level


@pytest.mark.parametrize(
    ("level", "held"),
    [
        (Level.COUNTERS, {Level.COUNTERS}),
        (Level.EXITS, {Level.COUNTERS, Level.EXITS}),
        (Level.TRACE, set(Level)),
    ],
)
def test_a_level_holds_those_before_it(level: Level, held: set[Level]) -> None:
    assert {other for other in Level if level.holds(other)} == held
