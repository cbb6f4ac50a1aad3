"""A published study of a Java server, through labctl's analysis: its raw figures, imported, give
the ratios that they give by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labctl.base.yaml import load_mapping
from labctl.cli import main

REPOSITORY = Path(__file__).parents[3]
PUBLISHED = Path(__file__).parents[1] / "fixtures/published"
LOADS = ("low", "medium", "high")
INSTANCES = ("c5", "c6a", "c6g", "c6i", "c7a", "c7g", "c7i")


def rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def contrasts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The effects of instance type and load on the p99 of a tick."""
    folder = tmp_path_factory.mktemp("published")
    lines = ["tuning,workload,block,instance,load,metric,value,unit,better"]
    for row in rows("tick-server-instances.csv"):
        instance = row["instance"].removesuffix(".2xlarge")
        at = f"{instance},{row['load']}"
        lines.append(f"baseline,server,1,{at},tick_p99,{row['tick_p99_us']},us,lower")
    (folder / "ticks.csv").write_text("\n".join(lines) + "\n")
    results = ("--results", str(folder / "results"))
    factors = ("--factor", f"instance={','.join(INSTANCES)}", "--factor", f"load={','.join(LOADS)}")
    words = ("run", "import", str(folder / "ticks.csv"), "--name", "ticks", *factors)
    made = CliRunner().invoke(main.cli, [*words, "--interaction", "instance,load", *results])
    assert made.exit_code == 0, made.output
    told = CliRunner().invoke(main.cli, ["report", "ticks", "--json", *results])
    found: list[dict[str, Any]] = json.loads(told.stdout)["factors"]["contrasts"]
    return found


def effect(contrasts: list[dict[str, Any]], *levels: str) -> float:
    (one,) = [row for row in contrasts if row["levels"] == list(levels)]
    estimate = one["estimate"]
    assert isinstance(estimate, float)
    return estimate


def test_an_instance_s_effect_is_the_mean_of_its_ratios_at_each_load(
    contrasts: list[dict[str, Any]],
) -> None:
    # The cube root of 657/980 x 680/1051 x 773/1244, from the table by hand, and so on.
    by_hand = {"c6a": 0.6460, "c6g": 0.9592, "c6i": 0.7578, "c7a": 0.4811, "c7g": 0.6778}
    for instance, ratio in by_hand.items():
        assert effect(contrasts, instance) == pytest.approx(ratio, abs=5e-5)


def test_what_load_does_to_an_instance_is_set_against_what_it_does_to_the_first(
    contrasts: list[dict[str, Any]],
) -> None:
    # (773/657) / (1244/980): from low to high load c6a gets 7 % less slow than c5 does.
    assert effect(contrasts, "c6a", "high") == pytest.approx(0.9269, abs=5e-5)


def test_one_trial_of_each_cell_shows_nothing_yet(contrasts: list[dict[str, Any]]) -> None:
    assert {row["finding"] for row in contrasts} == {"demonstration, no verdict"}
    assert {row["low"] for row in contrasts} == {None}


def test_the_study_s_published_ratios_are_quotients_of_the_source() -> None:
    figures = {(r["factor"], r["level"], r["metric"]): r["value"] for r in rows("tick-server.csv")}
    p99 = {level: float(figures["gc", level, "tick_execution_p99_ms"]) for level in
           ("zgc", "zgc-generational", "shenandoah")}  # fmt: skip
    mean = {java: float(figures["java", java, "tick_execution_us"]) for java in ("11", "21")}
    told: dict[tuple[str, str], float] = {}
    for row in load_mapping(REPOSITORY / "benchmarks/published/tick-server.yaml")["results"]:
        collector = row["workload"].partition("collector=")[2].partition(",")[0]
        told.setdefault((row["metric"], collector), row.get("ratio"))
    assert told["execution_mean", "G1"] == round(mean["21"] / mean["11"], 2)
    assert told["execution_p99", "ZGenerational"] == round(p99["zgc-generational"] / p99["zgc"], 2)
    assert told["execution_p99", "Shenandoah"] == round(p99["shenandoah"] / p99["zgc"], 1)
    assert told["late_55ms", "G1"] == pytest.approx(1 / 5)
