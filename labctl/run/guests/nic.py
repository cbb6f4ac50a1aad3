"""Plug in a guest's NIC while it is paused, configure it after the boot, and check it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.process import last_words
from labctl.base.tuning import Network, Tuning
from labctl.domain.session import RunningGuest
from labctl.host.link import tap
from labctl.run.guests.lab import Lab

RAW = "network.json"

_SECONDS = 60.0
_RING_PACKED = 34
"""VIRTIO_F_RING_PACKED (virtio 1.1, "Reserved Feature Bits")."""

_DRIVERS = {"virtio": "virtio_net", "e1000e": "e1000e"}
"""Model of a network card to the guest's driver of it."""

_FIND = """\
for card in /sys/class/net/*; do
    [ "$(cat "$card/address")" = "$1" ] || continue
    echo "${card##*/}"
    basename "$(readlink -f "$card/device/driver")"
    cat "$card/device/features" 2>/dev/null || echo
    ls -d "$card"/queues/rx-* | wc -l
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState:
    """State of a guest's network card. `problems`: differences from the request, a sentence each;
    `evidence`: file name to what was read back."""

    problems: tuple[str, ...] = ()
    evidence: dict[str, object] = field(default_factory=dict)


@contextmanager
def with_guest_nic(lab: Lab, tuning: Tuning) -> Iterator[Callable[[RunningGuest], None]]:
    """Make a tap device for one guest and plug it in once that guest has it open (or end the guest
    if that fails). Does nothing in a run without a link."""
    link = lab.link
    if link is None:
        yield lambda running: None
        return

    def plug(running: RunningGuest) -> None:
        try:
            link.plug()
        except BaseException:
            running.end()
            raise

    with tap(lab.journal, link, many_queues=(tuning.network.queues or 1) > 1):
        yield plug


def configure(lab: Lab, channel: Channel) -> None:
    """Give the network card of a booted guest its address; a restored guest has it. Raises
    BrokenError with the message of ip(8) in the guest if it fails."""
    if lab.link is None:
        return
    device, *_ = _card(lab.link.guest.machine_mac, channel)
    for words in lab.link.guest.machine_commands(device):
        _output(channel, "ip", *words)


def look(lab: Lab, channel: Channel, asked: Network) -> CardState:
    """Return the card's state in the guest's kernel, compared with the request: its driver, and
    packed rings as negotiated, which no domain XML shows."""
    if lab.link is None:
        return CardState()
    device, driver, features, queues = _card(lab.link.guest.machine_mac, channel)
    packed = features[_RING_PACKED : _RING_PACKED + 1] == "1"
    problems = []
    if driver != _DRIVERS[asked.model]:
        problems.append(
            f"network card of the guest: expected driver {_DRIVERS[asked.model]}, got {driver}"
        )
    if asked.packed is not None and packed != asked.packed:
        problems.append(
            f"network card of the guest: expected {'packed' if asked.packed else 'split'} "
            f"rings, got {'packed' if packed else 'split'}"
        )
    found = {"device": device, "driver": driver, "packed": packed, "rx_queues": int(queues)}
    return CardState(problems=tuple(problems), evidence={RAW: found})


def _card(mac: str, channel: Channel) -> list[str]:
    """Return name, driver, virtio's features (a digit each; "" for others) and number of receive
    queues of the guest's network card."""
    lines = _output(channel, "sh", "-c", _FIND, "sh", mac).split("\n")
    if len(lines) != 4 or not lines[3].strip().isdecimal():
        raise BrokenError(
            f"the guest has no network card {mac} with a driver",
            hint="Its kernel may have no driver for that model: boot another image, or use "
            "--kernel.",
        )
    return [line.strip() for line in lines]


def _output(channel: Channel, *argv: str) -> str:
    result = channel.run(Command(argv=argv), seconds=_SECONDS)
    if result.returncode != 0:
        raise BrokenError(f"'{argv[0]}' fails in the guest: {last_words(result.stderr)}")
    return result.stdout.decode(errors="replace").strip("\n")
