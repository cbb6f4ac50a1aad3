"""The guest's own scheduler, recorded inside real guests and put on the host's clock."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from labctl.base.kernel import ClockDiscipline
from labctl.base.tuning import Level
from labctl.guest.images import Image
from labctl.store.samples import Sample, Unavailable
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.clocks import ClockMap, bent_ns, stored_clock_map
from labctl.trace.files import GUEST_TRACE, noted_problem
from labctl.trace.model import Trace
from labctl.trace.perf.perfdata import read_trace, tracepoints
from labctl.trace.threads import process_tree, stored_window
from labctl.trace.timeline.recordings import Traces
from tests.guest.conftest import (
    LABCTL,
    LATENCY,
    QUIET,
    TWO,
    Sandbox,
    changed_study,
    sandboxed,
    wait_for,
)
from tests.guest.perf_script import check_labctl_reads_what_perf_shows, shown
from tools.browser import chromium

DRAWN = "document.getElementById('frame').dataset.drawn === 'yes'"


@dataclass(frozen=True)
class Traced:
    """A sweep of the least study, of cyclictest, at level trace, that is over: its trials. `tree`:
    of the guest's image."""

    tree: Path
    native: TrialFolder
    guest: TrialFolder
    trials: list[dict[str, Any]]
    leftovers: list[str]


def only(run: Path, tuning: str) -> TrialFolder:
    paths = run.glob("trials/*/trial.json")
    (found,) = (p for p in paths if json.loads(p.read_text())["cell"]["tuning"] == tuning)
    return TrialFolder(found.parent)


def samples(trial: TrialFolder) -> dict[str, float]:
    return {found.key: found.value for found in trial.read_readings() if isinstance(found, Sample)}


