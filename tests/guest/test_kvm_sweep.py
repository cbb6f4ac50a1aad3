"""A sweep of real guests under KVM that tells why they exit. It needs a host on which a kernel
boots under KVM; `make test-kvm` emulates one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labctl.base.paths import StatePaths
from labctl.base.tuning import Level
from labctl.base.wording import metric_title
from labctl.collect.exits import exits
from labctl.collect.exits.exits import why_no_bpf
from labctl.guest.images import Image
from labctl.host.accelerator import accelerator
from labctl.store.samples import labels_of
from labctl.trace import files
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
    chosen = accelerator("auto", built.kernel, StatePaths.default())
    if chosen.name != "kvm":
        pytest.skip(chosen.reason)


@pytest.fixture(params=["BPF", "perf"])
def counter(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment in which BPF counts, or perf since bpftrace does not work."""
    if request.param == "BPF":
        if problem := why_no_bpf():
            pytest.skip(problem)
        return {}
    refusing = tmp_path / "bin" / "bpftrace"
    refusing.parent.mkdir()
    refusing.write_text("#!/bin/sh\necho 'ERROR: a test' >&2\nexit 1\n")
    refusing.chmod(0o755)
    return {"PATH": f"{refusing.parent}:{os.environ['PATH']}"}


def is_of(key: str, metric: str, label: str) -> bool:
    """Whether the key has that label and no other."""
    return key.startswith(f"{metric}{{") and [*labels_of(key)] == [label]


@pytest.mark.usefixtures("_kvm")
def test_guests_under_kvm_say_why_they_exit_and_the_reasons_add_up(
    sandbox: Sandbox, counter: dict[str, str], tmp_path: Path
) -> None:
    study = changed_study(tmp_path, LEAST)
    done = sandbox.labctl(
        *("sweep", study, "--seed=1", "--condition=quiet", "--accel=kvm"),
        f"--collect={Level.EXITS}",
        environment=counter,
    )
    assert done.returncode == 0, done.stderr
    (run,) = sandbox.runs()
    trials = sandbox.trials(run)
    assert [trial["status"] for trial in trials] == ["done", "done"], trials
    trial = only(run, "baseline")
    native, guest = samples(only(run, "native")), samples(trial)
    told = trial.read_json(files.EXITS)
    assert told["tool"] == (exits.PERF if counter else exits.BPFTRACE)
    assert [native[key] for key in ("exits", "exit_time", "userspace_exits")] == [0, 0, 0]
    reasons = [key for key in guest if is_of(key, "exits", "reason")]
    # cyclictest sleeps: the guest halts.
    rows = trial.read_json("samples.json")["unavailable"]
    why = [row["reason"] for row in rows if row["metric"] == "exits"]
    assert "exits{reason=hlt}" in map(str.lower, reasons), why
    # What KVM counted between its readings around the window of the reasons: to 1 %, and less by
    # what happened between either reading and the window, some tenths of a second on a slow host.
    before, after = (sum(told["total"][edge].values()) for edge in ("before", "after"))
    total = after - before
    by_reason = sum(guest[key] for key in reasons) * guest["exits_window"]
    outside = 1 - guest["exits_window"] / told["total"]["seconds"]
    assert (0.99 - outside) * total <= by_reason <= 1.01 * total
    assert guest["exits"] * guest["exits_window"] == pytest.approx(by_reason), "of one window"
    assert guest["exits_agreement"] == pytest.approx(by_reason / total)
    assert guest["vcpu_cpu_net"] > 0
    # By the clock: what an exit waits for a CPU is in it.
    assert 0 < guest["exit_time"] <= len(told["vcpus"])
    for label in ("reason", "vcpu"):
        parts = [guest[key] for key in guest if is_of(key, "exit_time", label)]
        assert guest["exit_time"] == pytest.approx(sum(parts)), label
    assert any(key.startswith("kvm_stat{name=") for key in guest)
    # A guest of Debian 13 may need nothing of QEMU in such a short time; KVM counts that itself.
    parts = [key for key in guest if is_of(key, "userspace_exits", "reason")]
    assert guest["userspace_exits"] == pytest.approx(sum(guest[key] for key in parts))
    if guest["kvm_stat{name=io_exits}"] + guest["kvm_stat{name=mmio_exits}"] == 0:
        assert [key for key in parts if key.lower().endswith(("=io}", "=mmio}"))] == []

    assert "VM exits" in done.stdout
    _, heading, page = (run / "report.html").read_text().partition(">VM exits by reason</h3>")
    assert heading
    assert [key for key in reasons if labels_of(key)["reason"] not in page] == []
    assert metric_title("exits_agreement") in page
    assert sandbox.leftovers() == []
