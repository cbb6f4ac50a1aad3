from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from labctl.analysis.answer.words import shown
from labctl.analysis.judge import judge
from labctl.analysis.model import (
    Added,
    Diagnostic,
    DiagnosticKind,
    EffectKind,
    Judgement,
    MissingMetric,
    Role,
)
from labctl.analysis.verdicts.table import Verdict
from labctl.base.units import Better, Unit
from labctl.report.terminal.tables import print_report
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialFolder
from labctl.trace import files
from tests.unit.records import plan_of, run_of
from tests.unit.report.conftest import Judged, with_all_that_analysis_can_say
from tests.unit.synthetic import synthetic_run


def printed(run: LoadedRun, judgement: Judgement, html: Path | None = None) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=80, highlight=False), run, judgement, html=html)
    return out.getvalue()


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_no_line_is_wider_than_80_columns(judged: Judged) -> None:
    assert max(map(len, printed(*judged).splitlines())) <= 80


def test_the_answer_and_the_warnings_come_before_the_first_table(judged: Judged) -> None:
    text = one_line(printed(*judged))
    first_table = text.index("Typical values")
    decision = judged[1].decision
    lines = (*decision.conditions, *decision.reasons)
    said = [decision.lead, *(" ".join(line) for line in lines)]
    places = [text.index(one_line(line)) for line in said]
    assert places == sorted(places)
    assert places[-1] < first_table
    for warning in judged[1].warnings:
        assert text.index(one_line(f"Warning: {warning}")) < first_table


def test_invalid_attempts_are_counted_by_arm() -> None:
    bad = [("pinned", "sysbench-cpu", block) for block in range(1, 11)]
    run = synthetic_run(tunings=["baseline", "control", "pinned"], repeated=bad)
    text = printed(run, judge(run))
    table = one_line(text[text.index("Invalid attempts by arm") :])
    assert "baseline 0 of 20 control 0 of 20 pinned 10 of 30 vCPU 0 ran on CPUs 0-1" in table
    assert "The arms differ in invalid attempts" in one_line(text)
    calm = synthetic_run()
    assert "Invalid attempts" not in printed(calm, judge(calm))


def test_a_traced_run_says_where_its_time_lines_are_as_long_as_it_has_them(
    judged: Judged, tmp_path: Path
) -> None:
    run, judgement = judged
    traced = replace(run, plan=plan_of({**run.plan.to_json(), "collect": "trace"}))
    folder = TrialFolder(tmp_path)
    there = replace(traced, trials=(replace(run.trials[0], folder=folder), *run.trials[1:]))
    assert "labctl timeline" not in printed(there, judgement)
    folder.write_raw(files.HOST, b"PERFILE2")
    assert f"labctl timeline {run.name}" in printed(there, judgement)
    assert "labctl timeline" not in printed(run, judgement)


def test_every_arm_has_its_values_and_every_guest_its_change(judged: Judged) -> None:
    place = printed(*judged).split("== ")[1]
    levels, _, changes = place.partition("Change against baseline")
    for arm in ("native", "native+pinned", "native+fifo", "baseline", "control", "handicap"):
        assert f"\n{arm} " in levels
    for arm in ("control", "handicap", "pinned", "pinned+fifo"):
        assert f"\n{arm} " in changes
    assert "vs native+pinned" in changes
    assert "vs native+fifo" in changes


def test_the_verdict_stands_in_the_tunings_row(judged: Judged) -> None:
    changes = printed(*judged).split("Change against baseline")[1]
    row = next(line for line in changes.splitlines() if line.startswith("pinned+fifo "))
    assert "improves" in row
    assert "×2.7" in row


def test_what_is_missing_has_a_number_and_the_reason_stands_below_once(judged: Judged) -> None:
    text = printed(*judged)
    assert "n/a [1]" in text
    assert text.count("[2] VM exits: emulated: no VM exits") == 1


def test_the_verdicts_come_first_with_who_else_pays(judged: Judged) -> None:
    text = printed(*judged)
    verdicts = text[: text.index("== ")].partition("Verdicts: change of the primary metric")[2]
    _, heading, _, *lines = verdicts.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("pinned+fifo "))
    after = (at for at, line in enumerate(lines) if at > first and line[:1].strip())
    row = lines[first : next(after)]
    assert "▲ improves" in row[0]
    assert "×2.73" in row[0]
    pays = one_line(" ".join(line[heading.index("cost to others") :] for line in row))
    assert re.fullmatch(
        r"neighbour −\d+ % host CPU \+\S+ % work per host CPU-second ×2\.\d\d", pays
    )


