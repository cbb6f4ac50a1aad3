"""The page of a time line: what it says and holds is what the time line says, in whatever words a
guest has for its tasks, and it stays small."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from html import unescape
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from labctl.report.timeline import timeline_words as words
from labctl.report.timeline.exports import timeline_json
from labctl.report.timeline.timeline_page import (
    CATEGORIES,
    MEASURED,
    WIDTH,
    About,
    packed,
    page,
    shares,
    spans_of,
)
from labctl.trace.coverage import Coverage, Own
from labctl.trace.model import Gap
from labctl.trace.timeline.lanes import Lane, Late, State, Suspect, Timeline
from tests.unit.trace import test_nested as schedule
from tests.unit.trace.recorded import PREEMPTED
from tools.bench.timelines import lane, made_up

ABOUT = About(
    run="r1",
    trial=12,
    attempt=1,
    title="pinned, cyclictest with a noisy neighbour",
    facts=(("block", "3"),),
    command="labctl timeline r1 12",
)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u202e'\""
MS = 1_000_000


def late(at_ms: float, latency: int, host: int, **changes: Any) -> Late:
    whole = Late(
        at_ns=round(at_ms * MS),
        vcpu=0,
        task="cyclictest",
        latency_ns=latency,
        host_ns=host,
        exit_ns=0,
        queue_ns=0,
        other_ns=latency - host,
        culprit="stress-ng (host)",
        behind_ns={"stress-ng": host} if host else {},
    )
    return replace(whole, **changes)


def small() -> Timeline:
    """20 ms: the vCPU runs, waits from 4 to 9 ms for a CPU that stress-ng has, runs, and halts."""
    host = lane(
        "vCPU 0",
        "host",
        0,
        [
            (0, 4 * MS, State.GUEST, ""),
            (4 * MS, 9 * MS, State.PREEMPTED, "stress-ng"),
            (9 * MS, 10 * MS, State.EXIT, "MSR_WRITE"),
            (12 * MS, 20 * MS, State.HALTED, ""),
        ],
    )
    guest = lane(
        "CPU 0",
        "guest",
        0,
        [(0, 10 * MS, State.TASK, "cyclictest"), (10 * MS, 20 * MS, State.TASK, "kworker/0:1")],
    )
    return Timeline(
        start_ns=0,
        end_ns=20 * MS,
        lanes=(guest, host),
        late=(late(4, 5 * MS, 4 * MS), late(15, 1 * MS, 0, culprit="")),
        suspects=(
            Suspect(kind="double scheduling", vcpu=0, start_ns=4 * MS, end_ns=9 * MS, text="seen"),
        ),
        gaps=(Gap(cpu=0, start_ns=10 * MS, end_ns=12 * MS, count=77),),
        clock_error_ns=35_000,
        figures={"double_scheduling_s": 0.005, "wakeups": 40, "vcpu0_preempted_share": 0.25},
        problems=("the guest's trace ends early",),
    )


def facts(html: str) -> Any:
    found = re.search(r'<script type="application/json" id="facts">(.*?)</script>', html, re.S)
    assert found
    return json.loads(found[1])


def unpacked(data: str, counts: tuple[int, ...]) -> list[dict[str, NDArray[np.int64]]]:
    """As the page's script does it."""
    columns = np.frombuffer(gzip.decompress(base64.b64decode(data)), dtype=np.uint8)
    at = 0

    def numbers(count: int, width: int) -> NDArray[np.int64]:
        nonlocal at
        planes = columns[at : at + count * width].reshape(width, count).astype(np.int64)
        at += count * width
        return sum((plane << (8 * n) for n, plane in enumerate(planes)), np.zeros(count, np.int64))

    lanes = []
    for count in counts:
        before, length, detail = numbers(count, 6), numbers(count, 6), numbers(count, 3)
        category = numbers(count, 1)
        end = np.cumsum(before + length)
        lanes.append({"start": end - length, "end": end, "detail": detail, "category": category})
    assert at == len(columns)
    return lanes


def test_the_spans_in_the_page_are_those_of_the_lanes() -> None:
    timeline = made_up(seconds=0.5, vcpus=2)
    spans = spans_of(timeline)
    data = packed(spans)
    assert data.grain_ns == 0
    for one, found in zip(spans, unpacked(data.data, data.counts), strict=True):
        assert np.array_equal(found["start"] + timeline.start_ns, one.lane.start_ns)
        assert np.array_equal(found["end"] + timeline.start_ns, one.lane.end_ns)
        assert np.array_equal(found["detail"], one.lane.detail)
        states = np.where(
            found["category"] == MEASURED, list(State).index(State.TASK), found["category"]
        )
        assert np.array_equal(states, one.lane.state)


