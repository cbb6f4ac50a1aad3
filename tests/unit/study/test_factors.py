"""A study's factors become cells of the axes that every study has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.base.tuning import GuestSide, Tuning
from labctl.study.extension import extension
from labctl.study.factors import MOST_CELLS
from labctl.study.load_study import Overrides, load_study
from labctl.study.make_plan import extend, make_plan
from labctl.study.plan import Plan
from labctl.study.spares import spares_due
from labctl.study.study import Study
from labctl.workloads.registry import checkers

from .small import PROGRAMS

MakeStudy = Callable[..., Study]
Tunings = dict[str, Tuning]

FACTORS = """\
factors:
  max_prime: {levels: [2000, 3000]}
  load:
    levels:
      alone: {condition: quiet}
      busy: {condition: neighbour}
  kernel:
    levels:
      standard: {}
      mine: {tuning: mine}
interactions:
  - [max_prime, load]
blocks: 10
"""


def with_factors(make: MakeStudy, factors: str = FACTORS, **options: object) -> Study:
    return make("blocks: 10\n", factors, **options)


def cells(study: Study) -> set[tuple[str, str, str]]:
    assert study.factorial is not None
    return {cell.place for cell in study.factorial.cells}


@pytest.fixture
def with_mine(tunings: Tunings) -> Tunings:
    made = {name: replace(tunings["mine"], name=name) for name in ("mine", "pinned+mine")}
    return {**tunings, **made}


def test_a_parameter_a_condition_and_a_tuning_multiply_the_axes_that_they_belong_to(
    make_study: MakeStudy,
) -> None:
    study = with_factors(make_study)
    assert list(study.workloads) == ["cpu[max_prime=2000]", "cpu[max_prime=3000]", "read"]
    assert [w.parameters for w in study.workloads.values()][:2] == [
        {"max_prime": 2000},
        {"max_prime": 3000},
    ]
    assert study.tunings == (
        *("native", "baseline", "mine", "control", "handicap", "pinned", "pinned+mine"),
    )
    assert study.conditions == ("quiet", "neighbour")
    # Native, control and known loss have no tuning of a factor's.
    assert len(cells(study)) == 7 * 3 * 2


def test_a_cell_says_at_which_levels_it_is_and_of_what_it_is_made(make_study: MakeStudy) -> None:
    factorial = with_factors(make_study).factorial
    assert factorial is not None
    found = {tuple(cell.place): cell for cell in factorial.cells}
    cell = found["pinned+mine", "cpu[max_prime=3000]", "neighbour"]
    assert (cell.arm, cell.group, cell.under) == ("pinned", "cpu", None)
    assert cell.levels == {"max_prime": "3000", "load": "busy", "kernel": "mine"}
    assert found["mine", "read", "quiet"].levels == {"load": "alone", "kernel": "mine"}
    assert found["native", "read", "quiet"].levels == {"load": "alone"}


def test_the_baseline_runs_as_it_is_even_where_each_level_sets_a_tuning(
    make_study: MakeStudy,
) -> None:
    study = with_factors(
        make_study,
        "factors:\n  host:\n    levels: {a: {tuning: pinned}, b: {tuning: mine}}\nblocks: 10\n",
        overrides=Overrides(tunings=["baseline"]),
    )
    assert study.tunings == ("native", "pinned", "mine", "baseline", "control", "handicap")
    factorial = study.factorial
    assert factorial is not None
    plain = [cell for cell in factorial.cells if cell.tuning == "baseline"]
    assert plain
    assert not any(cell.levels for cell in plain)


def test_an_excluded_combination_is_in_no_block_and_not_in_an_extension(
    make_study: MakeStudy, with_mine: Tunings
) -> None:
    excluding = FACTORS + "exclude:\n  - {max_prime: 3000, load: busy}\n"
    plan = make_plan(with_factors(make_study, excluding), with_mine, seed=1, host_digest="host")
    assert len(plan.trials) == 10 * (7 * 3 * 2 - 7)
    more = extension(plan, 2, extends="it").trials
    for trials in (plan.trials, more):
        counts = Counter((trial.block, *trial.cell.values()) for trial in trials)
        assert set(counts.values()) == {1}
        assert not any(
            trial.cell["workload"] == "cpu[max_prime=3000]"
            and trial.cell["condition"] == "neighbour"
            for trial in trials
        )
    assert extend(plan, 12).trials[: len(plan.trials)] == plan.trials


def test_a_plan_says_which_factor_takes_a_boot_and_is_read_as_it_was_written(
    make_study: MakeStudy, with_mine: Tunings
) -> None:
    plan = make_plan(with_factors(make_study), with_mine, seed=1, host_digest="host")
    factors = plan.record().factorial
    assert factors is not None
    assert {name: of.own_boot for name, of in factors.factors.items()} == {
        "max_prime": False,
        "load": False,
        "kernel": True,
    }
    assert factors.interactions == (("max_prime", "load"),)
    assert Plan.of(plan.record()) == plan


def test_spares_run_until_the_cells_of_factors_have_as_many_blocks_in_common_as_were_planned(
    make_study: MakeStudy, with_mine: Tunings
) -> None:
    study = with_factors(make_study, f"{FACTORS}spare_blocks: 4\n")
    plan = make_plan(study, with_mine, seed=1, host_digest="host")
    lost = {
        next(
            trial.number
            for trial in plan.trials
            if (trial.block, trial.cell["tuning"]) == (block, "pinned")
            and trial.cell["workload"] == f"cpu[max_prime={prime}]"
        )
        for block, prime in ((3, 2000), (7, 3000))
    }
    # Each workload by itself lacks one block; levels of the prime are compared in eight.
    assert len(spares_due(plan, lost)) == 2


def test_a_command_line_of_the_guests_kernel_takes_a_boot_too(
    make_study: MakeStudy, with_mine: Tunings
) -> None:
    restored = {
        name: replace(tuning, restore=True, guest=GuestSide(command_line=("quiet",)))
        if "mine" in name
        else tuning
        for name, tuning in with_mine.items()
    }
    plan = make_plan(with_factors(make_study), restored, seed=1, host_digest="host")
    assert plan.factorial is not None
    assert plan.factorial.factors["kernel"].own_boot


def test_a_study_without_factors_has_the_digest_and_the_plan_that_it_had(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    study = make_study()
    assert study.factorial is None
    assert "factorial" not in make_plan(study, tunings, seed=1, host_digest="host").to_json()


@pytest.mark.parametrize("single", [True, False])
def test_a_command_line_picks_levels_and_cells(make_study: MakeStudy, single: bool) -> None:
    overrides = (
        Overrides(workloads=["cpu[max_prime=3000]"])
        if single
        else Overrides(factors={"max_prime": ["3000"]}, workloads=["cpu"])
    )
    study = with_factors(make_study, overrides=overrides)
    assert list(study.workloads) == ["cpu[max_prime=3000]"]


def test_a_quick_run_has_the_levels_that_it_names(make_study: MakeStudy) -> None:
    factors = FACTORS.removesuffix("blocks: 10\n")
    chosen = "quick:\n  factors: {load: [alone], max_prime: [3000]}\n"
    study = make_study("quick:\n", factors + chosen, quick=True)
    assert study.conditions == ("quiet",)
    assert list(study.workloads) == ["cpu[max_prime=3000]"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("max_prime: {", "max_prim: {", "no workload of the study has the parameter 'max_prim'"),
        ("[2000, 3000]", "[2000, 4000]", "'max_prime' is 4000"),
        ("[2000, 3000]", "[2000, 2000]", "level '2000' appears twice"),
        ("[2000, 3000]", "[2000, 'a b']", "is not valid in a workload's name"),
        ("tuning: mine", "tuning: mien", "no tuning 'mien'"),
        ("condition: quiet", "condition: quite", "no condition 'quite'"),
        ("condition: quiet", "tuning: mine", "level 'alone' has no condition"),
        ("condition: quiet", "condition: neighbour", "'alone' and 'busy' set the same"),
        ("[max_prime, load]", "[max_prime, laod]", "no factor 'laod'"),
        ("[max_prime, load]", "[load, load]", "two different factors"),
        ("standard: {}", "standard: {workload: cpu}", "level 'mine' has no workload"),
        ("load:", "it: {levels: {a: {workload: cpu}, b: {workload: read}}}\n  load:", "iops of"),
        ("max_prime: {", "block: {", "'block' is not a valid name"),
        ("interactions:", "exclude:\n  - {load: lone}\ninteractions:", "no level of 'load' 'lone'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_the_nearest_name(
    make_study: MakeStudy, old: str, new: str, said: str
) -> None:
    assert old in FACTORS
    with pytest.raises(UsageError) as error:
        with_factors(make_study, FACTORS.replace(old, new, 1))
    assert re.search(r"small\.yaml:\d+: ", error.value.message)
    assert said in error.value.message


def test_levels_may_be_called_by_numbers(make_study: MakeStudy) -> None:
    study = with_factors(
        make_study,
        "factors:\n  size:\n    levels:\n      10: {parameters: {max_prime: 2000}}\n"
        "      20: {parameters: {max_prime: 3000}}\nblocks: 10\n",
    )
    assert list(study.workloads) == ["cpu[size=10]", "cpu[size=20]", "read"]


def test_too_many_cells_are_refused_with_what_makes_them(make_study: MakeStudy) -> None:
    many = "\n".join(
        f"  f{n}: {{levels: {{a: {{}}, b: {{parameters: {{max_prime: 3000}}}}}}}}" for n in range(8)
    )
    with pytest.raises(UsageError, match=f"more than {MOST_CELLS} cells .* 2 f0 x 2 f1"):
        with_factors(make_study, f"factors:\n{many}\nblocks: 10\n")


def test_an_arm_that_is_also_a_level_is_named(
    write_study: Callable[..., Path], make_study: MakeStudy
) -> None:
    write_study("blocks: 10\n", FACTORS)
    with pytest.raises(UsageError, match="make the same cell twice"):
        load_study("small", programs=PROGRAMS, overrides=Overrides(tunings=["pinned", "mine"]))


def test_the_example_of_the_documentation_is_a_study(
    tmp_path: Path,
) -> None:
    text = (Path(__file__).parents[3] / "docs" / "factors.md").read_text()
    study = tmp_path / "study.yaml"
    study.write_text(text.split("```yaml\n", 1)[1].split("```")[0])
    whole = load_study(str(study), programs=checkers())
    assert whole.factorial is not None
    assert len({cell.workload for cell in whole.factorial.cells}) == 3
    quick = load_study(str(study), programs=checkers(), quick=True)
    assert list(quick.workloads) == [
        "disk[mode=randread,iodepth=1]",
        "disk[mode=randread,iodepth=16]",
    ]
