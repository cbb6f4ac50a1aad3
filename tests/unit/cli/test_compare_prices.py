"""`labctl compare --price`: performance per price, held to figures computed by hand of a
published table of instance types."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from labctl.base.errors import UsageError
from labctl.cli import main

TABLE = Path(__file__).parents[1] / "fixtures/published/tick-server-instances.csv"
BASE = "c5.2xlarge"

# (p99 of c5.2xlarge / p99) x (0.34 / price), worked out by hand from the table's rows, which are
# us and dollars an hour: c6a under low load is 980 / 657 x 0.34 / 0.306 = 1.6574.
BY_HAND = {
    "c5.2xlarge": (1.0, 1.0, 1.0),
    "c6a.2xlarge": (1.6574, 1.7173, 1.7881),
    "c6g.2xlarge": (1.1790, 1.3072, 1.4358),
    "c6i.2xlarge": (1.2777, 1.3170, 1.3655),
    "c7a.2xlarge": (1.5607, 1.6999, 1.9220),
    "c7g.2xlarge": (1.5892, 1.6973, 1.9191),
    "c7i.2xlarge": (1.3372, 1.3980, 1.4754),
}
LOADS = ("low", "medium", "high")


def labctl(results: Path, *words: str) -> Result:
    return CliRunner().invoke(main.cli, [*words, "--results", str(results)])


def rows() -> list[dict[str, str]]:
    with TABLE.open() as file:
        return list(csv.DictReader(file))


def price(instance: str) -> str:
    return next(row["usd_per_hour"] for row in rows() if row["instance"] == instance)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of imported runs, one for each instance type; `again` is the base's a second time,
    and `rate` has a metric of which more is better."""
    folder = tmp_path_factory.mktemp("results")
    for instance in BY_HAND:
        _import(folder, instance, instance)
    _import(folder, BASE, "again")
    for name, value in (("slow", 100), ("fast", 150)):
        for block in range(1, 11):
            _append(folder / f"{name}.csv", f"server,{block},rate,{value + block % 3},1/s,higher")
        assert labctl(folder, "run", "import", str(folder / f"{name}.csv"), "--name", name,
                      "--baseline", "server").exit_code == 0  # fmt: skip
    return folder


def _append(path: Path, line: str) -> None:
    if not path.exists():
        path.write_text("tuning,block,metric,value,unit,better,workload\n")
    with path.open("a") as file:
        file.write(f"{line},ticks\n")


def _import(folder: Path, instance: str, name: str) -> None:
    path = folder / f"{name}.csv"
    lines = ["tuning,workload,block,metric,value,unit,better"]
    lines += [
        f"server,{row['load']},1,tick_p99,{row['tick_p99_us']},us,lower"
        for row in rows()
        if row["instance"] == instance
    ]
    path.write_text("\n".join(lines) + "\n")
    words = ("run", "import", str(path), "--name", name, "--baseline", "server")
    done = labctl(folder, *words)
    assert done.exit_code == 0, done.output


def compared(results: Path, a: str, b: str, prices: tuple[str, str]) -> dict[str, Any]:
    words = ("--price", f"A={prices[0]}", "--price", f"B={prices[1]}", "--json")
    done = labctl(results, "compare", a, b, *words)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("instance", BY_HAND)
def test_every_row_of_the_published_table_is_as_by_hand(results: Path, instance: str) -> None:
    other = "again" if instance == BASE else instance
    found = compared(results, BASE, other, (price(BASE), price(instance)))
    by_load = {row["workload"]: row for row in found["per_price"]}
    for load, expected in zip(LOADS, BY_HAND[instance], strict=True):
        assert by_load[load]["estimate"] == pytest.approx(expected, abs=5e-5)
        assert by_load[load]["low"] is None, "one trial has no interval"
    assert found["prices"] == {"a": float(price(BASE)), "b": float(price(instance))}


def test_where_more_is_better_the_ratio_is_the_other_way_round(results: Path) -> None:
    found = compared(results, "slow", "fast", ("1", "3"))
    (row,), (level,) = found["per_price"], found["levels"]
    assert row["estimate"] == pytest.approx(level["estimate"] / 3)
    assert row["low"] == pytest.approx(level["low"] / 3)
    assert row["high"] == pytest.approx(level["high"] / 3)
    assert row["low"] < row["estimate"] < row["high"]
    assert row["confidence"] == level["confidence"]


def test_the_terminal_says_what_a_price_buys(results: Path) -> None:
    words = ("--price", "A=0.34", "--price", "B=0.306")
    said = labctl(results, "compare", BASE, "c6a.2xlarge", *words).output
    assert "Performance per price" in said
    assert "+66 %" in said
    assert "An hour costs 0.34 on A and 0.306 on B" in said
    assert "Performance per price" not in labctl(results, "compare", BASE, "c6a.2xlarge").output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("A=0.34",), "the price of B is missing"),
        (("A=0.34", "A=1"), "--price A=1: expected A=PRICE"),
        (("A=0", "B=1"), "--price A=0: expected A=PRICE"),
        (("A=-1", "B=1"), "expected A=PRICE"),
        (("A=nan", "B=1"), "expected A=PRICE"),
        (("A=inf", "B=1"), "expected A=PRICE"),
        (("C=1", "B=1"), "--price C=1: expected A=PRICE"),
        (("0.34", "B=1"), "--price 0.34: expected A=PRICE"),
    ],
)
def test_a_price_that_is_none_is_refused_with_what_to_give(
    results: Path, given: tuple[str, ...], said: str
) -> None:
    words = [word for one in given for word in ("--price", one)]
    done = labctl(results, "compare", BASE, "c6a.2xlarge", *words)
    assert isinstance(done.exception, UsageError)
    assert said in done.exception.message
    assert "--price" in (done.exception.hint or "")
