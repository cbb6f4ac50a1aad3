import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.store.collecting_costs import CollectingCost, known, remember
from tests.unit.records import run_of

RUN: dict[str, Any] = {
    "labctl": "1",
    "host": {"kernel_release": "6.1", "qemu": "7.2", "perf": "6.1", "smt": "on"},
    "accelerator": "kvm",
    "image": {"name": "debian-13", "digest": "abc"},
    "vcpus": 1,
    "memory_mib": 1024,
}
COST = CollectingCost(
    level="trace",
    side="guest",
    workload="sysbench-cpu",
    estimate=0.03,
    low=0.02,
    high=0.04,
    labctl_cpu=0.002,
    pairs=20,
    seconds=1.0,
    measured_at="2026-11-21T22:35:22+00:00",
)


def test_a_cost_is_known_to_runs_of_its_class(tmp_path: Path) -> None:
    file = tmp_path / "state" / "costs.json"
    remember(file, run_of(RUN), [COST, replace(COST, level="exits")])
    assert known(file, run_of(RUN), "trace") == [COST]
    assert len(known(file, run_of(RUN))) == 2


def test_the_latest_measurement_stands(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    remember(file, run_of(RUN), [COST, replace(COST, side="native")])
    remember(file, run_of(RUN), [replace(COST, estimate=0.05)])
    assert sorted(cost.estimate for cost in known(file, run_of(RUN))) == [0.03, 0.05]


@pytest.mark.parametrize(
    "change",
    [
        {"labctl": "2"},
        {"accelerator": "tcg"},
        {"vcpus": 2},
        {"image": {"name": "debian-13", "digest": "abd"}},
        {"host": {**RUN["host"], "perf": "6.2"}},
        {"host": {**RUN["host"], "kernel_release": "6.2"}},
    ],
)
def test_another_host_or_version_knows_nothing_of_it(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    remember(tmp_path / "costs.json", run_of(RUN), [COST])
    assert known(tmp_path / "costs.json", run_of({**RUN, **change})) == []


def test_a_fact_that_no_collector_hangs_on_changes_nothing(tmp_path: Path) -> None:
    remember(tmp_path / "costs.json", run_of(RUN), [COST])
    other = {**RUN, "memory_mib": 512, "host": {**RUN["host"], "smt": "off"}}
    assert known(tmp_path / "costs.json", run_of(other)) == [COST]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema": 2, "costs": []}', '{"schema": 1, "costs": [{"key": 1}]}']
)
def test_a_file_that_is_none_of_ours_says_nothing_and_is_replaced(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "costs.json"
    file.write_text(text)
    assert known(file, run_of(RUN)) == []
    remember(file, run_of(RUN), [COST])
    assert known(file, run_of(RUN)) == [COST]
    assert json.loads(file.read_text())["schema"] == 1