@pytest.fixture(scope="module")
def traced(image: Image, kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    with sandboxed(kept, tmp_path_factory.mktemp("results")) as sandbox:
        study = changed_study(tmp_path_factory.mktemp("study"), LATENCY | TWO)
        done = sandbox.labctl("sweep", study, *QUIET, f"--collect={Level.TRACE}", "--quiet")
        assert done.returncode == 0, done.stderr
        (run,) = sandbox.runs()
        yield Traced(
            tree=image.tree,
            native=only(run, "native"),
            guest=only(run, "baseline"),
            trials=sandbox.trials(run),
            leftovers=sandbox.leftovers(),
        )


def test_a_sweep_at_level_trace_is_one_of_valid_trials_and_leaves_nothing(traced: Traced) -> None:
    assert [trial["status"] for trial in traced.trials] == ["done"] * 2
    assert traced.leftovers == []


def test_the_guests_trace_opens_in_the_guests_perf_and_labctl_reads_all_of_it(
    traced: Traced,
) -> None:
    path = traced.guest.path / files.GUEST
    said = "\n".join(shown(path, tree=traced.tree))
    assert "sched:sched_switch:" in said
    assert any(one.name == "cyclictest" for one in switches_to(traced))
    assert "hrtimer_expire_entry:" in said
    check_labctl_reads_what_perf_shows(path, traced.tree)


def test_the_guests_trace_holds_all_of_the_measured_window(traced: Traced) -> None:
    assert noted_problem(traced.guest, GUEST_TRACE) is None
    found = stored_clock_map(traced.guest)
    assert isinstance(found, ClockMap)
    side = traced.guest.read_json("runner.json")
    assert found.at_ns < side["before"]["monotonic_ns"] < side["after"]["monotonic_ns"]
    assert side["after"]["monotonic_ns"] < found.until_ns


def test_the_clocks_are_known_to_half_of_what_asking_took(traced: Traced) -> None:
    found = stored_clock_map(traced.guest)
    assert isinstance(found, ClockMap)
    readings = traced.guest.read_json(files.CLOCKS)
    # Either end within a nanosecond, in which a clock is read.
    widths = [one["answered_ns"] - one["asked_ns"] + 2 for one in (readings[0], readings[-1])]
    steered = (
        traced.guest.read_json(files.CLOCK_DISCIPLINE)
        if traced.guest.has(files.CLOCK_DISCIPLINE)
        else []
    )
    bent = bent_ns([ClockDiscipline(**one) for one in steered], found) if steered else 0
    # And the nanosecond that rounding may take, twice.
    assert 0 < found.error_ns <= max(widths) / 2 + 2 + bent
    assert samples(traced.guest)["clock_error"] == found.error_ns / 1e9


def test_the_workloads_waits_inside_the_guest_are_told(traced: Traced) -> None:
    found = samples(traced.guest)
    window = stored_window(traced.guest)
    switches = [one for one in switches_to(traced) if window.start_ns <= one.at_ns <= window.end_ns]
    assert found["ctx_switches{of=guest}"] * window.seconds == pytest.approx(len(switches))
    guest = Traces(traced.guest).guest
    assert isinstance(guest, Trace)
    threads = process_tree(guest, window.pid)
    waits = sum(one.tid in threads for one in switches)
    assert 0 < sum(one.name == "cyclictest" for one in switches) <= waits
    # With the switch to it a thread's wait ends, and the first may have begun before the window.
    assert waits - len(threads) <= found["sched_delays{of=workload}"] <= waits
    assert 0 < found["sched_delay_p50{of=workload}"] <= found["sched_delay_max{of=workload}"]
    assert found["lost_events{of=guest}"] == 0


def test_nothing_of_it_is_natively_there(traced: Traced) -> None:
    assert not traced.native.has(files.GUEST)
    assert not traced.native.has(files.CLOCKS)
    assert noted_problem(traced.native, GUEST_TRACE) is None


def test_time_lines_of_both_sides_are_drawn_by_a_browser(traced: Traced, tmp_path: Path) -> None:
    run = traced.guest.path.parents[1]
    with chromium(tmp_path / "chromium") as browser:
        for trial in (traced.native, traced.guest):
            page, perfetto = tmp_path / "page.html", tmp_path / "perfetto"
            argv = [*LABCTL, "timeline", str(run), str(int(trial.path.name)), "--json"]
            done = subprocess.run(
                [*argv, "-o", str(page), "--perfetto", str(perfetto)],
                capture_output=True,
                text=True,
                check=True,
            )
            late = json.loads(done.stdout)["late"]
            assert late
            assert all(one["latency_s"] > 0 for one in late)
            assert b"cyclictest" in perfetto.read_bytes()
            browser.open(page, width=1440)
            wait_for(lambda: browser.evaluate(DRAWN), 60, "the picture")
            assert browser.evaluate("document.querySelectorAll('#late-0').length") == 1
            assert browser.trouble == []


def test_trace_cmd_merges_a_guests_events_into_its_hosts(traced: Traced, tmp_path: Path) -> None:
    run, number = traced.guest.path.parents[1], str(int(traced.guest.path.name))
    argv = [*LABCTL, "timeline", str(run), number, "--trace-dat", str(tmp_path)]
    subprocess.run(argv, capture_output=True, check=True)
    files_of = [f"-i{tmp_path / name}" for name in ("host.dat", "guest.dat")]
    argv = ["trace-cmd", "report", "-N", "-t", *files_of]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    lines = [line.split(maxsplit=1) for line in said.splitlines() if "] " in line]
    times = {name: times_of(text for file, text in lines if file == name) for name in SIDES}
    for name, path in SIDES.items():
        assert len(times[name]) == events_in(traced.guest.path / path)
    # Both recorded between the first reading of the guest's clock and the last.
    found = stored_clock_map(traced.guest)
    assert isinstance(found, ClockMap)
    first, last = (found.to_host(np.array([at])).item() for at in (found.at_ns, found.until_ns))
    for own in times.values():
        assert first <= own[0] <= own[-1] <= last
        assert own == sorted(own)


class Switch(NamedTuple):
    at_ns: int
    name: str
    tid: int


# perf 6.1 prints an event's fields, 6.12 by a plugin of libtraceevent.
SWITCHED = re.compile(
    r" *(\d+)\.(\d{9}): +sched:sched_switch: .*"
    r"(?: next_comm=(.*) next_pid=| ==> (.*):)(\d+) (?:next_prio=|\[)"
)


def switches_to(traced: Traced) -> Iterator[Switch]:
    """By perf: when the CPU went to which thread, and what that was called."""
    path = traced.guest.path / files.GUEST
    for line in shown(path, "--ns", "--fields", "time,event,trace", tree=traced.tree):
        found = SWITCHED.match(line)
        if found:
            yield Switch(int(found[1] + found[2]), found[3] or found[4], int(found[5]))


SIDES = {"host.dat:": files.HOST, "guest.dat:": files.GUEST}


def times_of(lines: Iterable[str]) -> list[int]:
    found = (re.search(r"\] +(?:[^ :]{5} +)?(\d+)\.(\d{9}): ", line) for line in lines)
    return [int(match[1] + match[2]) for match in found if match]


def events_in(path: Path) -> int:
    return sum(map(len, read_trace(path, dict.fromkeys(tracepoints(path), ())).events.values()))


def test_a_guest_that_cannot_be_traced_says_why_and_its_trials_are_valid(
    sandbox: Sandbox, image: Image, tmp_path: Path
) -> None:
    # kernel_lockdown(7): tracefs is there, and empty.
    command_line = f"{image.command_line} lockdown=confidentiality"
    sandbox.shadow_image(image, command_line=command_line)
    study = changed_study(tmp_path, LATENCY | TWO)
    done = sandbox.labctl("sweep", study, *QUIET, f"--collect={Level.TRACE}", "--quiet")
    assert done.returncode == 0, done.stderr
    (run,) = sandbox.runs()
    assert [trial["status"] for trial in sandbox.trials(run)] == ["done"] * 2
    guest = only(run, "baseline")
    problem = noted_problem(guest, GUEST_TRACE)
    assert (
        problem
        == "perf can't record in the guest: the kernel is locked down: it has no tracepoints"
    )
    absent = {r.metric: r.reason for r in guest.read_readings() if isinstance(r, Unavailable)}
    assert absent["sched_delay_p95{of=workload}"] == f"{problem}."
    assert "clock_error" in samples(guest)
    assert sandbox.leftovers() == []
