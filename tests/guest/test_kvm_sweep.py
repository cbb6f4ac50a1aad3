"""A sweep of real guests under KVM that tells why they exit. It needs a host on which a kernel
boots under KVM; `make test-kvm` emulates one."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.levels import Level
from labctl.base.places import StatePlaces
from labctl.base.wording import metric_title
from labctl.guest.images import Image
from labctl.host.accelerator import accelerator
from labctl.store.samples import labels_of
from tests.guest.conftest import (
    DISTURBED,
    LATENCY,
    TWO,
    Sandbox,
    booting_within,
    changed_study,
)
from tests.guest.test_guest_trace import only, samples

pytestmark = [DISTURBED, pytest.mark.kvm]

LEAST = LATENCY | TWO | booting_within(300)


@pytest.fixture
def _kvm(built: Image) -> None:
    chosen = accelerator("auto", built.kernel, StatePlaces.default())
    if chosen.name != "kvm":
        pytest.skip(chosen.reason)


@pytest.mark.usefixtures("_kvm")
def test_guests_under_kvm_say_why_they_exit_and_the_reasons_add_up(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    study = changed_study(tmp_path, LEAST)
    done = sandbox.labctl(
        *("sweep", study, "--seed=1", "--condition=quiet", "--accel=kvm"),
        f"--collect={Level.EXITS}",
    )
    assert done.returncode == 0, done.stderr
    (run,) = sandbox.runs()
    trials = sandbox.trials(run)
    assert [trial["status"] for trial in trials] == ["done", "done"], trials
    native, guest = (samples(only(run, arm)) for arm in ("native", "baseline"))
    assert [native[key] for key in ("exits", "exit_time", "userspace_exits")] == [0, 0, 0]
    reasons = [key for key in guest if key.startswith("exits{reason=")]
    # cyclictest sleeps: the guest halts.
    assert "exits{reason=hlt}" in map(str.lower, reasons)
    assert guest["exits_agreement"] == pytest.approx(1, abs=0.02)
    assert sum(guest[key] for key in reasons) == pytest.approx(guest["exits"], rel=0.5)
    assert 0 < guest["exit_time"] < guest["vcpu_cpu_net"] <= 1
    assert guest["exit_time"] == pytest.approx(guest["exit_time{vcpu=0}"])
    for name in ("kvm_stat{name=", "userspace_exits{reason="):
        assert any(key.startswith(name) for key in guest), name

    assert "VM exits" in done.stdout
    _, heading, page = (run / "report.html").read_text().partition("<h3>VM exits by reason</h3>")
    assert heading
    assert [key for key in reasons if labels_of(key)["reason"] not in page] == []
    assert metric_title("exits_agreement") in page
    assert sandbox.leftovers() == []
