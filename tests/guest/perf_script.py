"""What perf shows of a file that it wrote: what labctl reads of it is held against that."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

from labctl.base.tracefs import with_tracefs
from labctl.trace.perf.perfdata import read_trace, tracepoints
from labctl.trace.tracepoints import SWITCH

_RECORD = "PERF_RECORD_SWITCH_CPU_WIDE"


def shown(path: Path, *options: str) -> list[str]:
    """perf's lines, an event each. It looks every tracepoint up in the machine's own tracefs, too,
    also one that a guest recorded."""
    argv = with_tracefs(["perf", "script", *options, "-i", str(path)])
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.strip()]


def check_labctl_reads_what_perf_shows(path: Path) -> None:
    """Every event of it, and no other. Switches that labctl puts back (`perfdata_switches`) are
    told by records of perf's own."""
    lines = shown(path, "--show-switch-events", "--fields", "event")
    by_perf = Counter(line.split()[0].removesuffix(":") for line in lines)
    records = by_perf.pop(_RECORD, 0)
    # Without their fields switches stay those of the tracepoint.
    read = read_trace(path, dict.fromkeys(tracepoints(path), ()))
    assert Counter({name: len(events) for name, events in read.events.items()}) == by_perf
    assert by_perf[SWITCH] > 0
    whole = read_trace(path, {SWITCH: ("prev_pid", "next_pid")})
    assert 0 <= len(whole.events[SWITCH]) - by_perf[SWITCH] <= records
    assert whole.every_switch == (records > 0)
