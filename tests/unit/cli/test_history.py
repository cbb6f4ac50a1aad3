"""`labctl history` as a user calls it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from labctl.base.errors import UsageError
from labctl.cli.compare import history
from labctl.store.jsonfile import write_json
from labctl.store.run_folder import RunFolder
from tests.unit.records import run_of
from tests.unit.synthetic import synthetic_run, write_run

DAYS = 10
CHANGED = 5


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for day in range(DAYS):
        made = synthetic_run(
            seed=day + 1,
            blocks=1,
            tunings=["baseline", "pinned"],
            effects={"pinned": 0.7 if day >= CHANGED else 1.0},
            noise=0.01,
            block_noise=0.01,
            primary_only=True,
        )
        about = {
            "started_at": f"2024-02-{day + 1:02d}T00:00:00+00:00",
            "host": {"cpu_model": "A", "qemu": "9.0" if day >= CHANGED else "8.2"},
        }
        write_run(
            folder / f"run-{day:02d}", replace(made, run=run_of({**made.run.to_json(), **about}))
        )
    return folder


def call(results: Path, *arguments: str) -> str:
    words = ["--results", str(results), *arguments]
    done = CliRunner().invoke(history, words, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


ONE = ("--metric", "events_per_s", "--tuning", "pinned")


def test_a_change_is_marked_under_its_run_with_what_changed_beside_it(results: Path) -> None:
    output = call(results, *ONE)
    lines = output.splitlines()
    assert max(map(len, lines)) <= 80
    bars = next(line for line in lines if "█" in line)
    marks = lines[lines.index(bars) + 1]
    assert len(bars.strip()) == DAYS
    assert marks.index("▲") - bars.index(bars.strip()) == CHANGED
    assert f"from run-{CHANGED:02d} on" in output
    assert "worse" in output
    assert "QEMU: 8.2 → 9.0" in output


def test_json_has_every_run_and_every_change(results: Path) -> None:
    found = json.loads(call(results, *ONE, "--json"))
    (series,) = found["series"]
    assert len(series["points"]) == DAYS
    (change,) = series["changes"]
    assert change["run"] == f"run-{CHANGED:02d}"
    assert change["facts"] == [
        {"name": "QEMU", "before": "8.2", "after": "9.0", "run": change["run"], "distance": 0}
    ]


def test_a_metric_that_nobody_measured_is_refused_with_those_that_were(results: Path) -> None:
    with pytest.raises(UsageError, match="No run has the metric 'latency'.*events_per_s, iops"):
        call(results, "--metric", "latency")
    with pytest.raises(UsageError, match="No runs found"):
        call(results / "none", *ONE)
    with pytest.raises(click.MissingParameter):
        call(results)


def test_a_run_that_cannot_be_read_is_named_and_the_others_are_drawn(
    results: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "results"
    mine.mkdir()
    for name in ("run-00", "run-01"):
        (mine / name).symlink_to(results / name)
    write_json(RunFolder.create(mine, "run-02").path / "run.json", {"schema": 99})
    output = " ".join(call(mine, *ONE).split())
    assert "2 runs" in output
    assert "run-02: " in output
    assert "newer labctl" in output


def test_a_page_has_the_picture_every_run_and_what_changed(results: Path, tmp_path: Path) -> None:
    file = tmp_path / "history.html"
    assert call(results, *ONE, "--html", str(file)) == f"Wrote {file}\n"
    text = file.read_text(encoding="utf-8")
    assert "1 of 1 series changed." in text
    assert text.count('scope="row">run-') == DAYS
    assert len(re.findall(r"M[\d.]+ [\d.]+h0", text)) == DAYS
    assert re.search(r'class="boot" d="M50\.0 0V', text)
    for said in ("QEMU", "8.2", "9.0", f"from run-{CHANGED:02d} on"):
        assert said in text
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_a_page_and_json_can_be_had_at_once(results: Path, tmp_path: Path) -> None:
    file = tmp_path / "history.html"
    words = ["--results", str(results), *ONE, "--json", "--html", str(file)]
    done = CliRunner().invoke(history, words, standalone_mode=False)
    assert json.loads(done.stdout)["metric"] == "events_per_s"
    assert "Wrote" in done.stderr
    assert file.is_file()


def test_a_page_that_cannot_be_written_is_refused_before_any_run_is_read(results: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        call(results, *ONE, "--html", str(results / "none" / "history.html"))


def test_no_page_is_written_of_nothing(results: Path, tmp_path: Path) -> None:
    file = tmp_path / "history.html"
    with pytest.raises(UsageError, match="No run has"):
        call(results, "--metric", "latency", "--html", str(file))
    assert not file.exists()
