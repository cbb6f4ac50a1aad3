"""What a user sees while a run goes on."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from labctl.base.events import Note, Progress, TrialEnded, Waiting, Warned
from labctl.cli.parts.common import console
from labctl.cli.parts.progress import ProgressView


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def view(*, terminal: bool = False) -> tuple[ProgressView, io.StringIO]:
    written = io.StringIO()
    return ProgressView(Console(file=written, force_terminal=terminal, width=100)), written


def progress(done: int, planned: int = 100, **fields: object) -> Progress:
    given = {"invalid": 0, "doing": "block 1: native · cpu · quiet", "left_s": None}
    return Progress(done=done, planned=planned, **{**given, **fields})  # type: ignore[arg-type]


def test_without_a_terminal_each_event_is_a_plain_line() -> None:
    shown, written = view()
    with shown:
        shown.listen(Note(text="Guests run under KVM."))
        shown.listen(Warned(text="pinned+rr: [bold]slow[/bold]"))
        shown.listen(TrialEnded(number=3, valid=False, text="trial 3 (pinned, cpu): too loud"))
        shown.listen(TrialEnded(number=4, valid=True, text="trial 4 (pinned, cpu)"))
    assert written.getvalue().splitlines() == [
        "Guests run under KVM.",
        "Warning: pinned+rr: [bold]slow[/bold]",
        "Invalid: trial 3 (pinned, cpu): too loud",
    ]


def test_without_a_terminal_each_tenth_is_a_line() -> None:
    shown, written = view()
    with shown:
        for done in range(100):
            shown.listen(progress(done, left_s=60.0 * (100 - done)))
    lines = written.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == [str(n) for n in range(0, 100, 10)]
    assert lines[5] == ("50 of 100 trials: block 1: native · cpu · quiet, 50 min 00 s left")


def test_the_first_line_knows_no_time_left_and_a_later_one_the_invalid_trials() -> None:
    shown, written = view()
    shown.listen(progress(0))
    shown.listen(progress(50, invalid=2, left_s=9.6))
    first, later = written.getvalue().splitlines()
    assert first == "0 of 100 trials: block 1: native · cpu · quiet"
    assert later == "50 of 100 trials, 2 invalid: block 1: native · cpu · quiet, 10 s left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s left"), (59.6, "1 min 00 s left"), (3599.9, "1 h 00 min left"), (5400, "1 h 30")],
)
def test_the_time_left_is_in_units_that_people_use(seconds: float, words: str) -> None:
    shown, written = view()
    shown.listen(progress(1, left_s=seconds))
    assert words in written.getvalue()


def test_on_a_terminal_the_bar_is_drawn_by_events_and_by_nothing_else() -> None:
    before = threading.active_count()
    shown, written = view(terminal=True)
    with shown:
        shown.listen(progress(40, left_s=120.0))
        # No timer that could draw inside a measured window.
        assert threading.active_count() == before
        drawn = written.getvalue()
    assert "40/100" in drawn
    assert "2 min 00 s left" in drawn
    assert "block 1: native · cpu · quiet" in drawn


def test_a_terminal_that_cannot_be_drawn_on_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    shown, written = view(terminal=True)
    with shown:
        shown.listen(progress(40, left_s=120.0))
    assert written.getvalue().splitlines()[0].startswith("40 of 100 trials")


def test_what_a_guest_said_cannot_drive_the_terminal() -> None:
    shown, written = view()
    shown.listen(TrialEnded(number=1, valid=False, text="trial 1: \x1b[2J\x1b]0;owned\x07"))
    assert "\x1b" not in written.getvalue()
    assert "trial 1" in written.getvalue()


def test_a_long_line_is_not_cut_for_a_log_file() -> None:
    shown, written = view()
    shown.listen(Note(text="word " * 60))
    assert len(written.getvalue().splitlines()) == 1


def test_a_reader_of_the_progress_who_leaves_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Gone())
    shown = ProgressView(console(stderr=True))
    with shown:
        shown.listen(Note(text="Guests run under KVM."))
        shown.listen(progress(50))


def test_a_reader_of_the_report_who_leaves_is_told_to_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    with pytest.raises(BrokenPipeError):
        console().print("a table")


def test_attempts_that_are_invalid_alike_are_one_line_and_a_count() -> None:
    shown, written = view()
    took = "others took {:.2f} CPU seconds per second on the trial's CPUs"
    with shown:
        for number in range(1, 86):
            text = f"trial {number} (pinned, cpu): {took.format(number / 100)}"
            shown.listen(TrialEnded(number=number, valid=False, text=text))
        shown.listen(TrialEnded(number=86, valid=False, text="trial 86 (pinned, cpu): no answer"))
    assert written.getvalue().splitlines() == [
        "Invalid: trial 1 (pinned, cpu): others took 0.01 CPU seconds per second on the trial's "
        "CPUs",
        "Invalid: trial 86 (pinned, cpu): no answer",
        "Invalid: 85 attempts with 'others took … CPU seconds per second on the trial's CPUs'",
    ]


def test_a_run_that_waits_says_so_once_without_a_terminal() -> None:
    shown, written = view()
    with shown:
        for left_s in (600.0, 599.0, 598.0):
            shown.listen(Waiting(text="waits for a quiet host: make (pid 3)", left_s=left_s))
        shown.listen(Note(text="It goes on."))
        shown.listen(Waiting(text="waits for a quiet host: make (pid 3)", left_s=500.0))
    assert written.getvalue().splitlines() == [
        "The run waits for a quiet host: make (pid 3), 10 min 00 s left for that.",
        "It goes on.",
        "The run waits for a quiet host: make (pid 3), 8 min 20 s left for that.",
    ]