def test_each_place_has_the_bill_of_each_tuning(judged: Judged) -> None:
    for place in printed(*judged).split("== ")[1:]:
        head, _, bill = place.partition("Cost to others: change against baseline")[2].partition(
            "pinned "
        )
        for who in ("guest", "neighbour", "host CPU"):
            assert who in head
        row = bill.partition("pinned+fifo ")[2].splitlines()[0]
        assert "×2.7" in row
        assert "−" in row


def test_diagnostics_precision_holm_and_blocks_left_out_are_said(judged: Judged) -> None:
    text = printed(*with_all_that_analysis_can_say(judged))
    assert max(map(len, text.splitlines())) <= 80
    said = one_line(text)
    assert "Drift: its effect grows from block to block" in said
    assert "Boots differ more than blocks do." in said
    assert "(by Holm)" in said
    assert "By Holm: Holm's step-down procedure decides the verdict of pinned" in said
    assert "pinned: blocks 4 and 5 are missing: one side has no valid value" in said


def test_the_ratio_to_native_is_named_for_what_it_is(judged: Judged) -> None:
    run, judgement = judged
    assert "Change against native (emulation, not virtualization)" in printed(run, judgement)
    kvm = replace(
        run, run=run_of({**run.run.to_json(), "accelerator": "kvm", "same_kernel": False})
    )
    assert "Change against native (stack difference: two kernels)" in printed(kvm, judgement)
    same = replace(run, run=run_of({**kvm.run.to_json(), "same_kernel": True}))
    assert "Change against native (virtualization overhead)" in printed(same, judgement)


def test_wide_differences_and_long_names_still_fit(judged: Judged) -> None:
    run, judgement = judged
    exits = replace(
        judgement.comparisons[0],
        tuning="pinned",
        against="native+pinned",
        metric="exits",
        unit=Unit.PER_SECOND,
        better=Better.NEITHER,
        kind=EffectKind.DIFFERENCE,
        estimate=123456.0,
        low=-100234.0,
        high=320_456.0,
        role=Role.EXPLORATORY,
        verdict=None,
    )
    renamed = [
        replace(item, tuning="pinned-emulator-iothread-fifo") if item.tuning == "pinned" else item
        for item in (*judgement.comparisons, exits)
    ]
    text = printed(run, replace(judgement, comparisons=tuple(renamed)))
    assert max(map(len, text.splitlines())) <= 80
    assert "+123,000/s" in text


def test_an_interval_that_is_too_wide_breaks_between_its_ends(judged: Judged) -> None:
    run, judgement = judged
    wide = tuple(
        replace(item, estimate=3e3, low=1230.0, high=123e3) for item in judgement.comparisons
    )
    rows = printed(run, replace(judgement, comparisons=wide))
    assert "×1,230 to 123,000" not in rows
    assert "×1,230 to " in rows
    assert "123,000 " in rows


def test_a_run_with_few_blocks_says_no_verdict() -> None:
    run = synthetic_run(blocks=2)
    text = printed(run, judge(run))
    assert "no verdict" in text
    assert "improves" not in text.split("== ")[1]


def test_an_inconclusive_tuning_says_what_it_would_take(judged: Judged) -> None:
    run, judgement = judged
    comparisons = tuple(
        replace(
            item,
            verdict=Verdict.INCONCLUSIVE,
            smallest_visible=0.12,
            blocks_needed=48,
            low=0.9,
            high=1.3,
        )
        if item.role is Role.PRIMARY and item.tuning == "pinned"
        else item
        for item in judgement.comparisons
    )
    text = one_line(printed(run, replace(judgement, comparisons=comparisons)))
    assert (
        "minimum detectable effect: 12 %; detecting 5 % needs 48 blocks. Lower the noise "
        "first ('labctl doctor' names its sources), or plan longer trials."
    ) in text


