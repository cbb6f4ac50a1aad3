"""Equal is only worth something under a workload that exercises what a tuning changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from labctl.analysis.judge import judge
from tests.unit.records import plan_of
from tests.unit.synthetic import synthetic_run


def warned(exercised_by: Sequence[str] | None, effect: float) -> list[str]:
    run = synthetic_run(effects={"pinned": effect, "handicap": 0.9}, noise=0.005)
    tunings = dict(run.plan.to_json()["tunings"])
    if exercised_by is not None:
        tunings["pinned"] = {**tunings["pinned"], "exercised_by": list(exercised_by)}
    found = judge(replace(run, plan=plan_of({**run.plan.to_json(), "tunings": tunings})))
    return [text for text in found.warnings if text.startswith("No workload of this run exercises")]


@pytest.mark.parametrize(
    ("exercised_by", "effect", "said"),
    [
        ([], 1.0, True),
        (["another"], 1.0, True),
        (["sysbench-cpu"], 1.0, False),
        ([], 1.5, False),
        (None, 1.0, False),
    ],
)
def test_equal_where_nothing_acts_is_said_to_say_nothing(
    exercised_by: list[str] | None, effect: float, said: bool
) -> None:
    found = warned(exercised_by, effect)
    assert len(found) == said
    assert all("'pinned'" in text for text in found)
