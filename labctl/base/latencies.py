"""Name latencies: closed loop, as a tool reports them, and open loop, with requests that a stall
hid.
"""

from __future__ import annotations

CLOSED = "latency_"
"""How metrics begin that a program gives by itself. While it stalls it asks for nothing, so that
nothing is late ("coordinated omission")."""

LARGEST = f"{CLOSED}max"

OPEN = "open_latency_"
"""How metrics begin of a load that goes on asking at its pace, whatever the machine does."""

OPEN_MEAN = f"{OPEN}mean"

SKIP_PERIODS = frozenset({"cyclictest", "timerlat"})
"""Programs of a fixed pace that skip the periods which they missed: what a stall hid is known."""
