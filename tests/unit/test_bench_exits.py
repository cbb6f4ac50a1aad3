"""`make bench`: what is made of windows in which a guest exits. Nothing is measured here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.base.events import silent
from labctl.base.paths import StatePaths
from tools.bench import exits
from tools.bench.__main__ import measure
from tools.bench.benchmark import Benchmark


def window(ns: float, **changes: Any) -> exits.Window:
    """A guest that makes 1,000 exits of so many nanoseconds each, and has its CPU to itself."""
    seconds = 1000 * ns / 1e9
    made = exits.Window(exits=1000, wall_s=seconds, vcpu_s=seconds, returns=1000)
    return replace(made, **changes)


def block(drift: float, bpf: float = 200.0, perf: float = 800.0) -> exits.Block:
    """Exits that take 10 µs and what the host's mood adds, and a collector that takes its time."""
    return {
        exits.NOTHING: window(10_000 + drift, returns=0),
        exits.BPF: window(10_000 + drift + bpf, written=2000, all_s=0.3, fired=0),
        exits.PERF: window(10_000 + drift + perf, written=80_000, all_s=0.2, meanwhile_s=0.1),
    }


BLOCKS = [block(0.0, 190.0), block(5000.0, 210.0), block(-3000.0, 200.0, 830.0)]


def test_what_a_collector_takes_is_paired_within_blocks() -> None:
    disturbs, _, _ = exits.exits_figures(BLOCKS)
    assert disturbs.value == pytest.approx(200 / 810)
    assert disturbs.met is True
    # t(0.975, 2) * 10 / sqrt(3), for all that the blocks differ by thousands.
    assert "BPF 200 ns (175 to 225) an exit" in disturbs.note
    assert "perf record 810 ns (767 to 853) an exit" in disturbs.note
    assert "perf's less BPF's 610 ns" in disturbs.note


def test_throughput_lost_is_a_share_of_the_guests_own() -> None:
    note = exits.exits_figures([block(0.0), block(0.0)])[0].note
    # 1 - 10000/10200 and 1 - 10000/10800; blocks that are all the same number have no interval.
    assert "2.0 % of the exits in a second of CPU time, 2.0 % by the clock" in note
    assert "7.4 % of the exits in a second of CPU time" in note


def test_a_bpf_that_costs_more_than_recording_misses_the_target() -> None:
    disturbs = exits.exits_figures([block(0.0, 900.0), block(0.0, 910.0, 801.0)])[0]
    assert disturbs.met is False
    assert "perf's less BPF's -104 ns" in disturbs.note


def test_where_recording_costs_nothing_that_can_be_seen_there_is_no_ratio() -> None:
    disturbs = exits.exits_figures([block(0.0, 100.0, -900.0), block(0.0, 100.0, 1000.0)])[0]
    assert (disturbs.value, disturbs.met) == (None, None)
    assert "perf record 50 ns (-12021 to 12121) an exit" in disturbs.note


def test_bytes_are_per_exit_and_cpu_time_is_from_a_collectors_start_to_its_end() -> None:
    _, writes, uses = exits.exits_figures(BLOCKS)
    assert writes.value == pytest.approx(2000 / 80_000)
    assert writes.note == "2.000 MB against 80.0 MB per million exits that it saw"
    assert uses.value == pytest.approx(1.5)
    assert uses.met is False
    assert "0.30 CPU seconds a window (0.000 while it is open)" in uses.note
    assert "0.20 CPU seconds a window (0.100 while it is open)" in uses.note


def test_which_tracepoints_were_paid_for_is_said() -> None:
    assert "kvm:kvm_exit and kvm:kvm_entry never fire here" in exits.exits_figures(BLOCKS)[0].note
    hardware = [
        {**one, exits.BPF: replace(one[exits.BPF], fired=1000)} for one in (block(0.0), block(1.0))
    ]
    note = exits.exits_figures(hardware)[0].note
    assert "of kvm:kvm_exit, kvm:kvm_userspace_exit and kvm:kvm_entry, one each an exit" in note


def test_a_collector_that_did_not_see_the_exits_has_no_cost() -> None:
    blind = [{**one, exits.PERF: replace(one[exits.PERF], returns=10)} for one in BLOCKS]
    with pytest.raises(BrokenError, match="perf record saw 30 of 3000 exits"):
        exits.exits_figures(blind)


def test_events_that_perf_lost_were_paid_for_and_are_told() -> None:
    lossy = [{**one, exits.PERF: replace(one[exits.PERF], returns=10, lost=990)} for one in BLOCKS]
    assert "perf lost 2,970 events" in exits.exits_figures(lossy)[0].note


def test_without_bpf_or_a_guest_under_kvm_there_are_no_figures_and_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    benchmark = Benchmark(StatePaths(tmp_path), silent)
    monkeypatch.setattr(exits, "why_no_bpf", lambda: "BPF can't be used: a test.")
    assert {figure.note for figure in measure(benchmark, ["exits"])} == {
        "not measured: BPF can't be used: a test"
    }

    def no_guest(*_: object) -> None:
        raise HostError("no guest starts under KVM here: a test")

    monkeypatch.setattr(exits, "why_no_bpf", lambda: None)
    monkeypatch.setattr(exits, "read_topology", lambda: None)
    monkeypatch.setattr(exits, "pin_plan", lambda *_: SimpleNamespace(vcpu_cpus=(0,)))
    monkeypatch.setattr(exits, "host_lock", lambda: tmp_path / "lock")
    monkeypatch.setattr(exits, "exiting", no_guest)
    figures = measure(benchmark, ["exits"])
    assert [figure.value for figure in figures] == [None] * 3
    assert figures[0].note == "not measured: no guest starts under KVM here: a test"
