"""Name latencies: closed loop, as a tool reports them, and open loop, with requests that a stall
hid.
"""

from __future__ import annotations

CLOSED = "latency_"
"""Prefix of metrics that a program reports itself. While it stalls it makes no requests, so that
none is late ("coordinated omission")."""

LARGEST = f"{CLOSED}max"

OPEN = "open_latency_"
"""Prefix of metrics of a load that keeps its pace, whatever the machine does."""

OPEN_MEAN = f"{OPEN}mean"

SKIP_PERIODS = frozenset({"cyclictest", "timerlat"})
"""Programs of a fixed pace that skip the periods which they missed: what a stall hid is known."""
