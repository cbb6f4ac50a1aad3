"""The dashboard of docs/grafana, whose queries must find what labctl exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from labctl.report.export.formats import FORMATS
from labctl.store.run_folder import RunFolder
from tests.unit.example import EXAMPLE

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "labctl.json"
Series = dict[str, list[tuple[dict[str, str], float]]]
ADDED = {"instance", "job", "__name__"}
"""Labels that Prometheus adds."""
VARIABLES = {"instance": ".*", "study": "pinning", "workload": ".*", "metric": "latency_p95"}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


@pytest.fixture(scope="module")
def exported() -> Series:
    """The series of the recorded run, by name."""
    (made,) = (one for one in FORMATS if one.name == "prometheus")
    text = b"".join(made.pieces(RunFolder(EXAMPLE).load(), ())).decode()
    series: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, []).append((sample.labels, sample.value))
    return series


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def test_a_query_names_only_what_is_exported(dashboard: dict[str, Any], exported: Series) -> None:
    variables = [
        one["definition"]
        for one in dashboard["templating"]["list"]
        if "query" in one and "definition" in one
    ]
    known = {label for rows in exported.values() for labels, _ in rows for label in labels} | ADDED
    for query in (*queries(dashboard), *variables):
        for name in re.findall(r"\b(labctl_\w+)\{", query):
            assert name in exported, query
        assert set(re.findall(r"(\w+)(?:=~|!~|=)\s*\"", query)) <= known, query


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    cells = [
        (x, y)
        for panel in dashboard["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(panel["description"] for panel in dashboard["panels"])
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_prometheus_answers_each_query(
    dashboard: dict[str, Any],
    exported: Series,
    tmp_path: Path,
) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    series = [
        {"series": f"{name}{{{_labels({**labels, 'instance': 'web1'})}}}", "values": repr(value)}
        for name, rows in exported.items()
        for labels, value in rows
    ]
    asked = [filled(query) for query in queries(dashboard)]
    tests = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    {
                        "expr": f"count({query}) > bool 0",
                        "eval_time": "0m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                    for query in asked
                ],
            }
        ],
    }
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        [promtool, "test", "rules", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def filled(query: str) -> str:
    """A query as Grafana sends it."""
    for name, value in VARIABLES.items():
        query = query.replace(f"${name}", value)
    assert "$" not in query
    return query
