"""Tunings of the host in a plan: what this host can't have is left out, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import HostError, UsageError
from labctl.host.settings import knobs
from labctl.host.settings.knob import KnobPlace
from labctl.run.planning import host as fitting
from labctl.run.planning import requirements
from labctl.run.planning.plan import plan_sweep
from labctl.study.load_study import Overrides
from labctl.study.tunings import load_tuning
from tests.unit.domain import hosts
from tests.unit.host import fake_host
from tests.unit.run.asked import plan_on, request


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with two CPUs, and files of its own for its settings."""
    root = fake_host.make(tmp_path / "host")
    plan_on(monkeypatch, hosts.TWO_CPUS)
    monkeypatch.setattr(requirements, "booted_with", lambda: ["ro"])
    really = knobs.problems
    monkeypatch.setattr(knobs, "problems", lambda host: really(host, KnobPlace(root=root)))
    return root


def skipped(tmp_path: Path) -> dict[str, str]:
    plan = plan_sweep(request(tmp_path, study="host", quick=False, accel="tcg")).plan
    return {name: str(reason) for name, reason in plan.skipped.items()}


def test_what_this_host_cannot_have_is_left_out_with_the_reason(tmp_path: Path) -> None:
    # Whether this machine has tuned is no matter of the files.
    found = {name for name in skipped(tmp_path) if not name.startswith("tuned-")}
    assert found <= {
        *("isolcpus", "nohz-full", "numa-balancing-off", "halt-poll-off", "halt-poll-1ms"),
        # By paths of this machine.
        "cpu-dma-latency-0",
    }


def test_a_setting_that_vanishes_is_left_out(tmp_path: Path, root: Path) -> None:
    (root / "sys/kernel/mm/ksm/run").unlink()
    reasons = skipped(tmp_path)
    assert "'ksm' can't be '1': this kernel has no" in reasons["ksm-on"]
    assert "thp-never" not in reasons


def test_what_needs_a_reboot_is_left_out_unless_the_kernel_was_booted_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "it needs a host kernel booted with 'isolcpus'"
    assert skipped(tmp_path)["isolcpus"] == reason
    monkeypatch.setattr(requirements, "booted_with", lambda: ["ro", "isolcpus=1"])
    assert "isolcpus" not in skipped(tmp_path)


def test_asked_for_by_name_it_is_an_error_with_the_remedy(tmp_path: Path, root: Path) -> None:
    (root / "sys/kernel/mm/ksm/run").chmod(0o444)
    with pytest.raises(HostError, match="'ksm-on': 'ksm' can't be '1'") as caught:
        plan_sweep(request(tmp_path, study="host", overrides=Overrides(tunings=("ksm-on",))))
    assert "labctl host status" in (caught.value.hint or "")
    with pytest.raises(HostError, match="booted with 'nohz_full'") as caught:
        plan_sweep(request(tmp_path, study="host", overrides=Overrides(tunings=("nohz-full",))))
    assert "labctl host tune nohz-full" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("swapiness: 10", "tuning 'mine': 'host.swapiness' is not a knob", "swappiness"),
        ("swappiness: 300", "tuning 'mine': 'host.swappiness' is '300'", "from 0 to 200"),
    ],
)
def test_a_wrong_setting_is_named_with_its_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str, hint: str
) -> None:
    (tmp_path / "domains").mkdir()
    text = f"extends: baseline\ndescription: Mine.\nhost:\n  {line}\n"
    (tmp_path / "domains" / "mine.yaml").write_text(text)
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    with pytest.raises(UsageError, match=message) as caught:
        plan_sweep(request(tmp_path, overrides=Overrides(tunings=("mine",))))
    assert hint in (caught.value.hint or "")


def test_fifo_is_held_to_the_throttling_that_the_tuning_itself_sets() -> None:
    tuning = load_tuning("pinned+fifo+rt-runtime-unlimited")
    assert fitting.rt_runtime_us(tuning) == -1
    assert fitting.rt_runtime_us(load_tuning("pinned+fifo")) == 950_000


def test_tunings_of_the_host_combine_and_contradict_like_others() -> None:
    both = load_tuning("vcpupin+thp-never+swappiness-10")
    assert both.host == {"thp": "never", "swappiness": "10"}
    assert both.twin == "native+pinned"
    with pytest.raises(UsageError, match=r"'host\.thp' is never in 'thp-never' and always"):
        load_tuning("thp-never+thp-always")
    with pytest.raises(UsageError, match=r"'host\.smt' disables hardware threads"):
        load_tuning("vcpupin+smt-off")
