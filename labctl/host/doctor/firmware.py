"""Measure the time that firmware takes from the CPUs unseen by the kernel, with the kernel's hwlat
tracer."""

from __future__ import annotations

import re

from labctl.host.doctor.check import Check, Result, Scope, fine, unknown, warn
from labctl.host.doctor.reader import Reader
from labctl.host.tracers import OPTIONS, has_tracer

GROUP = "measuring"
TRACER = "hwlat"
THRESHOLD_US = 10
"""The tracer's own (Documentation/trace/hwlat_detector.rst)."""

_SLACK_S = 20.0

# hwlatdetect takes its files from debugfs and leaves tracing off. In a mount namespace of its own
# nothing stays mounted, and the script restores tracing.
_SCRIPT = """
mount -t debugfs nodev /sys/kernel/debug || exit
cd /sys/kernel/debug/tracing || exit
tracer=$(cat current_tracer)
[ "$tracer" = nop ] || { echo "somebody traces here ($tracer)"; exit 9; }
was=$(cat tracing_on)
hwlatdetect "--duration=$0s" "--threshold=$1us"
ended=$?
echo "$was" > tracing_on
exit $ended
"""
_LONGEST = re.compile(r"^Max Latency: (?:(\d+)us|Below threshold)$", re.MULTILINE)
_SMIS = re.compile(r"^SMIs during run: (\d+)$", re.MULTILINE)
_NO_COUNT = "cannot read MSR"
"""Message for a CPU that doesn't count SMIs (AMD's), after which hwlatdetect reports 0."""


def hwlat(reader: Reader, scope: Scope) -> Result:
    if not has_tracer(TRACER, reader.root):
        return unknown(
            f"the kernel has no hwlat tracer ({OPTIONS[TRACER]})",
            "Boot one that has it (of Debian's: linux-image-rt-amd64), then labctl doctor "
            "--hwlat 60",
        )
    if scope.hwlat_s is None:
        return unknown(
            "not measured: it takes a minute and stops each CPU in turn for half of it",
            "labctl doctor --hwlat 60",
        )
    if reader.program("hwlatdetect") is None:
        return unknown("hwlatdetect is not installed", "apt-get install rt-tests")
    return _measured(reader, scope.hwlat_s)


def _measured(reader: Reader, seconds: int) -> Result:
    done = reader.run(
        (
            *("unshare", "--mount", "--propagation", "private"),
            *("sh", "-c", _SCRIPT, str(seconds), str(THRESHOLD_US)),
        ),
        seconds=seconds + _SLACK_S,
    )
    longest = _LONGEST.search(done.text) if done else None
    if done is None or longest is None:
        lines = done.text.strip().splitlines()[-1:] if done else []
        return unknown(f"hwlatdetect ended without a result: {' '.join(lines) or 'nothing'}")
    smis = None if _NO_COUNT in done.text else _SMIS.search(done.text)
    counted = f", {smis[1]} SMIs counted" if smis else ""
    longest_us = int(longest[1] or 0)
    value = {"seconds": seconds, "longest_us": longest_us, "smis": int(smis[1]) if smis else None}
    if longest_us == 0:
        return fine(f"nothing of {THRESHOLD_US} us or more in {seconds} s{counted}", value)
    return warn(
        f"a CPU stood still for up to {longest_us} us with interrupts off{counted}",
        "Look for power management, USB emulation and error reporting in the firmware's "
        "setup. On a virtual machine, the cause is the hypervisor.",
        value,
    )


CHECKS = (
    Check(
        "hwlat",
        GROUP,
        "The scheduler does not see the time that firmware takes: it appears in the "
        "longest latencies, and no tuning of the host reduces it.",
        hwlat,
    ),
)
