"""Pass packets from one TUN device to another, delayed, limited to a rate, and through a bounded
queue: the substitute if the kernel lacks netem or tbf.

Runs by itself and needs only Python: relay_program.py FROM_NETNS FROM_DEVICE TO_NETNS TO_DEVICE
DELAY_MS RATE_BIT LIMIT_BYTES. RATE_BIT 0: unlimited. It prints a line when it is ready, and ends at
SIGTERM.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import struct
import sys
import time
from collections import deque
from contextlib import suppress

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_LARGEST = 65_536
_FRAME_HEADER = 14
"""Bytes of each packet that tbf counts and a TUN device does not show (ETH_HLEN)."""
_MOST_AT_ONCE = 64
_MOST_WAITING = 100_000
"""Maximum of queued packets, the same as netem's limit."""
_TURN_S = 0.5


class Relay:
    """Hold packets until they are due. Times are seconds of one clock.

    A packet leaves the bottleneck after all packets before it, at the rate, and arrives one delay
    later. A packet is dropped if more bytes than the limit are already queued.
    """

    def __init__(self, delay_s: float, rate_bit: int, limit_bytes: int) -> None:
        self._delay_s, self._rate_bit = delay_s, rate_bit
        self._limit_bytes = limit_bytes
        self._free_at = 0.0
        self._waiting: deque[tuple[float, float, bytes]] = deque()

    def take(self, packet: bytes, now: float) -> None:
        """Queue a packet, or drop it."""
        size = len(packet) + _FRAME_HEADER
        if len(self._waiting) >= _MOST_WAITING:
            return
        if self._rate_bit:
            backlog = max(0.0, self._free_at - now) * self._rate_bit / 8
            if backlog + size > self._limit_bytes:
                return
            self._free_at = max(self._free_at, now) + size * 8 / self._rate_bit
            leaves = self._free_at
        else:
            leaves = now
        self._waiting.append((leaves + self._delay_s, leaves, packet))

    def due(self, now: float) -> list[bytes]:
        """Remove and return the packets that have arrived by `now`."""
        found = []
        while self._waiting and self._waiting[0][0] <= now:
            found.append(self._waiting.popleft()[2])
        return found

    def next_s(self, now: float) -> float | None:
        """Return the seconds until the next packet arrives; None if none is queued."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else None


def _attached(namespace: str, device: str) -> int:
    """Return a descriptor of a TUN device in a network namespace; this process stays in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace, "rb") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(descriptor, _TUNSETIFF, name)
    return descriptor


def _pass_on(relay: Relay, source: int, target: int, is_stopped: list[bool]) -> None:
    while not is_stopped:
        now = time.monotonic()
        for packet in relay.due(now):
            with suppress(OSError):  # a full device drops packets, as a wire does
                os.write(target, packet)
        wait_s = relay.next_s(time.monotonic())
        ready, _, _ = select.select([source], [], [], _TURN_S if wait_s is None else wait_s)
        for _ in range(_MOST_AT_ONCE if ready else 0):
            try:
                packet = os.read(source, _LARGEST)
            except BlockingIOError:
                break
            relay.take(packet, time.monotonic())


def main(arguments: list[str]) -> None:
    """Relay until SIGTERM."""
    from_file, from_device, to_file, to_device, delay_ms, rate_bit, limit_bytes = arguments
    stopped: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    source, target = _attached(from_file, from_device), _attached(to_file, to_device)
    relay = Relay(float(delay_ms) / 1000, int(rate_bit), int(limit_bytes))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _pass_on(relay, source, target, stopped)


if __name__ == "__main__":
    main(sys.argv[1:])
