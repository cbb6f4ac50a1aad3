"""tuned in real guests: each profile that a tuning asks for is in force there, as tuned says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from labctl.base.errors import BusyError
from labctl.base.places import StatePlaces, host_lock
from labctl.base.tuning import Tuning
from labctl.guest.images import Image
from labctl.host.accelerator import Accelerator
from labctl.host.lock import host_locked
from labctl.run.bench import Bench, guest_bench
from labctl.run.boots import Boots
from labctl.run.guest_side import RAW
from labctl.run.lab import Lab, open_lab
from labctl.run.planning import SweepRequest, plan_sweep
from labctl.run.prepare import ImageSource
from labctl.study.study import Overrides
from labctl.study.tunings import load_tunings, tuning_names
from tests.guest.conftest import Sandbox, wait_for
from tests.guest.test_sweep import STUDY

TUNINGS = [name for name, t in load_tunings(tuning_names()).items() if t.guest.tuned]


@pytest.fixture
def lab(image: Image, sandbox: Sandbox) -> Iterator[Lab]:
    places = StatePlaces(sandbox.state)
    wanted = Overrides(vcpus=2, tunings=tuple(TUNINGS))
    planned = plan_sweep(
        SweepRequest(
            study=str(STUDY),
            places=places,
            results=sandbox.results,
            seed=1,
            accel="tcg",
            overrides=wanted,
        )
    )
    with ExitStack() as stack:

        def locked() -> bool:
            try:
                stack.enter_context(host_locked(host_lock(), what="tests of tuned in guests"))
            except BusyError:
                return False
            return True

        wait_for(locked, 600, "the end of another run")
        yield stack.enter_context(
            open_lab(
                places,
                planned,
                image=image,
                source=ImageSource(image),
                accelerator=Accelerator(name="tcg", reason="A test says so."),
                connect=None,
                listener=lambda event: None,
            )
        )


def test_every_profile_is_in_force_in_its_guest(lab: Lab) -> None:
    assert {lab.tunings[name].guest.tuned for name in TUNINGS} == {
        "virtual-guest",
        "realtime-virtual-guest",
    }
    baseline = lab.tunings["baseline"]
    boots = Boots(lab, lab.source.disks(lab, baseline), baseline, lambda channel, path: None)
    try:
        for name in TUNINGS:
            with guest_bench(lab, boots, 1, lab.tunings[name], False) as bench:
                assert not said_by_tuned(bench)
                check(bench, lab.tunings[name])
    finally:
        boots.drop()


def said_by_tuned(bench: Bench) -> list[str]:
    return [problem for problem in bench.problems if "in the guest" in problem]


def check(bench: Bench, tuning: Tuning) -> None:
    found = bench.evidence[RAW]["tuned"]
    assert found["profile"] == tuning.guest.tuned
    assert any("verify: passed: 'vm.swappiness'" in line for line in found["log"])
    isolating = [word for word in tuning.guest.command_line if word.startswith("isolcpus=")]
    assert found["isolated_cores"] == ("1" if isolating else "")
