"""A study that a command line asks for, without a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.study.load_study import Overrides, load_study
from labctl.study.question import question
from labctl.workloads.registry import checkers


def test_a_question_has_the_roles_the_twins_and_the_blocks_of_the_study_pinning() -> None:
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
    for one in ("blocks", "blocks_per_boot", "spare_blocks"):
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