def test_lanes_stand_by_vcpu_the_host_above_the_guest() -> None:
    found = facts(page(made_up(seconds=0.1), ABOUT))["lanes"]
    assert [(one["vcpu"], one["side"]) for one in found] == [
        (0, "host"),
        (0, "guest"),
        (1, "host"),
        (1, "guest"),
    ]


def test_the_task_whose_wake_ups_are_measured_is_told_from_others() -> None:
    guest = spans_of(small())[1]
    task = list(State).index(State.TASK)
    assert guest.category.tolist() == [MEASURED, task]


def test_spans_are_cut_to_the_window() -> None:
    cut = replace(small(), start_ns=5 * MS, end_ns=9 * MS)
    host = spans_of(cut)[0]
    assert host.start.tolist() == [0]
    assert host.end.tolist() == [4 * MS]


def test_the_lead_says_where_late_wake_ups_waited_and_who_had_the_cpu() -> None:
    lead, worst = words.answer(small())
    assert lead == (
        "Of the waiting time of the slowest 5 % of wake-ups, 67 % was waiting for a host CPU "
        "(100 % of that behind stress-ng), 33 % for other reasons."
    )
    assert "2 of 40 wake-ups" in worst
    assert "5.00 ms late, 4.000 ms into" in worst
    assert "80 % was waiting for a host CPU" in worst


def test_the_lead_says_how_much_of_the_waiting_was_behind_whom() -> None:
    one = late(1, 4 * MS, 4 * MS, behind_ns={"hog": 3 * MS, "sh": MS})
    two = late(6, 6 * MS, 6 * MS, behind_ns={"sh": 5_100_000, "kworker/0:1": 900_000})
    lead, worst = words.answer(replace(small(), late=(one, two)))
    assert "100 % was waiting for a host CPU (61 % of that behind sh, 30 % behind hog)." in lead
    assert "(85 % of that behind sh, 15 % behind kworker/0:1)" in worst


def test_shares_of_all_late_wake_ups_stand_where_not_all_are_listed() -> None:
    told = {"late_host_share": 0.5, "late_exit_share": 0.25, "late_queue_share": 0.25}
    figures = {**told, "late_other_share": 0.0, "wakeups": 60_000, "late_wakeups": 3_000}
    lead, rest = words.answer(replace(small(), figures=figures))
    assert "50 % was waiting for a host CPU" in lead
    assert "25 % in VM exits" in lead
    assert "for other reasons" not in lead
    assert "3,000 of 60,000 wake-ups" in rest


def test_a_part_that_cannot_be_told_of_does_not_make_the_listed_ones_all() -> None:
    # Under emulation there are no exits to have a share.
    figures = {"late_host_share": 0.5, "late_queue_share": 0.25, "late_other_share": 0.25}
    lead, _ = words.answer(replace(small(), figures=figures))
    assert "50 % was waiting for a host CPU" in lead


def natively(*, seen: int, unseen: int, unseen_ns: int = 0, own_us: int | None = None) -> Timeline:
    """What a native trace of some wake-ups says, the worst of which came 2.06 ms late."""
    worst = 2_060_000
    own = None
    if own_us is not None:
        own = Own(program="cyclictest", wakeups=seen + unseen, worst_ns=own_us * 1000)
    tasks = lane("CPU 0", "host", 0, [(0, 20 * MS, State.TASK, "cyclictest")])
    whole = {"wakeups": seen, "wakeups_unseen": unseen, "late_wakeups": 1}
    return Timeline(
        start_ns=0,
        end_ns=20 * MS,
        lanes=(tasks,),
        late=(late(4, worst, 0, queue_ns=worst, other_ns=0, culprit="sh (task)"),),
        coverage=Coverage(
            seen=seen,
            inferred=0,
            unseen=unseen,
            unseen_ns=unseen_ns,
            worst_ns=worst,
            until_ns=worst + 5_000,
            own=own,
        ),
        figures=whole,
    )


