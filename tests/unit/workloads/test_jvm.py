"""Logs of Java VMs: how often and how long they stopped the program in the part that counts."""

from __future__ import annotations

import re

import pytest

from labctl.base.errors import BrokenError
from labctl.store.samples import Sample
from labctl.workloads.readers import jvm
from tests.unit.workloads.trials import FIXTURES, recorded

LOGS = sorted(path.name for path in (FIXTURES / "tick-server").glob("*-jvm.log"))


def read(log: str, marks: str) -> dict[str, float | str]:
    found = jvm.readings(log, marks, ("jvm.log", "marks.csv"), "files/jvm.log")
    return {r.metric: r.value if isinstance(r, Sample) else r.reason for r in found}


def marks_of(log: str) -> str:
    return recorded(log.replace("-jvm.log", "-marks.csv"))


def between(log: str, marks: str) -> list[str]:
    """The lines of the part that counts, found otherwise than the reader does."""
    bounds = dict(line.split(",") for line in marks.splitlines())
    return [
        line
        for line in log.splitlines()
        if int(bounds["steady"]) <= int(line[1 : line.index("ns]")]) < int(bounds["over"])
    ]


@pytest.mark.parametrize("name", LOGS)
def test_pauses_are_those_of_every_version_and_collector(name: str) -> None:
    log, marks = recorded(name), marks_of(name)
    found = read(log, marks)
    lines = [line for line in between(log, marks) if " Pause " in line and line.endswith("ms")]
    pauses = [float(line.rpartition(" ")[2].removesuffix("ms")) / 1e3 for line in lines]
    assert pauses, "the recording has pauses in its steady part"
    assert found["gc_pauses"] == len(pauses)
    assert found["gc_pause_time"] == pytest.approx(sum(pauses))
    assert found["gc_pause_max"] == pytest.approx(max(pauses))
    stopped = found["jvm_stopped"]
    assert isinstance(stopped, float)
    assert stopped >= 0.9 * sum(pauses), "a pause is in a safepoint"
    compiled = [line for line in between(log, marks) if "jit,compilation" in line]
    discarded = [line for line in compiled if "made not entrant" in line]
    if "jit,compilation" in log:
        assert found["jit_discarded"] == len(discarded)
        zombies = sum("made zombie" in line for line in compiled)
        assert found["jit_compiled"] == len(compiled) - len(discarded) - zombies
        assert found["jit_compiled_before"] > found["jit_compiled"]  # type: ignore[operator]
    else:
        assert "jit+compilation" in str(found["jit_compiled"])


def log_of(*lines: tuple[int, str, str]) -> str:
    return "".join(f"[{at}ns][info][{tags:9}] {text}\n" for at, tags, text in lines)


MARKS = "mark,ns\nlaunched,0\nsteady,100\nover,200\n"
END = (200, "safepoint", "Entering safepoint region: Halt")


def test_what_ended_before_the_part_or_after_it_does_not_count() -> None:
    pause = "GC(1) Pause Young (Normal) (G1 Evacuation Pause) 7M->1M(128M) {}ms"
    log = log_of(
        (99, "gc", pause.format("1.000")),
        (100, "gc", pause.format("2.000")),
        (199, "gc", pause.format("4.000")),
        (200, "gc", pause.format("8.000")),
    )
    found = read(log, MARKS)
    assert found["gc_pauses"] == 2
    assert found["gc_pause_time"] == pytest.approx(0.006)


