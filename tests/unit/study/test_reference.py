"""The reference of the catalogue is the catalogue's own words."""

from __future__ import annotations

from pathlib import Path

from labctl.base.tuning import Kind
from labctl.study.load_study import load_study
from labctl.study.study import study_names
from labctl.study.tunings import (
    BASELINE,
    COMMAND,
    load_tuning,
    load_tunings,
    reference,
    tuning_names,
)
from labctl.workloads.registry import checkers

FILE = Path(__file__).parents[3] / "docs" / "tunings.md"


def test_the_reference_is_up_to_date() -> None:
    written = reference(load_tunings(tuning_names()), load_tuning(BASELINE))
    assert FILE.read_text() == written, f"run: {COMMAND}"


def test_every_tuning_of_the_catalogue_says_where_it_comes_from_and_what_it_risks() -> None:
    silent = [
        name
        for name, tuning in load_tunings(tuning_names()).items()
        if not (tuning.description and tuning.sources and tuning.risks)
    ]
    assert silent == []


ACTS_ON_NOTHING_MEASURED = {"baseline", "booted", "control", "disk-discard-ignore", "no-balloon"}
"""The baseline again, and two that none of the workloads has to do with."""


def is_of_windows(name: str) -> bool:
    """Whether only Windows uses what the tuning offers: labctl's images have Linux."""
    return name.startswith("hyperv-") or name == "timer-hypervclock"


OF_ONE_STUDY = {"frame-loop", "sched-matrix", "supertuxkart", "tick-server"}
"""Programs of which only the study that repeats a published one says what they exercise."""


def test_every_guest_tuning_of_the_catalogue_names_a_workload_that_exercises_it() -> None:
    tunings = load_tunings(tuning_names())
    named = {name: t.exercised_by for name, t in tunings.items() if t.kind is Kind.GUEST}
    unused = {name for name, programs in named.items() if not programs}
    assert {name for name in unused if not is_of_windows(name)} == ACTS_ON_NOTHING_MEASURED
    assert {program for programs in named.values() for program in programs} <= {*checkers()}


def test_what_a_study_says_exercises_a_tuning_the_catalogue_says_as_well() -> None:
    tunings = load_tunings(tuning_names())
    for study in (load_study(name, programs=checkers()) for name in study_names()):
        for name, workloads in study.exercises.items():
            if name in tunings and tunings[name].kind is Kind.GUEST:
                used = (study.workloads[workload] for workload in workloads)
                programs = {item.program for item in used} - OF_ONE_STUDY
                assert programs <= {*tunings[name].exercised_by}, (study.name, name)


def test_a_tuning_is_told_with_its_keys_and_with_how_it_starts() -> None:
    text = reference(load_tunings(["cache-none", "hugepages-2M"]), load_tuning(BASELINE))
    assert "- **`cache-none`** (restored; `disk.cache: none`): The data disk passes" in text
    assert "- **`hugepages-2M`** (booted; `memory.hugepages: 2M`): " in text
    assert "  - Exercised by: fio-fsync; fio-random.\n" in text
    assert text.index("## Memory") < text.index("## Disk")
