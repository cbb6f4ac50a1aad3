"""What perf shows of a file that it wrote: what labctl reads of it is held against that."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

from labctl.base.kernel import with_tracefs
from labctl.trace.model import SWITCH
from labctl.trace.perf.perfdata import read_trace, tracepoints

_RECORD = "PERF_RECORD_SWITCH_CPU_WIDE"


_IN_TREE = """
tree=$1 file=$2 && shift 2 && mount -t proc proc "$tree/proc" && mount --rbind /sys "$tree/sys" &&
mount -t tmpfs file "$tree/mnt" && cp "$file" "$tree/mnt/perf.data" && exec chroot "$tree" "$@"
"""


def shown(path: Path, *options: str, tree: Path | None = None) -> list[str]:
    """perf's lines, an event each. It looks every tracepoint up in the machine's own tracefs, too,
    also one that a guest recorded. `tree`: of the image whose perf is to read what it recorded; an
    older one may refuse that."""
    argv = ["perf", "script", *options, "-i", str(path)]
    if tree is not None:
        argv = ["sh", "-c", _IN_TREE, "sh", str(tree), str(path), *argv[:-1], "/mnt/perf.data"]
    argv = [*with_tracefs(argv)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.strip()]


def check_labctl_reads_what_perf_shows(path: Path, tree: Path | None = None) -> None:
    """Every event of it, and no other. Switches that labctl puts back (`perfdata_switches`) are
    told by records of perf's own."""
    lines = shown(path, "--show-switch-events", "--fields", "event", tree=tree)
    by_perf = Counter(line.split()[0].removesuffix(":") for line in lines)
    records = by_perf.pop(_RECORD, 0)
    # Without their fields switches stay those of the tracepoint.
    read = read_trace(path, dict.fromkeys(tracepoints(path), ()))
    assert Counter({name: len(events) for name, events in read.events.items()}) == by_perf
    assert by_perf[SWITCH] > 0
    whole = read_trace(path, {SWITCH: ("prev_pid", "next_pid")})
    assert 0 <= len(whole.events[SWITCH]) - by_perf[SWITCH] <= records
    assert whole.every_switch == (records > 0)
