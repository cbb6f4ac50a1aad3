"""Measure how long the page of a ten-second trace takes to open in a browser, and how large it
is."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from labctl.base.errors import BrokenError
from labctl.report.timeline.timeline_page import About, page
from tools.bench.benchmark import Benchmark
from tools.bench.figures import Figure, measured
from tools.bench.timelines import made_up
from tools.browser import Browser, chromium

TIMES = 5
OPENING_S = 60.0
WIDTH = 1440

OPENS = Figure(
    name="time line of 10 s: opened", value=None, unit="s", comparison="under", limit=2.0
)
SIZE = Figure(name="its page", value=None, unit="MB", comparison="under", limit=5.0)
RENDERED = Figure(name="its page, written", value=None, unit="s", comparison="under", limit=5.0)


def timeline_page(benchmark: Benchmark) -> list[Figure]:
    """Return a made-up trace of two vCPUs, opened TIMES times: from navigation until it is
    drawn."""
    timeline = made_up()
    about = About(run="made-up", trial=1, attempt=1, title="made up", facts=(), command="")
    started = time.monotonic()
    html = page(timeline, about)
    took_s = time.monotonic() - started
    spans = sum(len(lane.state) for lane in timeline.lanes)
    with tempfile.TemporaryDirectory(prefix="labctl-bench-") as name:
        file = Path(name) / "timeline.html"
        file.write_text(html, encoding="utf-8")
        profile = Path(name) / "profile"
        profile.mkdir()
        with chromium(profile) as browser:
            seconds = [_open(browser, file) for _ in range(TIMES)]
    return [
        measured(
            OPENS,
            seconds,
            f"{spans:,} spans; navigation to drawn in Chromium, the slowest of {TIMES} "
            f"{max(seconds):.2f}, the median of them {statistics.median(seconds):.2f}",
        ),
        replace(SIZE, value=len(html.encode()) / 1e6, note=f"{spans:,} spans"),
        replace(RENDERED, value=took_s, values=(took_s,), note="from its lanes"),
    ]


def _open(browser: Browser, file: Path) -> float:
    """Return seconds from navigation until the frame after the first drawing, by the page's own
    clock."""
    browser.open(file, width=WIDTH)
    ends = time.monotonic() + OPENING_S
    while time.monotonic() < ends:
        drawn = browser.evaluate("performance.getEntriesByName('drawn')[0]?.startTime ?? null")
        if drawn is not None:
            return float(drawn) / 1000
        time.sleep(0.05)
    raise BrokenError(f"the time line's page was not drawn within {OPENING_S:g} s")
