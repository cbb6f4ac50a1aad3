"""What a density run's report says: in a terminal, as JSON, and on a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from labctl.analysis.density import judged
from labctl.report.density_words import remarks
from labctl.report.export.json_report import density_json
from labctl.report.page.density_page import density_page
from labctl.report.terminal.density_tables import density_report
from labctl.store.density_record import DensityRecord
from tests.unit.density_records import record
from tests.unit.report.test_browser import HOSTILE, LONG, check
from tools.browser import chromium

NAME = "20261124T100000Z-density-frame-loop"
EIGHT = {"baseline": [2] * 8, "vcpupin": [3, 3, 3, 3, 3, 3, 3, "4+"]}


def shown(of: DensityRecord, width: int = 200) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(density_report(of, NAME, judged(of)))
    return console.export_text()


def paged(of: DensityRecord) -> str:
    return density_page(of, NAME, judged(of))


def test_the_number_its_interval_and_the_verdict_are_said() -> None:
    text = shown(record(EIGHT))
    assert re.search(r"baseline +2 +2 to 2 \(99\.22 %\) +2, 2, 2, 2, 2, 2, 2, 2", text)
    assert re.search(r"vcpupin +3 +3 to 4 or more \(99\.22 %\) +3, .*≥ 4", text)
    assert "vcpupin against baseline: more guests fit under vcpupin than under baseline" in text
    assert "more guests in 8, fewer in 0, as many in 0 blocks; p = 0.0078" in text


def test_each_step_of_the_curve_is_a_row() -> None:
    text = shown(record(EIGHT))
    assert re.search(r"baseline +1 +5\.10 ms +5\.10 ms +8 of 8", text)
    assert re.search(r"baseline +3 +9\.30 ms +9\.20 ms +\+2\.00 ms +0 of 8", text)


def test_one_block_shows_its_number_and_no_interval() -> None:
    text = shown(record({"baseline": [2], "vcpupin": [3]}))
    assert "no interval: 1 block, and at least 6 are needed" in text
    assert "no difference shown: 1 block differed; at least 6 are needed to" in text


def test_a_bounded_number_is_never_said_alone() -> None:
    of = record({"baseline": ["4+"] * 3})
    assert re.search(r"baseline +at least 4", shown(of))
    assert "baseline, blocks 1, 2 and 3: --most ended the search before the limit did" in shown(of)
    assert "baseline: at least 4 guests." in paged(of)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accelerator": "tcg"}, "Guests were emulated (TCG)"),
        ({"status": "interrupted"}, "The run is interrupted: 2 of 2 counts were made."),
        ({"status": "failed", "failure": "no space"}, "The run is failed (no space)"),
        ({"duration_s": 20.0}, "all guests ran at once for less than 90 %"),
    ],
)
def test_what_a_reader_must_know_is_said_everywhere(changes: dict[str, Any], said: str) -> None:
    of = record({"baseline": [2], "vcpupin": [3]}, **changes)
    assert said in shown(of)
    assert said in paged(of)
    found = density_json(of, NAME, "/results/one", judged(of))
    assert any(said in sentence for sentence in found["remarks"])


def test_others_that_took_the_host_are_said() -> None:
    of = record({"baseline": [2]})
    busy = of.steps[0].model_copy(update={"other_cpus": 0.75})
    of = of.model_copy(update={"steps": (busy, *of.steps[1:])})
    assert "Other processes kept up to 0.75 CPUs busy in 1 of 3 steps" in " ".join(
        remarks(of, judged(of))
    )


def test_a_reason_that_quotes_a_command_line_is_cut() -> None:
    of = record({"baseline": [None]})
    long = of.counts[0].model_copy(update={"why": "-device x " * 400})
    of = of.model_copy(update={"counts": (long,)})
    assert max(map(len, remarks(of, judged(of)))) < 500


def test_json_has_the_judgement_and_the_record() -> None:
    of = record(EIGHT)
    found = json.loads(json.dumps(density_json(of, NAME, "/results/one", judged(of))))
    assert found["fitting"][1]["guests"] == {"value": 3, "at_least": False}
    assert found["fitting"][1]["interval"]["high"] == {"value": 4, "at_least": True}
    assert found["tests"][0]["shows_more"] is True
    assert found["curves"]["baseline"][1]["cost_per_guest"] == pytest.approx(0.002)
    assert DensityRecord.model_validate(found["record"]) == of


def test_the_page_draws_the_curve_the_limit_and_every_number() -> None:
    text = paged(record(EIGHT))
    assert text.count('class="line l') == 4
    assert text.count('class="margin"') == 2
    assert "<title>at least 4: 1 of 8</title>" in text
    assert "<title>2: 8 of 8</title>" in text


def test_a_run_without_a_step_has_a_page() -> None:
    of = record({"baseline": [2], "vcpupin": [3]}, steps=(), counts=())
    assert "No step was measured." in paged(of)
    assert "unavailable" in shown(of)


def test_hostile_words_are_words(tmp_path: Path) -> None:
    of = record({HOSTILE: [2], LONG: [3]}, workload=HOSTILE, status=HOSTILE, command=HOSTILE)
    text = paged(of)
    assert "<script" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert "\x1b" not in shown(of)


@pytest.mark.parametrize("width", [390, 1400])
def test_a_browser_finds_nothing_wrong(tmp_path: Path, width: int) -> None:
    file = tmp_path / "density.html"
    file.write_text(paged(record({**EIGHT, LONG: [1] * 8})), encoding="utf-8")
    with chromium(tmp_path) as browser:
        browser.open(file, width=width)
        assert check(browser, "tooWide") == []
        assert check(browser, "tooFaint", 4.5) == []
        assert browser.trouble == []


@pytest.mark.parametrize("value", [0.0, -1.0, 1e300, float("inf"), float("nan")])
def test_a_value_that_no_guest_has_breaks_no_report(value: float) -> None:
    of = record({"baseline": [1] * 6})
    guests = tuple(g.model_copy(update={"value": value}) for g in of.steps[0].guests)
    odd = of.steps[0].model_copy(update={"guests": guests})
    of = of.model_copy(update={"steps": (odd, *of.steps[1:])})
    assert "baseline" in shown(of)
    assert "baseline" in paged(of)


def test_a_record_of_more_blocks_than_a_float_can_count_is_read() -> None:
    assert judged(record({"baseline": [1] * 1100})).fitting[0].typical is not None