def test_of_too_few_wake_ups_nothing_is_said_but_of_how_many_that_is() -> None:
    partly = natively(seen=2453, unseen=3534, own_us=7210)
    lead, worst, coverage = words.answer(partly)
    assert lead == (
        "Unknown what the slowest 5 % of wake-ups waited for: the trace shows 2,453 of 5,987 "
        "wake-ups (40.9 %), and the slowest may be among the others."
    )
    assert "1 of 2,453 wake-ups that were seen." in worst
    assert "The worst that was seen came 2.06 ms late" in worst
    assert coverage == (
        "The trace shows 2,453 of 5,987 wake-ups (40.9 %). cyclictest itself measured a latency "
        "of 7.21 ms, which none of the recorded wake-ups explains."
    )
    html = page(partly, ABOUT)
    assert "<dt>Wake-ups seen</dt><dd>2,453 of 5,987</dd>" in html
    assert "<dt>The worst seen</dt><dd>2.06 ms</dd>" in html
    assert "These are the slowest of those that were seen; others may be slower." in html
    for told in (lead, coverage):
        assert told in unescape(html)
    found = timeline_json(partly, ABOUT)
    assert found["late_shares"] == {}
    assert found["coverage"] == {
        "seen": 2453,
        "inferred": 0,
        "unseen": 3534,
        "unseen_s": 0.0,
        "is_enough": False,
        "worst_seen_s": 0.00206,
        "own_wakeups": 5987,
        "own_worst_s": 0.00721,
        "lacks_worst": True,
    }


def test_of_all_wake_ups_the_worst_is_the_worst() -> None:
    whole = natively(seen=5987, unseen=0, own_us=2063)
    exact = {"queue": (1.0, 1.0), "other": (0.0, 0.0)}
    shares = {"late_queue_share": 1.0, "late_other_share": 0.0}
    whole = replace(whole, late_bounds=exact, figures={**whole.figures, **shares})
    lead, worst, coverage = words.answer(whole)
    assert lead.endswith("wake-ups, 100 % was behind other tasks.")
    assert "1 of 5,987 wake-ups." in worst
    assert "The worst came 2.06 ms late" in worst
    assert coverage == "The trace shows 5,987 of 5,987 wake-ups."
    html = page(whole, ABOUT)
    assert "<dt>The worst</dt>" in html
    assert "others may have been slower" not in html
    assert timeline_json(whole, ABOUT)["late_shares"] == {
        "host": 0.0,
        "exit": 0.0,
        "queue": 1.0,
        "other": 0.0,
    }


def test_a_share_that_is_known_between_bounds_is_told_with_both() -> None:
    nearly = natively(seen=5980, unseen=7, unseen_ns=100_000)
    bounds = {"queue": (0.85, 0.91), "other": (0.09, 0.15)}
    shares = {"late_queue_share": 0.9, "late_other_share": 0.1}
    nearly = replace(nearly, late_bounds=bounds, figures={**nearly.figures, **shares})
    lead, worst, coverage = words.answer(nearly)
    assert lead.endswith("85 to 91 % was behind other tasks, 9 to 15 % for other reasons.")
    assert "The worst that was seen came" in worst
    assert coverage == "The trace shows 5,980 of 5,987 wake-ups (99.8 %)."
    found = timeline_json(nearly, ABOUT)
    assert found["late_share_bounds"] == {"queue": [0.85, 0.91], "other": [0.09, 0.15]}
    assert found["late_shares"]["queue"] == 0.9


@pytest.mark.parametrize("unseen", [7, 0], ids=["some unseen", "all seen, some inferred"])
def test_shares_between_bounds_that_are_far_apart_are_unknown(unseen: int) -> None:
    vague = natively(seen=5987 - unseen, unseen=unseen, unseen_ns=unseen * 3 * MS)
    vague = replace(vague, late_bounds={"queue": (0.2, 0.9), "other": (0.1, 0.8)})
    lead, *_ = words.answer(vague)
    assert "the trace does not show more than a tenth of that time" in lead
    assert timeline_json(vague, ABOUT)["late_shares"] == {}


def test_a_trace_that_tells_of_no_wake_up_of_many_does_not_say_that_none_was_late() -> None:
    none = replace(natively(seen=0, unseen=600), late=(), figures={})
    lead, coverage = words.answer(none)
    assert "waited for: the trace shows 0 of 600 wake-ups (0.0 %)" in lead
    assert coverage == "The trace shows 0 of 600 wake-ups (0.0 %)."
    assert "0 of 600" in page(none, ABOUT)


