"""What a level can't record here is said before a sweep begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.tuning import PLAN, Kind, Level, Pin, Tuning
from labctl.collect.collector import Here
from labctl.collect.threads import task_clock
from labctl.run.collectors.collecting import lacking, without_clocks

EMULATED = Here(accelerator="tcg", tree=None)


def test_exits_of_an_emulated_guest_are_lacking_with_the_reason() -> None:
    (said,) = lacking(Level.EXITS, EMULATED)
    assert said == (
        "'exits' (VM exits by reason, and their time) collects nothing here: emulated: no VM exits."
    )


def test_a_guest_whose_image_has_no_perf_has_no_trace(tmp_path: Path) -> None:
    said = lacking(Level.TRACE, Here(accelerator="tcg", tree=tmp_path))
    assert any(
        "(the guest's scheduler) collects nothing here: the guest image has no perf." in text
        for text in said
    )


def test_who_is_not_root_is_told_so_and_not_what_a_tool_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    said = lacking(Level.TRACE, Here(accelerator="tcg", tree=tmp_path))
    assert any(text.endswith("only root can record.") for text in said)


def test_level_counters_adds_nothing_that_could_be_lacking() -> None:
    assert lacking(Level.COUNTERS, EMULATED) == []


def test_a_kernel_without_task_clocks_costs_pinned_arms_beside_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arms = [
        Tuning(name="native", description="", kind=Kind.NATIVE),
        Tuning(name="native+pinned", description="", kind=Kind.NATIVE, pin=Pin(vcpus=PLAN)),
    ]
    monkeypatch.setattr(task_clock, "why_unavailable", lambda: "perf_event_open is refused.")
    (said,) = without_clocks(arms)
    assert "may be invalid (native+pinned)" in said
    assert said.endswith(": perf_event_open is refused.")
    assert without_clocks(arms[:1]) == []
    monkeypatch.setattr(task_clock, "why_unavailable", lambda: None)
    assert without_clocks(arms) == []
