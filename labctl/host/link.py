"""Give native runs a network of their own, with a link to a peer if their workloads have one. A
guest and native runs each have such a link, and the peer is in a network namespace of its own.

None of it is connected to the host's own network. See docs/decisions/network-link.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from labctl.base.errors import HostError
from labctl.host.narrow import NETWORK, Narrow, narrow_part
from labctl.host.settings.journal import Journal
from labctl.host.settings.netdevices import NAMESPACES, NetworkNamespace, TapDevice, ip
from labctl.host.settings.tunables import PRESENT

_VETH = "lab0"
"""Names inside the namespaces, where they cannot clash with others."""

_PREFIX = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnds:
    """Describe the two ends of one link: IPv4 addresses and MACs of the machine under test and of
    the peer.
    """

    machine: str
    peer: str
    machine_mac: str
    peer_mac: str

    def machine_commands(self, device: str) -> list[tuple[str, ...]]:
        """Return the arguments of ip(8) on the machine's side. The route to the network behind the
        peer's namespace is always set, even if that network is not there."""
        behind = ("route", "replace", NETWORK, "via", self.peer)
        return [*_end(device, self.machine, self.peer, self.peer_mac), behind]

    def peer_commands(self, device: str) -> list[tuple[str, ...]]:
        """Return the arguments of ip(8) on the peer's side."""
        return _end(device, self.peer, self.machine, self.machine_mac)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Hold the peer's namespace and the links that end in it. `tap`: the guest's device on the
    host. `narrow`: the part behind that namespace if a workload narrows its link, else None.

    198.18.0.0/15 is for measuring networks (RFC 2544, RFC 6815): nobody routes it.
    """

    peer_namespace: str
    native_namespace: str
    tap: str
    guest: LinkEnds
    native: LinkEnds
    narrow: Narrow | None = None

    @property
    def peer_file(self) -> Path:
        return NAMESPACES / self.peer_namespace

    @property
    def native_file(self) -> Path:
        return NAMESPACES / self.native_namespace

    def unplugged(self, number: int) -> Link:
        """Return the link with the tap device of a neighbour, which stays unplugged."""
        # At most 15 bytes, as below (IFNAMSIZ).
        return replace(self, tap=f"lab{self.tap.removeprefix('labctl')}n{number}")

    def plug(self) -> None:
        """Move the tap, which a guest has already opened, to the peer's namespace, with its
        address. A device that moves loses address and state; its open queues stay. Raises
        HostError."""
        try:
            ip("link", "set", "dev", self.tap, "netns", self.peer_namespace)
            own_mac = ("link", "set", "dev", self.tap, "address", self.guest.peer_mac)
            _configure(self.peer_namespace, [own_mac, *self.guest.peer_commands(self.tap)])
        except OSError as error:
            raise HostError(f"cannot plug the guest's NIC in: {error.strerror}") from error


@contextmanager
def link(journal: Journal, guest_mac: str, *, is_narrow: bool = False) -> Iterator[Link]:
    """Set up both namespaces and the native link; remove them at the end, or through the journal
    after SIGKILL. `is_narrow`: client and competitor behind the peer's namespace as well. Raises
    HostError if the host does not support them."""
    pid = os.getpid()
    made = Link(
        peer_namespace=f"labctl-peer-{pid}",
        native_namespace=_native_name(),
        # IFNAMSIZ: a name has 15 bytes at most, and a pid 7 digits.
        tap=f"labctl{pid}",
        guest=LinkEnds(
            machine="198.18.0.2",
            peer="198.18.0.1",
            machine_mac=guest_mac,
            # The lowest bits of the first byte: unicast, locally administered.
            peer_mac="02:6c:61:62:00:01",
        ),
        native=LinkEnds(
            machine="198.18.0.6",
            peer="198.18.0.5",
            machine_mac="02:6c:61:62:00:06",
            peer_mac="02:6c:61:62:00:05",
        ),
    )
    with ExitStack() as stack:
        for namespace in (made.peer_namespace, made.native_namespace):
            stack.enter_context(journal.changed(NetworkNamespace(namespace), PRESENT))
        try:
            _loopback_up(made.native_namespace)
            _make_native_link(made)
        except OSError as error:
            raise HostError(f"cannot make the native link: {error.strerror}") from error
        if is_narrow:
            narrow = stack.enter_context(narrow_part(journal, made.peer_namespace))
            made = replace(made, narrow=narrow)
        yield made


@contextmanager
def native_network(journal: Journal) -> Iterator[Path]:
    """Make a network namespace for native runs without a peer. It has its own ports and a loopback
    device, and nothing can reach it, as with a guest without a link. It is removed at the end, or
    through the journal after SIGKILL. Raises HostError if the host does not support it."""
    name = _native_name()
    with journal.changed(NetworkNamespace(name), PRESENT):
        try:
            _loopback_up(name)
        except OSError as error:
            raise HostError(f"cannot make a network for native runs: {error.strerror}") from error
        yield NAMESPACES / name


@contextmanager
def tap(journal: Journal, link: Link, *, many_queues: bool) -> Iterator[None]:
    """Make the guest's tap device, for one guest to open; remove it at the end, whichever namespace
    it is in. Raises HostError if the host does not support it."""
    queues = "many" if many_queues else "one"
    device = TapDevice(link.tap, link.peer_namespace, queues)
    with journal.changed(device, PRESENT):
        yield


def _native_name() -> str:
    return f"labctl-native-{os.getpid()}"


def _loopback_up(namespace: str) -> None:
    _configure(namespace, [("link", "set", "dev", "lo", "up")])


def _make_native_link(made: Link) -> None:
    ends = made.native
    ip(
        *("-n", made.peer_namespace, "link", "add", _VETH, "address", ends.peer_mac),
        *("type", "veth", "peer", "name", _VETH, "address", ends.machine_mac),
        *("netns", made.native_namespace),
    )
    _configure(made.peer_namespace, ends.peer_commands(_VETH))
    _configure(made.native_namespace, ends.machine_commands(_VETH))


def _configure(namespace: str, commands: list[tuple[str, ...]]) -> None:
    for words in commands:
        ip("-n", namespace, *words)


def _end(device: str, address: str, other: str, other_mac: str) -> list[tuple[str, ...]]:
    """Return one end of a link, set up so that only the workload's own packets cross it: no IPv6
    (no router solicitation) and a permanent neighbour entry (no ARP)."""
    return [
        ("link", "set", "dev", device, "addrgenmode", "none"),
        ("address", "replace", f"{address}/{_PREFIX}", "dev", device),
        ("link", "set", "dev", device, "up"),
        ("neighbour", "replace", other, "lladdr", other_mac, "dev", device, "nud", "permanent"),
    ]
