"""Every study that labctl brings loads, and makes a plan on a host that has everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.base.places import data_files
from labctl.study.plan import make_plan
from labctl.study.study import load_study, study_names
from labctl.study.tunings import load_tunings, tuning_names
from labctl.workloads.registry import checkers


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", study_names())
def test_a_study_loads_and_plans(name: str, quick: bool) -> None:
    study = load_study(name, programs=checkers(), quick=quick)
    tunings = load_tunings(study.tunings)
    plan = make_plan(study, tunings, seed=1, host_digest="", skipped={})
    guests = {trial.cell["tuning"] for trial in plan.trials}
    assert guests == set(study.tunings)
    assert study.blocks >= 10
    assert {"baseline", "control", "handicap"} <= set(study.tunings)


@pytest.mark.parametrize("name", study_names())
def test_a_study_exercises_nothing_by_a_workload_that_its_quick_selection_forgets(
    name: str,
) -> None:
    study = load_study(name, programs=checkers(), quick=True)
    assert study.exercises, "a quick run needs a workload that exercises one of its tunings"


def test_everything_is_every_tuning_that_there_is() -> None:
    assert set(load_study("everything", programs=checkers()).tunings) == set(tuning_names())


def test_all_is_a_word_of_its_own(tmp_path: Path) -> None:
    text = data_files("benchmarks")["everything"].read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("tunings: all", "tunings: al"))
    with pytest.raises(UsageError, match="tunings"):
        load_study(str(path), programs=checkers())