def test_blocks_that_a_tuning_lacks_are_named(judged: Judged) -> None:
    run, judgement = judged
    comparisons = tuple(
        replace(item, left_out=(3, 7))
        if item.role is Role.PRIMARY and item.tuning == "pinned"
        else item
        for item in judgement.comparisons
    )
    text = one_line(printed(run, replace(judgement, comparisons=comparisons)))
    assert "pinned: blocks 3 and 7 are missing: one side has no valid value" in text


def test_where_the_page_lies_is_said_last(judged: Judged) -> None:
    text = printed(*judged, html=Path("results/example/report.html"))
    assert text.rstrip().endswith("results/example/report.html")


@pytest.mark.parametrize("hostile", ["[bold red]x[/]", "\x1b[2J", "[/not-open]"])
def test_what_a_guest_says_is_neither_markup_nor_an_escape_sequence(
    judged: Judged, hostile: str
) -> None:
    run, judgement = judged
    missing = MissingMetric(
        metric="exits",
        reason=hostile,
        trials=1,
        tunings=("baseline",),
        workloads=("sysbench-cpu",),
    )
    text = printed(run, replace(judgement, unavailable=(missing,), warnings=(hostile,)))
    assert hostile.replace("\x1b", "�") in text
    assert "\x1b" not in text


def diagnostics_of(workload: str, count: int) -> tuple[Diagnostic, ...]:
    return tuple(
        Diagnostic(
            kind=DiagnosticKind.DRIFT,
            tuning="pinned",
            workload=workload,
            condition="neighbour",
            metric="events_per_s",
            sentence=f"Finding number {number}.",
            grave=number % 2 == 0,
        )
        for number in range(count)
    )


def test_diagnostics_stand_below_their_own_table_the_grave_first(judged: Judged) -> None:
    run, judgement = judged
    text = printed(run, replace(judgement, diagnostics=diagnostics_of("sysbench-cpu", 3)))
    sysbench, fio = (
        next(part for part in text.split("== ") if part.startswith(place))
        for place in ("sysbench-cpu", "fio-randread")
    )
    assert "Finding number" not in fio
    places = [sysbench.index(f"Drift: Finding number {number}.") for number in (0, 2, 1)]
    assert places == sorted(places)


def test_many_diagnostics_take_few_lines_and_say_where_the_rest_is(judged: Judged) -> None:
    run, judgement = judged
    text = one_line(printed(run, replace(judgement, diagnostics=diagnostics_of("sysbench-cpu", 9))))
    assert text.count("Finding number") == 4
    assert f"5 more diagnostics: see 'labctl report {run.name} --json'" in text


def test_the_answer_writes_a_change_as_the_table_does(judged: Judged) -> None:
    run, judgement = judged
    best = next(c for c in judgement.comparisons if c.verdict is Verdict.IMPROVES)
    assert f"{shown(best).estimate}, 95 % CI {shown(best).interval}" in judgement.answer
    rows = printed(run, judgement).split("Change against baseline")[1]
    assert shown(best).estimate in rows
    assert shown(best).interval.split(" to ")[0] in rows  # a long interval takes two lines


def test_blocks_that_decide_nothing_have_a_table_of_their_own_at_the_end(judged: Judged) -> None:
    run, judgement = judged
    label = "exploratory: blocks 11 to 12 were added after the result was known"
    some = tuple(c for c in judgement.comparisons if c.role is Role.PRIMARY)
    added = Added(first=11, last=12, label=label, comparisons=some)
    said = "The run ended after 10 of up to 12 blocks: it was narrow."
    text = printed(run, replace(judgement, added=added, ending=said))
    assert said in one_line(text.split("Typical values")[0])
    apart = one_line(text.split("Over all 12 blocks")[1])
    assert label in apart
    assert shown(some[0]).estimate in apart
    assert max(map(len, text.splitlines())) <= 80


def test_calibrated_ipc_stands_with_what_it_counts_and_the_bound_of_its_error() -> None:
    run = synthetic_run()
    row = {"workload": "sysbench-cpu", "bound": 3.2e-5, "second_method": "lackey"}
    bounded = replace(run, run=run_of({**run.run.to_json(), "calibration": [row]}))
    said = one_line(printed(bounded, judge(bounded)))
    assert "user code and uses cycles of the reference clock" in said
    assert "callgrind's counts on both sides and lackey's: 0.0032 %." in said
    assert "callgrind" not in one_line(printed(run, judge(run)))
