"""The table of metrics knows whatever a trial holds, and its rows agree with each other."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import labctl
from labctl.base.metrics.row import ANY, Column
from labctl.base.metrics.table import METRICS, beside_primary, metric_of
from labctl.base.units import Better, Unit
from labctl.base.wording import metric_title
from labctl.store.samples import base_name, labels_of, sample
from labctl.workloads.registry import checkers
from tests.unit.example import EXAMPLE

LABCTL = Path(labctl.__file__).parent
TRIALS = EXAMPLE / "trials"


def recorded(what: str) -> Iterator[dict[str, Any]]:
    for path in sorted(TRIALS.glob("*/samples.json")):
        yield from json.loads(path.read_text())[what]


def test_every_recorded_sample_has_its_row_s_unit_and_direction() -> None:
    seen = set()
    for one in recorded("samples"):
        metric, labels = one["metric"], one["labels"]
        row = metric_of(metric)
        assert row is not None, metric
        assert (one["unit"], one["better"]) == (row.unit, row.better_of(labels)), one
        seen.add(metric)
    assert len(seen) > 20


def test_every_recorded_absence_has_a_row() -> None:
    names = {base_name(absent["metric"]) for absent in recorded("unavailable")}
    assert [name for name in names if metric_of(name) is None] == []


def test_a_row_names_the_labels_of_every_recorded_sample() -> None:
    for one in recorded("samples"):
        row = metric_of(one["metric"])
        assert row is not None
        if row.name.endswith(ANY):
            continue  # their labels stand in the text
        forms = [*row.forms, *(keys for there in row.elsewhere.values() for keys in there)]
        known = [set(labels_of(key)) for keys in forms for key in keys.split()]
        assert set(one["labels"]) in known, one


def test_a_name_has_one_row_and_its_keys_begin_with_it() -> None:
    assert len({row.name for row in METRICS}) == len(METRICS)
    for row in METRICS:
        for keys in row.forms:
            for key in keys.split():
                assert metric_of(base_name(key)) is row or key == row.name


def test_the_row_of_a_name_wins_over_the_row_of_its_beginning() -> None:
    for name, row in {
        "latency_p95": "latency_p95",
        "latency_p90": "latency_*",
        "open_latency_p999": "open_latency_*",
        "sched_delays": "sched_delays",
        "sched_delay_p50": "sched_delay_p*",
    }.items():
        found = metric_of(name)
        assert found is not None
        assert found.name == row
    assert metric_of("frames_per_s") is None


def test_a_metric_from_elsewhere_is_read_by_its_name() -> None:
    assert metric_title("frames_per_s{of=game}") == "frames/s (game)"


def listed_by_hand(path: Path) -> Iterator[str]:
    """Yield each collection of names of metrics, and of nothing else, that a file spells out."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Tuple | ast.List | ast.Set) and len(node.elts) > 1:
            names = [one.value for one in node.elts if isinstance(one, ast.Constant)]
            if len(names) == len(node.elts) and all(
                isinstance(name, str) and metric_of(name) for name in names
            ):
                yield f"{path.relative_to(LABCTL)}: {names}"


def test_what_reads_runs_takes_groups_of_metrics_from_their_rows() -> None:
    rooms = ("analysis", "report", "rollout")
    files = [path for room in rooms for path in sorted((LABCTL / room).rglob("*.py"))]
    assert [found for path in files for found in listed_by_hand(path)] == []


def test_a_list_of_metrics_by_hand_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.base.test_metrics.LABCTL", tmp_path)
    (tmp_path / "cost.py").write_text('FELT = ("iops", "latency_p99")\nOTHER = ("iops", "guest")\n')
    assert list(listed_by_hand(tmp_path / "cost.py")) == ["cost.py: ['iops', 'latency_p99']"]


def test_every_column_has_a_metric() -> None:
    assert len(beside_primary()) == len(Column)
    assert all(beside_primary())


def test_parsers_take_unit_and_direction_from_the_table() -> None:
    made_by_hand = [
        f"{path.name}:{node.lineno}"
        for room in ("collect", "workloads")
        for path in sorted((LABCTL / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id == "Sample"
        # A declaration says both itself.
        if path.name != "metric_file.py"
    ]
    assert made_by_hand == []


def test_a_sample_has_its_row_s_unit_and_its_labels_direction() -> None:
    ours = sample("host_cpu", 0.5, source="host.json", labels={"thread": "vcpu"})
    theirs = sample("host_cpu", 0.5, source="host.json", labels={"thread": "other"})
    assert (ours.unit, ours.better) == (Unit.CPUS, Better.LOWER)
    assert (theirs.unit, theirs.better) == (Unit.CPUS, Better.NEITHER)


def test_a_sample_of_a_metric_without_a_row_is_refused() -> None:
    with pytest.raises(LookupError, match="'frames_per_s' has no row"):
        sample("frames_per_s", 60, source="stdout.txt")


def test_a_workload_s_primary_metric_has_a_row_and_a_direction() -> None:
    for workload in checkers().values():
        if workload.definition is not None:
            continue
        row = metric_of(base_name(workload.primary))
        assert row is not None, workload.name
        assert row.better is not Better.NEITHER, workload.name
