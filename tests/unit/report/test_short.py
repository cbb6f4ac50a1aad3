"""`labctl report` without --full: the answer, the verdicts and what could change them."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from labctl.analysis.answer.words import Reason
from labctl.analysis.judge import judge
from labctl.analysis.model import Judgement
from labctl.analysis.verdicts.table import Verdict
from labctl.report.parts import bare_table, text
from labctl.report.terminal.short import print_short
from labctl.store.run_folder import LoadedRun
from tests.unit.report.conftest import Judged, with_all_that_analysis_can_say
from tests.unit.synthetic import synthetic_run

CHECKS = ("baseline", "control", "handicap")
NINE = tuple(f"tuning-{number}" for number in range(1, 10))


def printed(run: LoadedRun, judgement: Judgement, width: int = 80) -> str:
    out = io.StringIO()
    print_short(Console(file=out, width=width, highlight=False), run, judgement)
    return out.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


def test_two_tunings_take_fifty_lines_and_nine_two_screens() -> None:
    for tunings, most in ((("pinned", "fifo"), 50), (NINE, 110)):
        run = synthetic_run(tunings=[*CHECKS, *tunings])
        text = printed(run, judge(run))
        assert len(text.splitlines()) <= most
        assert [name for name in tunings if name not in text] == []


def test_the_answer_the_next_step_and_the_way_to_the_rest_are_there(judged: Judged) -> None:
    run, judgement = judged
    text = words(printed(run, judgement))
    assert words(judgement.decision.lead) in text
    assert all(words(step.command) in text for step in judgement.decision.next if step.command)
    assert f"labctl report {run.name} --full" in text
    assert all(
        words(f"Warning: {one.partition(' Found: ')[0]}") in text for one in judgement.warnings[:2]
    )
    assert f"and {len(judgement.warnings) - 2} more warning" in text


def test_an_inconclusive_verdict_has_its_reason_beside_it() -> None:
    run = synthetic_run(noise=0.1, effects={})
    text = printed(run, judge(run))
    assert any(str(reason) in text for reason in (Reason.TOO_WIDE, Reason.TOO_FEW_BLOCKS))


@pytest.mark.parametrize(
    ("run", "symbols"),
    [
        (synthetic_run(effects={"control": 1.2}), ["! no verdict because of the A/A control"]),
        (synthetic_run(blocks=2), ["– no verdict"]),
        (synthetic_run(effects={"pinned": 2.0}), ["▲ improves", "? inconclusive"]),
    ],
    ids=["suspended", "demonstration", "improves"],
)
def test_the_symbols_of_the_table_and_no_others_are_explained(
    run: LoadedRun, symbols: list[str]
) -> None:
    text = words(printed(run, judge(run))).partition("The first metric decides: ")[2]
    explained = text.partition(". Other metrics")[0].split(", ")[1:]
    assert explained == symbols


def test_a_verdict_that_its_interval_does_not_show_is_named(judged: Judged) -> None:
    decides = "Holm's procedure, not the interval, decides"
    assert decides not in words(printed(*judged))
    said = words(printed(*with_all_that_analysis_can_say(judged)))
    assert f"{decides} pinned in sysbench-cpu with a noisy neighbour and pinned in" in said


def test_of_many_verdicts_those_without_an_effect_share_a_line() -> None:
    many = [f"tuning-{number}" for number in range(1, 20)]
    run = synthetic_run(tunings=[*CHECKS, *many])
    judgement = judge(run)
    equal = tuple(
        replace(item, verdict=Verdict.EQUIVALENT) if item.verdict else item
        for item in judgement.comparisons
    )
    text = words(printed(run, replace(judgement, comparisons=equal)))
    assert "= equivalent: tuning-1, tuning-2, tuning-3" in text
    assert "and 11 more" in text


def test_columns_without_room_stand_below_each_other() -> None:
    table = bare_table("Arms", "arm", "change", "cost to others", "why")
    cells = ("pinned", "+8.8 % (−7.7 to +28 %)", "neighbour +3.0 %", "interval too wide")
    table.add_row(*map(text, cells))

    def at(width: int) -> str:
        out = io.StringIO()
        Console(file=out, width=width).print(table)
        return out.getvalue()

    assert "pinned  +8.8 % (−7.7 to +28 %)" in at(80)
    assert "  cost to others: neighbour" in at(30)
    for width in (12, 20, 30, 40, 60, 80):
        assert max(map(len, at(width).splitlines())) <= width
    for width in (12, 20, 30):
        assert [cell for cell in cells if joined(cell) not in joined(at(width))] == []


def joined(text: str) -> str:
    return "".join(text.split())