def test_the_guests_side_alone_gives_no_share_of_any_cause() -> None:
    guests = tuple(one for one in small().lanes if one.side == "guest")
    blind = replace(small(), lanes=guests)
    lead, worst = words.answer(blind)
    assert lead.startswith("Without the host's side")
    assert "%" not in lead + worst
    assert "5.00 ms late, 4.000 ms into" in worst
    assert words.late_shares(blind) == {}
    assert "<td>unknown</td>" in page(blind, ABOUT)
    none_lost = replace(blind, gaps=())
    assert "<dt>Lost events</dt><dd>guest 0, host unknown</dd>" in page(none_lost, ABOUT)


def test_what_a_guests_recorder_lost_is_counted_and_listed() -> None:
    lost = replace(small(), guest_gaps=(Gap(cpu=0, start_ns=3 * MS, end_ns=4 * MS, count=5),))
    html = page(lost, ABOUT)
    assert "<dt>Lost events</dt><dd>82</dd>" in html
    assert '<td class="number">4.000 ms</td><td>guest</td><td>0</td><td>5</td>' in html
    found = timeline_json(lost, ABOUT)["lost_events"]
    assert [(one["side"], one["count"]) for one in found] == [("host", 77), ("guest", 5)]


def test_a_trace_without_late_wake_ups_says_so() -> None:
    none = replace(small(), late=(), figures={})
    assert words.answer(none) == ("This trace has no late wake-ups.",)
    assert "This trace has no late wake-ups." in page(none, ABOUT)


def test_without_the_guests_side_nothing_is_said_of_late_wake_ups() -> None:
    lanes = tuple(lane for lane in small().lanes if lane.side == "host")
    blind = replace(small(), lanes=lanes, late=(), figures={})
    (said,) = words.answer(blind)
    assert said == "Late wake-ups are unknown without the guest's side of the trace."


def test_without_late_wake_ups_the_lead_says_how_long_vcpus_waited() -> None:
    figures = {"vcpu0_preempted_share": 0.25, "vcpu1_preempted_share": 0.5, "vcpu1_exit_share": 1}
    (lead,) = words.answer(replace(small(), late=(), figures=figures))
    assert lead.endswith("Its vCPUs waited for a host CPU for 25.0 % to 50.0 % of the time.")


def test_what_is_unknown_of_a_vcpu_may_have_been_waiting() -> None:
    figures = {"vcpu0_preempted_share": 0.25, "vcpu0_unknown_share": 0.3}
    (lead,) = words.answer(replace(small(), late=(), figures=figures))
    assert lead.endswith("Its vCPUs waited for a host CPU for 25.0 % to 55.0 % of the time.")


def test_the_page_has_the_numbers_of_the_time_line() -> None:
    html = page(small(), ABOUT)
    text = unescape(re.sub(r"(\s*<[^>]+>\s*)+", " ", html.split("<main")[1].split("<script")[0]))
    for said in (
        "± 35.0 µs",
        "vCPU 0 25.0 %",
        "double scheduling 5.00 ms",
        "wakeups 40",
        "the guest's trace ends early",
        "5.00 ms",
        "host 4.00 ms, other 1.00 ms",
        "stress-ng (host)",
        "double scheduling",
        "labctl timeline r1 12",
    ):
        assert said in text, said
    found = facts(html)
    assert [one["latency"] for one in found["late"]] == [5 * MS, 1 * MS]
    assert found["late"][0]["parts"] == [4 * MS, 0, 0, 1 * MS]
    assert found["late"][0]["end"] == 9 * MS
    assert found["suspects"][0]["at"] == 4 * MS
    assert found["gaps"] == [{"at": 10 * MS, "end": 12 * MS, "count": 77}]
    assert found["clock_error"] == 35_000


def test_a_native_trial_is_told_of_without_a_guest() -> None:
    cpu = lane("CPU 0", "host", 0, [(0, 20 * MS, State.TASK, "cyclictest")])
    waited = late(4, MS, 0, queue_ns=MS, other_ns=0)
    timeline = Timeline(start_ns=0, end_ns=20 * MS, lanes=(cpu,), late=(waited,))
    html = page(timeline, ABOUT)
    assert "ran natively" in html
    assert "100 % was behind other tasks." in html
    assert "of the guest" not in html
    assert "guest.perf.data" not in html
    assert "Two schedulers" not in html
    assert facts(html)["lanes"][0]["title"] == "CPU 0"