@pytest.mark.parametrize(
    ("tags", "message", "metric", "value"),
    [
        ("gc,phases", "GC(0) Y: Pause Mark Start (Major) 0.012ms", "gc_pause_max", 12e-6),
        ("gc,phases", "GC(7) Pause Relocate Start 0.340ms", "gc_pause_max", 340e-6),
        ("gc", "GC(0) Pause Full (System.gc()) 9M->2M(64M) 12.5ms", "gc_pause_max", 12.5e-3),
        ("gc", "GC(3) Pause Degenerated GC (Mark) 1.25ms", "gc_pauses", 1),
        ("gc", "Allocation Stall (Thread-4) 3.044ms", "gc_stalls", 1),
        ("gc", "GC(10) Garbage Collection (Allocation Stall) 50M(39%)->34M(27%)", "gc_stalls", 0),
        ("gc,start", "GC(3) Pause Young (Normal) (G1 Evacuation Pause)", "gc_pauses", 0),
        ("gc,phases", "GC(3)   Evacuate Collection Set: 3.1ms", "gc_pauses", 0),
        ("gc", "GC(3) Concurrent Mark Cycle 12.1ms", "gc_pauses", 0),
        (
            "safepoint",
            "Total time for which application threads were stopped: 0.0062599 seconds, Stopping "
            "threads took: 0.0055205 seconds",
            "jvm_stopped",
            0.0062599,
        ),
        (
            "safepoint",
            'Safepoint "ZMarkStart", Time since last: 6 ns, Reaching safepoint: 9 ns, Cleanup: 8 '
            "ns, At safepoint: 3 ns, Total: 217560 ns",
            "jvm_stopped",
            217_560e-9,
        ),
        (
            "safepoint",
            'Safepoint "JFRSafepointWrite", Time since last: 6 ns, At safepoint: 6 ns, Leaving '
            "safepoint: 5 ns, Total: 9723 ns, Threads: 0 runnable, 9 total",
            "jvm_stopped",
            9723e-9,
        ),
    ],
)
def test_each_form_of_line_counts_as_what_it_is(
    tags: str, message: str, metric: str, value: float
) -> None:
    found = read(log_of((150, tags, message), END), MARKS)
    assert found[metric] == pytest.approx(value)


def test_no_pause_is_none_and_has_no_longest() -> None:
    found = read(log_of((50, "gc", "Using G1"), END), MARKS)
    assert found["gc_pauses"] == 0
    assert found["gc_pause_max"] == "no collection stopped the program."


def test_what_was_not_logged_is_unavailable_and_not_zero() -> None:
    found = read(log_of(END), MARKS)
    for metric in ("gc_pauses", "gc_pause_time", "gc_pause_max", "gc_stalls"):
        assert "no 'gc' lines" in str(found[metric])
    assert found["jvm_stopped"] == 0
    found = read(log_of((50, "gc", "Using G1"), (200, "gc", "done")), MARKS)
    assert "no 'safepoint' lines" in str(found["jvm_stopped"])


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", "its last line has no end"),
        (log_of(END)[:-1], "its last line has no end"),
        (log_of((150, "gc", "Using G1")), "50 ns before the program was over, so it may be cut"),
        ("\n" + log_of(END), "line 1: expected"),
        ("[0.388s][info][gc] Using G1\n" + log_of(END), "line 1: expected"),
        (log_of(END) + "[1\ns][info][gc] a\n", "line 2: expected"),
        ("OpenJDK 64-Bit Server VM warning: no\n" + log_of(END), "found 'OpenJDK 64-Bit"),
    ],
)
def test_a_log_that_is_not_whole_is_an_error_that_says_where(log: str, said: str) -> None:
    with pytest.raises(BrokenError, match=re.escape(said)) as caught:
        read(log, MARKS)
    assert "jvm.log" in caught.value.message


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ("", "has no end"),
        (MARKS[:-1], "has no end"),
        ("mark,ns\nsteady,100\n", "no mark 'over'"),
        ("mark,ns\nover,100\n", "no mark 'steady'"),
        ("mark,ns\nsteady,100\nover,100\n", "ended before it was steady"),
        ("mark,ns\nsteady,100\nsteady,120\nover,200\n", "expected a mark"),
        ("mark,ns\nsteady,nan\nover,200\n", "expected a mark"),
        ("mark,ns\nsteady,1,2\nover,200\n", "expected a mark"),
    ],
)
def test_marks_that_are_not_whole_are_an_error(marks: str, said: str) -> None:
    with pytest.raises(BrokenError, match=f"marks.csv: .*{said}|marks.csv.*{said}"):
        read(log_of(END), marks)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("at_line", [False, True])
def test_a_cut_log_is_an_error_at_any_place(share: float, at_line: bool) -> None:
    whole = recorded(LOGS[0])
    cut = whole[: int(len(whole) * share)]
    if at_line:
        cut = cut[: cut.rfind("\n") + 1]
    with pytest.raises(BrokenError):
        read(cut, marks_of(LOGS[0]))
