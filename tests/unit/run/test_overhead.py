"""What is asked to be measured is refused before anything starts, where it can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.base.paths import StatePaths
from labctl.base.tuning import Kind
from labctl.run.commands.overhead import OverheadRequest, plan_overhead

WITHOUT_NATIVE = """\
title: Guests alone
description: For a test.
roles: {baseline: baseline}
tunings: [baseline, pinned]
workloads:
  sysbench-cpu:
    program: sysbench-cpu
    parameters: {max_prime: 2000}
    duration_s: 1
    primary: events_per_s
    margin_percent: 5
conditions: [quiet]
blocks: 1
blocks_per_boot: 1
guest: {image: debian-13, vcpus: auto, memory_mib: 512}
limits: {attempts: 2, other_cpu: 1000, warmup_cap_s: 30}
"""


def _asked(folder: Path, sides: tuple[Kind, ...]) -> OverheadRequest:
    study = folder / "study.yaml"
    study.write_text(WITHOUT_NATIVE)
    return OverheadRequest(places=StatePaths(folder), study=str(study), sides=sides)


def test_a_study_of_guests_alone_is_measured_in_a_guest(tmp_path: Path) -> None:
    planned, name = plan_overhead(_asked(tmp_path, (Kind.GUEST,)))
    assert (planned.plan.roles.native, name) == (None, "sysbench-cpu")


def test_what_is_to_be_measured_natively_needs_a_native_role(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no native role") as error:
        plan_overhead(_asked(tmp_path, (Kind.NATIVE, Kind.GUEST)))
    assert "--side guest" in str(error.value.hint)
