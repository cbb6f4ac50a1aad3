"""A study that a command line asks for, without a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.study.load_study import Overrides, load_study
from labctl.study.make_plan import make_plan
from labctl.study.question import question
from labctl.study.tunings import load_tunings
from labctl.workloads.registry import checkers


def test_a_question_has_the_roles_the_twins_and_the_looks_of_the_study_pinning() -> None:
    asked = question(["pinned", "pinned+fifo"], {"redis-get": {}})
    study = load_study(asked, programs=checkers())
    pinning = load_study("pinning", programs=checkers())
    assert study.tunings == (
        *("native", "baseline", "control", "handicap"),
        *("native+pinned", "native+fifo", "pinned", "pinned+fifo"),
    )
    assert study.roles == pinning.roles
    assert study.limits == pinning.limits
    assert study.guest == pinning.guest
    for one in ("stopping", "blocks_per_boot", "spare_blocks"):
        assert getattr(study, one) == getattr(pinning, one)
    assert study.exercises == {"pinned": ("redis-get",), "pinned+fifo": ("redis-get",)}
    assert study.title == "What do 'pinned' and 'pinned+fifo' do in redis-get?"


def test_its_quick_size_has_the_looks_and_seconds_of_the_study_pinning() -> None:
    asked = question(["pinned"], {"redis-get": {}})
    study = load_study(asked, programs=checkers(), quick=True)
    pinning = load_study("pinning", programs=checkers(), quick=True)
    assert study.stopping == pinning.stopping
    assert study.workloads["redis-get"].duration_s == 2
    assert study.blocks_per_boot == pinning.blocks_per_boot


def test_its_quick_trials_are_long_enough_for_each_program() -> None:
    study = load_study(question(["pinned"], {"pgbench": {}}), programs=checkers(), quick=True)
    assert study.workloads["pgbench"].duration_s == 10


def test_its_file_makes_the_same_study(tmp_path: Path) -> None:
    asked = question(["vcpupin+cache-none"], {"redis-get": {}, "sysbench-cpu": {}}, name="mine")
    file = tmp_path / "mine.yaml"
    file.write_text(asked.file_text)
    for quick in (False, True):
        kept = load_study(str(file), programs=checkers(), quick=quick)
        assert kept.digest == load_study(asked, programs=checkers(), quick=quick).digest


def test_options_change_it_and_do_not_leave_its_twins_out() -> None:
    asked = question(["pinned"], {"redis-get": {}})
    overrides = Overrides(tunings=("pinned",), workloads=("redis-get",), blocks=12)
    study = load_study(asked, programs=checkers(), overrides=overrides)
    assert study.blocks == 12
    assert "native+pinned" in study.tunings


@pytest.mark.parametrize("tunings", [(), ("baseline",), ("control", "native")])
def test_roles_alone_compare_nothing(tunings: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="no tuning to compare"):
        question(tunings, {"redis-get": {}})


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="no tuning 'pined'"):
        question(["pined"], {"redis-get": {}})
    with pytest.raises(UsageError, match="no program 'redis-gat'"):
        load_study(question(["pinned"], {"redis-gat": {}}), programs=checkers())


STUDY = """\
title: Mine?
tunings: [mine, mine+cache-none]
define:
  twice: {extends: mine, description: it again}
  mine: {extends: pinned, description: mine, nice: 5}
workloads: [sysbench-cpu]
"""


def test_a_study_defines_tunings_that_extend_and_combine_with_others(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    study = load_study(str(file), programs=checkers())
    found = load_tunings(study.tunings, study.defined)
    assert found["mine"].nice == 5
    assert found["mine"].pin.emulator == "plan"
    assert (found["mine+cache-none"].nice, found["mine+cache-none"].disk.cache) == (5, "none")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{extends: nobody, description: x}", "'extends' is 'nobody'"),
        ("{extends: pinned}", "description"),
        ("{extends: pinned, description: x, colour: red}", "colour"),
        ("{extends: mine, description: x}", "in a circle"),
        ("{extends: baseline, description: x, emulator: /bin/qemu}", "restore: false"),
        ("{extends: baseline, description: x, image: i, twin: null}", "restore: false"),
        ("{extends: baseline, description: x, image: i, restore: false}", "in another image"),
        ("{extends: baseline, description: x, emulator: qemu, restore: false}", "emulator"),
        ("{extends: baseline, description: x, host: {thp: never}}", "'host' is given"),
        ("{extends: baseline, description: x, initrd: /i, restore: false}", "its 'kernel'"),
        ("{extends: native, description: x, kernel: /boot/vmlinuz}", "no effect in a native"),
    ],
)
def test_a_wrong_definition_is_refused_with_its_reason(
    tmp_path: Path, line: str, said: str
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        f"title: Mine?\ntunings: [mine]\ndefine:\n  mine: {line}\nworkloads: [sysbench-cpu]\n"
    )
    with pytest.raises(UsageError) as caught:
        load_study(str(file), programs=checkers())
    assert said in f"{caught.value.message} {caught.value.hint}"


def test_an_arm_runs_only_a_workload_of_the_study(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "title: Mine?\ntunings: [mine]\nworkloads: [sysbench-cpu]\n"
        "define:\n  mine: {extends: baseline, description: x, workload: hackbench}\n"
    )
    study = load_study(str(file), programs=checkers())
    with pytest.raises(UsageError, match="'hackbench', which is not one of the study's"):
        make_plan(study, load_tunings(study.tunings, study.defined), seed=1, host_digest="")