def test_gaps_that_overlap_are_one_in_the_picture() -> None:
    gaps = (
        Gap(cpu=0, start_ns=5 * MS, end_ns=7 * MS, count=1),
        Gap(cpu=1, start_ns=6 * MS, end_ns=8 * MS, count=2),
        Gap(cpu=0, start_ns=9 * MS, end_ns=10 * MS, count=4),
    )
    found = facts(page(replace(small(), gaps=gaps), ABOUT))["gaps"]
    assert [(one["at"], one["end"], one["count"]) for one in found] == [
        (5 * MS, 8 * MS, 3),
        (9 * MS, 10 * MS, 4),
    ]


def test_a_clock_error_that_is_large_beside_what_is_told_is_warned_of() -> None:
    assert "with care" not in words.clock_words(small())
    assert "with care" in words.clock_words(replace(small(), clock_error_ns=2 * MS))
    assert words.clock_words(replace(small(), clock_error_ns=None)) == ""


def test_what_a_hostile_guest_names_its_tasks_is_text() -> None:
    base = small()
    lanes = tuple(
        replace(one, title=HOSTILE, details=tuple(HOSTILE for _ in one.details))
        for one in base.lanes
    )
    html = page(
        replace(
            base,
            lanes=lanes,
            late=tuple(replace(one, task=HOSTILE, culprit=HOSTILE) for one in base.late),
            suspects=tuple(replace(one, kind=HOSTILE, text=HOSTILE) for one in base.suspects),
            figures={HOSTILE: 1.0},
            problems=(HOSTILE,),
        ),
        replace(ABOUT, run=HOSTILE, title=HOSTILE, facts=((HOSTILE, HOSTILE),), command=HOSTILE),
    )
    assert html.count("<script") == 3
    assert html.count("</script>") == 3
    assert "<img" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "\\u202e" not in html
    assert facts(html)["late"][0]["task"].startswith("</script>")


def test_the_page_allows_its_own_script_and_nothing_else() -> None:
    html = page(small(), ABOUT)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    assert policy[1].startswith(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-"
    )


def test_the_same_time_line_gives_the_same_page() -> None:
    assert page(small(), ABOUT) == page(small(), ABOUT)


@pytest.fixture(scope="module")
def large() -> Timeline:
    """Ten seconds of two vCPUs with 28,000 exits a second."""
    return made_up()


def test_the_page_of_ten_seconds_stays_below_5_mb_with_every_span(large: Timeline) -> None:
    assert sum(len(one.state) for one in large.lanes) > 600_000
    html = page(large, ABOUT)
    assert len(html.encode()) < 5_000_000
    assert "joined with their neighbours" not in html
    assert len(facts(html)["late"]) == len(large.late)


def noisy(count: int) -> Lane:
    """Spans of all lengths from 1 µs to 20 µs, and a long one at the end."""
    rng = np.random.default_rng(1)
    end = np.cumsum(np.append(rng.integers(1_000, 20_000, count - 1), 7 * MS))
    return Lane(
        title="vCPU 0",
        side="host",
        vcpu=0,
        start_ns=np.concatenate(([0], end[:-1])),
        end_ns=end,
        state=rng.integers(0, 5, count).astype(np.int8),
        detail=rng.integers(0, 3, count).astype(np.int32),
        details=("", "a", "b"),
    )


def test_more_spans_than_fit_are_joined_and_the_page_says_so() -> None:
    one = noisy(2_000_000)
    text = "cyclictest was given vCPU 0 while stress-ng-cpu had its CPU for the whole of it" * 2
    timeline = Timeline(
        start_ns=0,
        end_ns=int(one.end_ns[-1]),
        lanes=(one,),
        late=tuple(late(n, 123_456_789, 23_456_789) for n in range(3_000)),
        suspects=tuple(
            Suspect(kind="wake-up chain", vcpu=0, start_ns=n * MS, end_ns=n * MS + 7, text=text)
            for n in range(6_000)
        ),
    )
    spans = spans_of(timeline)
    data = packed(spans)
    assert data.grain_ns > 0
    (found,) = unpacked(data.data, data.counts)
    assert found["start"][0] == 0
    assert found["end"][-1] == one.end_ns[-1]
    assert np.array_equal(found["start"][1:], found["end"][:-1])
    assert found["end"][-1] - found["start"][-1] == 7 * MS
    html = page(timeline, ABOUT)
    assert len(html.encode()) < 5_000_000
    assert "joined with their neighbours" in html


