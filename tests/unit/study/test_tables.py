"""Tables that a study declares of its report: checked with file and line, carried by the plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from labctl.base.errors import UsageError
from labctl.base.tuning import Tuning
from labctl.study.load_study import Overrides
from labctl.study.make_plan import make_plan
from labctl.study.study import Study
from tests.unit.records import plan_from_file

MakeStudy = Callable[..., Study]
Tunings = dict[str, Tuning]

TABLE = """\
tables:
  - title: What it costs
    rows: [{tuning: baseline, against: native}, {tuning: pinned}]
    metrics: [ipc, 'ctx_switches{of=vcpu}']
    workloads: [cpu]
quick:"""


def test_the_plan_carries_them_and_comes_back_the_same(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    plan = make_plan(make_study("quick:", TABLE), tunings, seed=1, host_digest="")
    assert plan_from_file(plan.to_json()) == plan
    (table,) = plan.tables
    assert [(row.tuning, row.against) for row in table.rows] == [
        ("baseline", "native"),
        ("pinned", None),
    ]


def test_they_are_no_part_of_what_is_measured(make_study: MakeStudy, tunings: Tunings) -> None:
    with_it, without = make_study("quick:", TABLE), make_study()
    assert with_it.digest == without.digest
    assert "tables" not in make_plan(without, tunings, seed=1, host_digest="").to_json()


def test_what_was_deselected_is_left_out(make_study: MakeStudy, tunings: Tunings) -> None:
    only = Overrides(tunings=("native", "baseline", "control", "handicap"))
    plan = make_plan(make_study("quick:", TABLE, overrides=only), tunings, seed=1, host_digest="")
    assert [row.tuning for table in plan.tables for row in table.rows] == ["baseline"]
    other = Overrides(workloads=("read",))
    plan = make_plan(make_study("quick:", TABLE, overrides=other), tunings, seed=1, host_digest="")
    assert plan.tables == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tuning: pinned", "tuning: pined", "no tuning of the study 'pined'"),
        ("against: native", "against: nativ", "no tuning of the study 'nativ'"),
        ("workloads: [cpu]", "workloads: [gpu]", "no workload of the study 'gpu'"),
        ("[ipc, ", "[IPC, ", "metrics"),
    ],
)
def test_a_wrong_name_is_refused_at_its_line(
    make_study: MakeStudy, old: str, new: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_study("quick:", TABLE.replace(old, new))
    assert "small.yaml:" in caught.value.message


FACTOR = """\
factors:
  max_prime: {levels: [2000, 3000]}
tables:
  - title: What more primes cost
    factor: max_prime
    rows: [{tuning: baseline}]
    metrics: [events_per_s]
quick:"""


def test_a_table_of_a_factor_is_left_out_where_one_level_is_left(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    plan = make_plan(make_study("quick:", FACTOR), tunings, seed=1, host_digest="")
    assert [table.factor for table in plan.tables] == ["max_prime"]
    assert plan_from_file(plan.to_json()) == plan
    one = Overrides(factors={"max_prime": ("3000",)})
    study = make_study("quick:", FACTOR, overrides=one)
    assert make_plan(study, tunings, seed=1, host_digest="").tables == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("factor: max_prime", "factor: max_prim", "no factor 'max_prim'"),
        ("{tuning: baseline}", "{tuning: baseline, against: native}", "leave out 'against'"),
    ],
)
def test_a_table_of_a_factor_that_cannot_be_is_refused(
    make_study: MakeStudy, old: str, new: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make_study("quick:", FACTOR.replace(old, new))
