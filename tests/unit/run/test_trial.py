"""Parts of a trial that need no machine: its warm-up, and what its snapshots invalidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.kernel import NO_LIMIT_US
from labctl.base.tuning import Kind
from labctl.collect.counters import host_cpus
from labctl.run.trials import warmup, window_checks
from labctl.store.trial import TrialFolder


def warmed(
    monkeypatch: pytest.MonkeyPatch, faults: Sequence[int], *, waits: bool, cap_s: float = 30
) -> dict[str, Any]:
    """A warm-up of a workload that is at its pace at once, in a guest whose vCPUs have so many
    faults in each window, and none later."""
    windows: Iterator[int] = iter([0, *faults])
    so_far = 0

    def faults_so_far(bench: Any) -> dict[str, int]:
        nonlocal so_far
        so_far += next(windows, 0)
        return {"minor": so_far}

    monkeypatch.setattr(warmup, "faults_so_far", faults_so_far)
    monkeypatch.setattr(warmup, "_busy_s", lambda bench: 0.0)
    done = SimpleNamespace(returncode=0, duration_s=0.3, stdout=b"", files={})
    bench: Any = SimpleNamespace(
        kind=Kind.GUEST,
        cpus=None,
        sched=None,
        waits_for_faults=waits,
        channel=SimpleNamespace(run=lambda *words, **options: done),
    )
    workload: Any = SimpleNamespace(
        why_failed=lambda result: None,
        name="fio-random",
        calibratable=False,
        warmup_command=lambda setting, window_s, sizing: None,
        window_rates=lambda stdout, files: [100.0, 100.0, 100.0],
    )
    request: Any = SimpleNamespace(
        planned=SimpleNamespace(cell={"workload": "fio"}),
        limits=SimpleNamespace(warmup_cap_s=cap_s),
        window_rates={},
    )
    setting: Any = None
    return warmup.warm_up(bench, workload, setting, request)


def test_under_kvm_a_warm_up_waits_until_faults_are_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    found = warmed(monkeypatch, [3000, 200, 20, 1, 0], waits=True)
    assert found["settled"]
    assert [w["faults"]["minor"] for w in found["windows"]] == [3000, 200, 20, 1, 0, 0]


def test_elsewhere_faults_are_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = warmed(monkeypatch, [3000, 200, 20, 1, 0], waits=False)
    assert found["settled"]
    assert [w["faults"]["minor"] for w in found["windows"]] == [3000]


def test_faults_that_never_end_run_into_the_same_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    found = warmed(monkeypatch, [10**n for n in range(1, 9)], waits=True, cap_s=0)
    assert (found["settled"], found["rates_settled"]) == (False, True)


def _reasons(folder: Path, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    made = TrialFolder(folder)
    limit = {host_cpus.LIMIT: NO_LIMIT_US}
    made.write_raw_json("host.json", {"before": limit | before, "after": limit | after})
    return window_checks.host_reasons(made)


def test_a_host_that_stayed_as_it_was_invalidates_nothing(tmp_path: Path) -> None:
    assert _reasons(tmp_path, {"oom_kills": 2}, {"oom_kills": 2}) == []


def test_a_limit_that_somebody_changed_meanwhile_invalidates(tmp_path: Path) -> None:
    [reason] = _reasons(tmp_path, {}, {host_cpus.LIMIT: 20})
    assert reason.endswith("/dev/cpu_dma_latency went from 2000000000 to 20")


def test_a_kill_for_memory_invalidates(tmp_path: Path) -> None:
    [reason] = _reasons(tmp_path, {"oom_kills": 2}, {"oom_kills": 6})
    assert reason.startswith("4 processes were killed")
