"""`labctl selftest` as a command: what its exit code and its table say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.host.accelerator import Accelerator
from labctl.run.commands import selftest
from labctl.run.commands.selftest import FAILED, NOT_HERE, RAN, Claim, SelftestResult, TuningResult

from .conftest import Labctl

KVM = SelftestResult(
    accelerator=Accelerator(name="kvm", reason="Guests run under KVM: a kernel boots with it."),
    claims=(Claim(name="kvm", what="guests under KVM", shown=True, why="a kernel boots"),),
    tunings=(
        TuningResult(name="pinned", state=RAN, why=""),
        TuningResult(name="vcpupin-node", state=NOT_HERE, why="it needs 2 NUMA nodes"),
    ),
    failure="",
)
TCG = replace(
    KVM,
    accelerator=Accelerator(name="tcg", reason="Guests are emulated (TCG), as requested."),
    claims=(Claim(name="kvm", what="guests under KVM", shown=False, why="emulated"),),
)
FAILING = replace(KVM, tunings=(TuningResult(name="pinned", state=FAILED, why="it broke [x]"),))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[SelftestResult]:
    """What the self-test finds is put in here; nothing runs."""
    outcomes: list[SelftestResult] = []

    def run(_: Any, target: Path | None, __: Any, **___: Any) -> selftest.SelfTest:
        bundle = target or Path("b.tar.xz")
        return selftest.SelfTest(
            outcome=outcomes[0], bundle=bundle, files=7, taken_out={"uuid": 2}, seconds=61.2
        )

    monkeypatch.setattr(selftest, "selftest", run)
    return outcomes


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(KVM, 0), (FAILING, 1), (replace(KVM, failure="no space"), 1), (TCG, 3)],
    ids=["all shown", "a tuning failed", "it broke off", "emulated"],
)
def test_the_exit_code_tells_what_was_shown(
    labctl: Labctl, found: list[SelftestResult], outcome: SelftestResult, code: int
) -> None:
    found.append(outcome)
    assert labctl("selftest", "--quiet").code == code


def test_emulation_is_said_in_the_first_line(labctl: Labctl, found: list[SelftestResult]) -> None:
    found.append(TCG)
    said = labctl("selftest", "--quiet", "--out", "x.tar.xz")
    assert said.out.startswith(
        "Guests were emulated (accelerator tcg), so this does not test guests"
    )
    assert "NO     guests under KVM" in said.out
    assert "unverified on hardware" in said.out
    assert "Wrote x.tar.xz: 7 files, 61 s." in said.out


def test_what_failed_and_what_is_not_here_have_their_reasons(
    labctl: Labctl, found: list[SelftestResult]
) -> None:
    found.append(replace(FAILING, tunings=FAILING.tunings + KVM.tunings[1:]))
    said = labctl("selftest", "--quiet")
    assert "0 ran, 1 failed, 1 not here." in said.out
    assert "pinned failed: it broke [x]" in said.out
    assert "vcpupin-node not here: it needs 2 NUMA nodes" in said.out


def test_json_is_all_that_is_printed(labctl: Labctl, found: list[SelftestResult]) -> None:
    found.append(TCG)
    data = json.loads(labctl("selftest", "--quiet", "--json").out)
    assert (data["schema"], data["accelerator"], data["verifies_kvm"]) == (1, "tcg", False)
    assert data["verifies_pmu"] is False
    assert data["tunings"][1] == {
        "name": "vcpupin-node",
        "state": "not here",
        "why": "it needs 2 NUMA nodes",
    }


def test_a_bundle_that_could_not_be_written_is_refused_before_the_work(
    labctl: Labctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABCTL_STATE_DIR", str(tmp_path / "state"))
    said = labctl("selftest", "--out", str(tmp_path / "missing" / "b.tar.xz"))
    assert said.code == 2
    assert f"there is no folder {tmp_path / 'missing'}" in said.err
    assert not (tmp_path / "state").exists()


def test_a_tuning_that_boots_for_itself_is_refused(
    labctl: Labctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABCTL_STATE_DIR", str(tmp_path / "state"))
    said = labctl("selftest", "--tuning", "cache-directsync")
    assert said.code == 2
    assert "'cache-directsync' is not a tuning that can be restored from a snapshot" in said.err
