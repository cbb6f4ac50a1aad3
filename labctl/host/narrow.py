"""Put a router with a bottleneck between a machine's link and a client, beside a competitor.

    machine ── link ── router ══ bottleneck ══> client     (whose packets go back with the delay)
                         └────── competitor

The router is in the namespace in which a link ends, client and competitor have one each. All are
made through the journal; what a trial sets lies in them and goes with them. See
docs/decisions/network-link.md.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import BrokenError, HostError
from labctl.base.link import CLIENT, COMPETITOR, Bottleneck
from labctl.base.process import Deadline, cleaning_up, dies_with_labctl, run, running, written_by
from labctl.host.settings.journal import Journal
from labctl.host.settings.netdevices import NAMESPACES, NetworkNamespace, ip
from labctl.host.settings.tunables import PRESENT

TO_CLIENT = "client0"
TO_COMPETITOR = "rival0"
_OUT = "router0"
"""Names inside the namespaces: the router's devices, and those of the others."""
_BACK, _FORTH = "back0", "forth0"
"""TUN devices of the two relays, one name at both ends."""
NETWORK = "198.18.0.0/16"
"""Network that holds all addresses of a link and of what lies behind it."""
_AT_CLIENT = "198.18.1.2"
_AT_COMPETITOR = "198.18.2.2"
_PREFIX = 30
_MOST_DELAYED = 100_000
"""Packets that netem queues; its default of 1,000 is 12 ms of 1 Gb/s."""
_RELAY = Path(__file__).with_name("relay_program.py")
_TC_S = 10.0
_START_S = 10.0
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrow:
    """Hold the three namespaces, and which queueing disciplines the kernel has."""

    router: str
    client: str
    competitor: str
    has_tbf: bool
    has_netem: bool

    @property
    def client_file(self) -> Path:
        return NAMESPACES / self.client

    @property
    def competitor_file(self) -> Path:
        return NAMESPACES / self.competitor

    @property
    def sentence(self) -> str:
        """Return a sentence on how links are narrowed here."""
        has = {"tbf": self.has_tbf, "netem": self.has_netem}
        rate, delay = (name if there else "labctl's relay" for name, there in has.items())
        said = f"Narrow links: rate and queue from {rate}, delay from {delay}"
        lacking = [name for name, there in has.items() if not there]
        return f"{said}: this kernel has no {' and no '.join(lacking)}." if lacking else f"{said}."

    def by(self, asked: Bottleneck) -> dict[str, str]:
        """Return what provides rate and delay: a queueing discipline, labctl's relay, or none."""
        rate = "tbf" if self.has_tbf else "relay"
        delay = "netem" if self.has_netem else "relay"
        return {
            "rate": rate if asked.is_limited else "none",
            "delay": delay if asked.delay_ms > 0 else "none",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """Hold a link while it is narrowed. `pids`: those of the relays."""

    narrow: Narrow
    asked: Bottleneck
    pids: tuple[int, ...]

    def to_json(self) -> dict[str, object]:
        """Return the requested values, the mechanism, and what the kernel reports of it."""
        kernel: dict[str, object] = {}
        by = self.narrow.by(self.asked)
        if by["rate"] == "tbf":
            kernel["rate"] = _shown(self.narrow.router, TO_CLIENT)
        if by["delay"] == "netem":
            kernel["delay"] = _shown(self.narrow.client, _OUT)
        return {"asked": self.asked.to_json(), "by": by, "kernel": kernel}


@contextmanager
def narrow_part(journal: Journal, router: str) -> Iterator[Narrow]:
    """Make client and competitor behind the namespace `router`, without a bottleneck so far. They
    are removed at the end, or through the journal after SIGKILL. Raises HostError if the host does
    not support them."""
    pid = os.getpid()
    client, competitor = f"labctl-client-{pid}", f"labctl-rival-{pid}"
    with ExitStack() as stack:
        for namespace in (client, competitor):
            stack.enter_context(journal.changed(NetworkNamespace(namespace), PRESENT))
        try:
            _join(router, TO_CLIENT, _AT_CLIENT, client, CLIENT)
            _join(router, TO_COMPETITOR, _AT_COMPETITOR, competitor, COMPETITOR)
            _forward(router)
            made = Narrow(
                router=router,
                client=client,
                competitor=competitor,
                has_tbf=_has(client, "tbf", "rate", "1mbit", "burst", "5000", "limit", "5000"),
                has_netem=_has(client, "netem", "delay", "1ms"),
            )
        except OSError as error:
            raise HostError(f"cannot make the narrow link: {error.strerror}") from error
        yield made


@contextmanager
def narrowed(narrow: Narrow, asked: Bottleneck, cpus: CpuSet) -> Iterator[Narrowed]:
    """Narrow the path to the client inside the block. `cpus`: those of the relays, if the kernel
    lacks a discipline. Raises HostError if the kernel refuses one, BrokenError if a relay does not
    start or has ended by itself."""
    by = narrow.by(asked)
    with ExitStack() as stack:
        try:
            if by["rate"] == "tbf":
                words = _tbf(asked)
                stack.enter_context(_disciplined(narrow.router, TO_CLIENT, words))
            if by["delay"] == "netem":
                words = ("netem", "delay", f"{asked.delay_ms:g}ms", "limit", str(_MOST_DELAYED))
                stack.enter_context(_disciplined(narrow.client, _OUT, words))
            relays = []
            if by["rate"] == "relay":
                forth = _Relay(narrow.router, narrow.client, _FORTH, f"{CLIENT}/32")
                queue = (asked.rate_bit, asked.limit_bytes)
                relays.append(stack.enter_context(_relaying(forth, 0, *queue, cpus)))
            if by["delay"] == "relay":
                back = _Relay(narrow.client, narrow.router, _BACK, NETWORK)
                relays.append(stack.enter_context(_relaying(back, asked.delay_ms, 0, 0, cpus)))
        except OSError as error:
            raise HostError(f"cannot narrow the link: {error.strerror}") from error
        yield Narrowed(narrow=narrow, asked=asked, pids=tuple(relays))


def _tbf(asked: Bottleneck) -> tuple[str, ...]:
    """Return the arguments of tc(8) for a token bucket filter of that rate and queue."""
    return (
        *("tbf", "rate", f"{asked.rate_bit}bit"),
        *("burst", str(asked.burst_bytes), "limit", str(asked.limit_bytes)),
    )


def _join(router: str, device: str, at_router: str, namespace: str, address: str) -> None:
    """Connect a namespace with the router, its gateway to all other machines."""
    ip(
        *("-n", router, "link", "add", device, "type", "veth"),
        *("peer", "name", _OUT, "netns", namespace),
    )
    for where, name, own in ((router, device, at_router), (namespace, _OUT, address)):
        ip("-n", where, "link", "set", "dev", name, "addrgenmode", "none")
        ip("-n", where, "address", "replace", f"{own}/{_PREFIX}", "dev", name)
        ip("-n", where, "link", "set", "dev", name, "up")
    ip("-n", namespace, "link", "set", "dev", "lo", "up")
    ip("-n", namespace, "route", "replace", NETWORK, "via", at_router)


def _forward(router: str) -> None:
    """Enable packet forwarding on the router."""
    # /proc/sys/net shows the network namespace of the process that opens it.
    script = "echo 1 >/proc/sys/net/ipv4/ip_forward"
    argv = [*dies_with_labctl(), "nsenter", f"--net={NAMESPACES / router}", "sh", "-c", script]
    run(argv, deadline=Deadline.after(_TC_S, "letting the router forward packets"))


def _has(namespace: str, *words: str) -> bool:
    """Return whether the kernel has a queueing discipline."""
    try:
        with _disciplined(namespace, "lo", words):
            return True
    except OSError:
        return False


@contextmanager
def _disciplined(namespace: str, device: str, words: tuple[str, ...]) -> Iterator[None]:
    _tc(namespace, "qdisc", "replace", "dev", device, "root", *words)
    try:
        yield
    finally:
        with cleaning_up():
            try:
                _tc(namespace, "qdisc", "del", "dev", device, "root")
            except OSError as error:
                said = f"cannot remove the bottleneck: {error.strerror}"
                raise HostError(said) from error


def _shown(namespace: str, device: str) -> Any:
    """Return what tc(8) shows of a device's queueing discipline, counters included."""
    try:
        return json.loads(_tc(namespace, "-s", "-j", "qdisc", "show", "dev", device))
    except (OSError, ValueError) as error:
        raise BrokenError(f"cannot read the bottleneck back: {error}") from error


def _tc(namespace: str, *words: str) -> str:
    """Return the output of tc(8). Raises OSError with its message if it fails."""
    argv = [*dies_with_labctl(), "tc", "-n", namespace, *words]
    done = run(argv, deadline=Deadline.after(_TC_S, "tc"), check=False)
    if done.returncode != 0:
        raise OSError(done.returncode, f"'tc {' '.join(words)}': {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class _Relay:
    """Name a relay's direction: from one namespace to another, by devices of one name, for packets
    to `network`."""

    source: str
    target: str
    device: str
    network: str


@contextmanager
def _relaying(
    way: _Relay, delay_ms: float, rate_bit: int, limit_bytes: int, cpus: CpuSet
) -> Iterator[int]:
    """Send packets to the network through a relay; yield its pid. `rate_bit`: 0 for unlimited."""
    source, target, device, network = way.source, way.target, way.device, way.network
    with ExitStack() as stack:
        for namespace in (source, target):
            ip("-n", namespace, "tuntap", "add", "dev", device, "mode", "tun")
            stack.callback(_gone, namespace, device)
            ip("-n", namespace, "link", "set", "dev", device, "addrgenmode", "none")
            ip("-n", namespace, "link", "set", "dev", device, "txqueuelen", "10000", "up")
        argv = [
            *("taskset", "--cpu-list", format_cpus(cpus), *dies_with_labctl()),
            *(sys.executable, "-I", "-S", str(_RELAY)),
            *(str(NAMESPACES / source), device, str(NAMESPACES / target), device),
            *(f"{delay_ms:g}", str(rate_bit), str(limit_bytes)),
        ]
        output = stack.enter_context(tempfile.TemporaryFile())
        process = stack.enter_context(running(argv, stdout=output, stderr=output, grace_s=1.0))
        deadline = Deadline.after(_START_S, "starting the relay")
        while b"ready\n" not in written_by(output):
            if process.poll() is not None:
                raise BrokenError(f"the relay ended at once: {written_by(output)[-400:].decode()}")
            time.sleep(min(_POLL_S, deadline.remaining()))
        before = ip("-n", source, "route", "show", network).strip()
        ip("-n", source, "route", "replace", network, "dev", device)
        if before:
            stack.callback(ip, "-n", source, "route", "replace", *before.split())
        yield process.pid
        if process.poll() is not None:
            raise BrokenError(f"the relay ended unexpectedly: {written_by(output)[-400:].decode()}")


def _gone(namespace: str, device: str) -> None:
    with suppress(OSError), cleaning_up():
        ip("-n", namespace, "link", "del", device)
