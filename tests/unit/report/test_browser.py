"""What a browser makes of the page, of every kind of run: nothing wider than the screen, nothing
asked of a network, nothing unreadable, nothing cut off on paper."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.compare.history import Choice, history
from labctl.analysis.judge import judge
from labctl.analysis.model import Added, Role
from labctl.report.page.history_page import history_page
from labctl.report.page.report_page import page
from labctl.store.records.factor_record import PlannedFactor
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun, RunFolder
from tests.unit.analysis.alter import with_plan
from tests.unit.analysis.test_history import regressed
from tests.unit.example import EXAMPLE
from tests.unit.factor_runs import factorial_run
from tests.unit.records import plan_of, run_of
from tests.unit.report import fleet_pages
from tests.unit.report.conftest import Judged, with_all_that_analysis_can_say
from tests.unit.synthetic import TUNINGS, WORKLOADS, synthetic_run, write_run
from tools.browser import Browser

HOSTILE = "</pre></title><script>alert(1)</script>\"'><img src=http://x.example/ onerror=x>\x1b[2J"
LONG = "a-name-without-any-place-to-break-" * 4

PAPER_PX = 1030
"""An A4 sheet on its side, less its margins of 12 mm."""

CHECKS = (Path(__file__).parent / "page_checks.js").read_text(encoding="utf-8")


def of(run: LoadedRun, tmp: Path) -> str:
    return page(run, judge(run), tmp)


def example(tmp: Path) -> str:
    return of(RunFolder(EXAMPLE).load(), EXAMPLE)


def emulated(tmp: Path) -> str:
    """With all that analysis can say, and what others published."""
    result = {"metric": "ipc", "tuning": "pinned", "against": "baseline", "ratio": 0.8}
    source = {"source": f"Someone, {LONG}", "results": [{**result, "direction": "lower"}]}
    run = with_plan(
        synthetic_run(
            blocks=11,
            boots=3,
            invalid=[("pinned", "sysbench-cpu", 3), ("pinned", "fio-randread", 4)],
        ),
        published=[source],
    )
    judged: Judged = with_all_that_analysis_can_say((run, judge(run)))
    primaries = tuple(item for item in judged[1].comparisons if item.role is Role.PRIMARY)
    more = Added(first=11, last=11, label="exploratory: added later", comparisons=primaries)
    judgement = replace(judged[1], added=more, ending="It ended at its width.")
    return page(run, judgement, tmp)


def with_exits(tmp: Path) -> str:
    reasons = dict.fromkeys(("HLT", "MSR_WRITE", "EPT_VIOLATION", "IO", "CPUID", "X", "Y"), 30.0)
    run = synthetic_run(accelerator="kvm", exit_reasons={**reasons, "HLT": 900.0})
    price = {"kind": "cpuid", "what": "cpuid", "reason": "CPUID", "to_qemu": False, "problem": ""}
    price |= {"ns": 1000.0, "low_ns": 900.0, "high_ns": 1100.0, "exits_per_op": 1.0}
    return of(
        replace(
            run, run=run_of({**run.run.to_json(), "exit_prices": {"at": "", "prices": [price]}})
        ),
        tmp,
    )


def many_arms(tmp: Path) -> str:
    arms = [*TUNINGS, *(f"tuning-{number}" for number in range(32))]
    return of(synthetic_run(tunings=arms, conditions=("quiet", "neighbour")), tmp)


def many_blocks(tmp: Path) -> str:
    """Ten thousand trials."""
    return of(synthetic_run(blocks=625, boots=5), tmp)


def damaged(tmp: Path) -> str:
    folder = write_run(tmp / "damaged", synthetic_run(blocks=2))
    (folder.path / "plan.json").write_text("{")
    (folder.path / "trials" / "0002" / "samples.json").write_text('{"samples": [{"metric": 5}]}')
    shutil.rmtree(folder.path / "xml")
    return of(folder.load(), folder.path)


def one_block(tmp: Path) -> str:
    return of(synthetic_run(blocks=1), tmp)


def no_baseline(tmp: Path) -> str:
    return of(synthetic_run(tunings=["native", "handicap", "pinned"]), tmp)


def all_invalid(tmp: Path) -> str:
    blocks = range(1, 4)
    bad = [(arm, load, block) for arm in TUNINGS for load in WORKLOADS for block in blocks]
    return of(synthetic_run(blocks=3, invalid=bad), tmp)


def nothing_left(tmp: Path) -> str:
    return of(LoadedRun("r", RunRecord(), PlanRecord(), (), ("plan.json is missing",)), tmp)


def hostile(tmp: Path) -> str:
    run = synthetic_run(
        blocks=10,
        tunings=[*TUNINGS, HOSTILE, LONG],
        workloads={HOSTILE: WORKLOADS["sysbench-cpu"], LONG: WORKLOADS["fio-randread"]},
        conditions=(HOSTILE,),
    )
    core = {"core": 1, "cpus": {HOSTILE: [HOSTILE]}}
    said = {
        **{key: HOSTILE for key, value in run.run.to_json().items() if isinstance(value, str)},
        "host": {HOSTILE: HOSTILE, LONG: LONG, "qemu": LONG},
        "pin_plan": {
            "picture": LONG,
            "reasons": [HOSTILE],
            "layout": [{"title": LONG, "cores": [core]}],
        },
        "notes": [LONG],
        "skipped": {HOSTILE: LONG},
        "binaries": {LONG: {HOSTILE: "a" * 64}},
    }
    return of(
        replace(
            run, name=LONG, run=run_of(said), plan=plan_of({**run.plan.to_json(), "title": LONG})
        ),
        tmp,
    )


def with_factors(tmp: Path) -> str:
    return of(factorial_run(), tmp)


def with_hostile_factors(tmp: Path) -> str:
    """A plan may come from anywhere: a name of any length, a level that is markup."""
    run = factorial_run()
    assert run.plan.factorial is not None

    def named(levels: Mapping[str, str]) -> dict[str, str]:
        new = {"policy": LONG}
        return {new.get(name, name): HOSTILE if at == "fifo" else at for name, at in levels.items()}

    plain = run.plan.factorial
    policies = PlannedFactor(levels=("other", HOSTILE, "rr"))
    factorial = replace(
        plain,
        factors={LONG: policies, "processes": plain.factors["processes"]},
        interactions=((LONG, "processes"),),
        cells=tuple(replace(cell, levels=named(cell.levels)) for cell in plain.cells),
    )
    return of(replace(run, plan=run.plan.but(factorial=factorial)), tmp)


def over_runs(tmp: Path) -> str:
    """Of several series one that changed, with what else did."""
    later = {"kernel_release": "6.6", "microcode": LONG}
    found = history(regressed(8, days=14, host=later), Choice(metric="events_per_s"))
    assert any(series.changes for series in found.series)
    return history_page(found)


def over_hostile_runs(tmp: Path) -> str:
    runs = list(regressed(4, days=8, host={"qemu": HOSTILE, "cpu_model": LONG}))
    runs[-1] = replace(runs[-1], name=HOSTILE)
    runs[0] = replace(runs[0], name=LONG)
    found = history(runs, Choice(metric="events_per_s", tuning="pinned"))
    return history_page(replace(found, metric=HOSTILE, left_out=(LONG, HOSTILE)))


def over_one_run(tmp: Path) -> str:
    return history_page(history(regressed(9, days=1), Choice(metric="events_per_s")))


def hostile_fleet(_: Path) -> str:
    return fleet_pages.hostile_fleet(HOSTILE, LONG)


RUNS: dict[str, Callable[[Path], str]] = {
    made.__name__: made
    for made in (
        example,
        emulated,
        with_exits,
        many_arms,
        many_blocks,
        damaged,
        one_block,
        no_baseline,
        all_invalid,
        nothing_left,
        hostile,
        with_factors,
        with_hostile_factors,
        over_runs,
        over_hostile_runs,
        over_one_run,
        fleet_pages.fleet,
        fleet_pages.fleet_of_many,
        fleet_pages.fleet_of_two,
        fleet_pages.fleet_of_none,
        hostile_fleet,
    )
}


@pytest.fixture(scope="module", params=list(RUNS))
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    target = folder / "report.html"
    target.write_text(RUNS[request.param](folder), encoding="utf-8")
    return target


def check(browser: Browser, name: str, *arguments: Any) -> list[str]:
    given = ", ".join(map(repr, arguments))
    found: list[str] = browser.evaluate(f"{CHECKS}\n{name}({given})")
    return found


@pytest.mark.parametrize("width", [360, 1440])
def test_the_page_fits_is_silent_and_readable(browser: Browser, file: Path, width: int) -> None:
    browser.open(file, width=width)
    for folded in (True, False):
        if not folded:
            browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        for dark in (False, True):
            browser.show(dark=dark)
            assert check(browser, "tooFaint", 4.5) == []
        assert check(browser, "tooWide") == []
    assert browser.trouble == []


MATRICES = "[...document.querySelectorAll('table.matrix')]"


@pytest.mark.parametrize("made", [example, emulated, many_arms, hostile])
def test_verdicts_need_no_scrolling_on_a_narrow_screen_and_say_their_workload(
    browser: Browser, tmp_path: Path, made: Callable[[Path], str]
) -> None:
    file = tmp_path / "report.html"
    file.write_text(made(tmp_path), encoding="utf-8")
    browser.open(file, width=360)
    assert browser.evaluate(f"{MATRICES}.length") >= 1
    boxes = f"{MATRICES}.map(t => t.parentElement)"
    assert browser.evaluate(f"{boxes}.filter(e => e.scrollWidth > e.clientWidth).length") == 0
    cells = f"{MATRICES}.flatMap(t => [...t.querySelectorAll('td')])"
    named = f"{cells}.filter(e => e.querySelector('.place').checkVisibility()).length"
    assert browser.evaluate(named) == browser.evaluate(f"{cells}.length") > 0
    assert not browser.evaluate(f"{MATRICES}[0].tHead.checkVisibility()")
    browser.open(file, width=1440)
    assert browser.evaluate(named) == 0
    assert browser.evaluate(f"{MATRICES}[0].tHead.checkVisibility()")


def test_paper_shows_what_is_folded_and_cuts_nothing_off(browser: Browser, file: Path) -> None:
    browser.open(file, width=PAPER_PX, media="print")
    assert check(browser, "folded") == []
    assert check(browser, "cutOff") == []
    assert check(browser, "tooFaint", 4.5) == []
    printed = browser.printed()
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 1
    assert len(printed) > 8_000
    assert browser.trouble == []


def test_the_keyboard_reaches_the_answer_first_and_whatever_scrolls(
    browser: Browser, file: Path
) -> None:
    browser.open(file, width=360)
    browser.press("Tab")
    assert check(browser, "focused") == ["skip", "visible", "outlined"]
    assert check(browser, "unreachable") == []


OVERVIEW = "document.querySelector('figure.overview svg').getBoundingClientRect()"


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1400, 900)])
def test_the_table_under_the_answer_begins_on_the_first_screen(
    browser: Browser, tmp_path: Path, width: int, height: int
) -> None:
    file = tmp_path / "report.html"
    file.write_text(example(tmp_path), encoding="utf-8")
    browser.open(file, width=width)
    table = "document.querySelector('table.arms').getBoundingClientRect()"
    assert browser.evaluate(f"{table}.{'bottom' if width > 1000 else 'top'}") <= height
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(f"{OVERVIEW}.height") > 100


SHOWN = "getComputedStyle(document.activeElement, '::after')"


@pytest.mark.parametrize("width", [390, 1400])
def test_a_word_that_has_the_focus_shows_what_it_means(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    file = tmp_path / "report.html"
    file.write_text(example(tmp_path), encoding="utf-8")
    browser.open(file, width=width)
    word = "document.querySelector('.term[aria-describedby=term-noise-floor]')"
    assert browser.evaluate(f"getComputedStyle({word}, '::after').content") == "none"
    browser.evaluate(f"{word}.focus()")
    assert "control's interval" in browser.evaluate(f"{SHOWN}.content")
    assert browser.evaluate(f"{SHOWN}.position") == "fixed"
    # Read to the end of the sentence by who can't see it: the entry itself is on the page.
    entry = "document.getElementById(document.activeElement.getAttribute('aria-describedby'))"
    assert "control's interval" in browser.evaluate(f"{entry}.textContent")


def test_a_link_into_a_folded_part_opens_it(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(example(tmp_path), encoding="utf-8")
    browser.open(file, width=1400)
    for anchor in ("place-1-every-trial-by-block", "term-noise-floor"):
        target = f"document.getElementById('{anchor}')"
        assert not browser.evaluate(f"{target}.checkVisibility({{contentVisibilityAuto: true}})")
        browser.evaluate(f"location.hash = '{anchor}'")
        assert browser.evaluate(f"{target}.closest('details').open")


BAD = """<!DOCTYPE html><meta charset=utf-8><style>:root { background: #fff }</style>
<p style="color: #999">faint</p>
<div style="width: 3000px">wide</div>
<details><summary>more</summary><p>inside</p></details>
<div style="overflow-x: auto"><div style="width: 2000px">scrolls</div></div>
<script>console.log("spoke")</script><img src="http://127.0.0.1:9/x.png">"""


def test_each_check_can_fail(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "bad.html"
    file.write_text(BAD)
    browser.open(file, width=360)
    assert check(browser, "tooWide") != []
    assert any("faint" in text for text in check(browser, "tooFaint", 4.5))
    assert check(browser, "unreachable") != []
    assert check(browser, "focused") == []
    assert any("Runtime.consoleAPICalled" in text for text in browser.trouble)
    assert any("x.png" in text for text in browser.trouble)
    browser.open(file, width=PAPER_PX, media="print")
    assert check(browser, "folded") != []
    assert check(browser, "cutOff") != []