def test_what_most_of_a_joined_run_was_is_what_it_becomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labctl.report.timeline.timeline_page._MOST_SPANS", 2)
    rows = [
        (0, 100, State.GUEST, ""),
        (100, 250, State.EXIT, "IO"),
        (250, 300, State.EXIT, "MSR"),
        (300, 450, State.GUEST, ""),
        (500, 5_000_000, State.HALTED, ""),
    ]
    one = lane("vCPU 0", "host", 0, rows)
    spans = spans_of(Timeline(start_ns=0, end_ns=5_000_000, lanes=(one,)))
    data = packed(spans)
    assert data.counts == (2,)
    (found,) = unpacked(data.data, data.counts)
    assert found["end"].tolist() == [450, 5_000_000]
    assert found["category"][0] == list(State).index(State.GUEST)
    assert one.details[found["detail"][0]] == ""


def test_the_overview_has_all_of_the_time() -> None:
    timeline = small()
    host, guest = spans_of(timeline)
    found = shares(host, 20 * MS)
    assert found.shape == (CATEGORIES, WIDTH)
    waiting = found[list(State).index(State.PREEMPTED)]
    assert waiting.sum() / WIDTH == pytest.approx(5 / 20)
    assert waiting[round(WIDTH * 4 / 20)] == pytest.approx(1)
    assert shares(guest, 20 * MS).sum(axis=0) == pytest.approx(np.ones(WIDTH))


@pytest.mark.parametrize(
    "timeline",
    [
        Timeline(start_ns=5, end_ns=5, lanes=()),
        Timeline(start_ns=0, end_ns=20 * MS, lanes=(lane("vCPU 0", "host", 0, []),)),
        replace(small(), late=(late(4, 0, 0),)),
    ],
)
def test_a_time_line_with_next_to_nothing_in_it_has_a_page(timeline: Timeline) -> None:
    assert "</html>" in page(timeline, ABOUT)


def test_the_json_counts_seconds_from_the_windows_start() -> None:
    begun = replace(small(), start_ns=2 * MS)
    found = timeline_json(begun, ABOUT)
    assert found["window_s"] == pytest.approx(0.018)
    assert found["late"][0] == {
        "at_s": pytest.approx(0.002),
        "vcpu": 0,
        "task": "cyclictest",
        "latency_s": pytest.approx(0.005),
        "host_s": pytest.approx(0.004),
        "exit_s": 0.0,
        "queue_s": 0.0,
        "other_s": pytest.approx(0.001),
        "culprit": "stress-ng (host)",
        "behind_s": {"stress-ng": pytest.approx(0.004)},
    }
    assert found["clock_error_s"] == pytest.approx(35e-6)
    assert found["lost_events"][0]["count"] == 77
    assert json.loads(json.dumps(found)) == found


def test_a_known_preemption_is_on_the_page_with_its_culprit_and_times() -> None:
    """From events to the page: stress-ng has the vCPU's CPU for 20 ms while a timer is due."""
    outside, inside = schedule.host(), schedule.guest()
    outside.entry(10, 1, schedule.VCPU)
    outside.switch(50_002, 1, schedule.VCPU, schedule.HOG, PREEMPTED)
    outside.switch(70_002, 1, schedule.HOG, schedule.VCPU, PREEMPTED)
    outside.entry(70_005, 1, schedule.VCPU)
    schedule.wake_up(inside, due_us=55_000, woken_us=70_010, ran_us=70_030)
    html = page(schedule.told(outside, inside), ABOUT)
    assert "waiting for a host CPU (100 % of that behind stress-ng)" in html
    assert "The worst came 15.0 ms late, 55.000 ms into the trace" in html
    found = facts(html)
    (one,) = found["late"]
    assert (one["at"], one["end"]) == (55 * MS, 70_030_000)
    assert sum(one["parts"]) == one["latency"] == 15_030_000
    data = re.search(r'id="spans">([^<]*)<', html)
    assert data
    host = unpacked(data[1], tuple(one["count"] for one in found["lanes"]))[0]
    waits = host["category"] == list(State).index(State.PREEMPTED)
    assert host["start"][waits].tolist() == [50_002_000]
    assert host["end"][waits].tolist() == [70_002_000]
    assert found["lanes"][0]["details"][host["detail"][waits][0]] == "stress-ng"
