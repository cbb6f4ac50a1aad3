"""A clone with a tuning in force: where its threads are, and that none is left half made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.base.tuning import GuestSide
from labctl.domain.asked import EMULATOR, IOTHREAD, VCPU, ExpectedThread
from labctl.run.guests import neighbours as module
from labctl.run.guests.neighbours import TunedGuest, tuned_guests

DISK = SimpleNamespace(bus="virtio")


def threads(**cpus: set[int]) -> tuple[ExpectedThread, ...]:
    named = {"vcpu0": (VCPU, 0), "vcpu1": (VCPU, 1), "emulator": (EMULATOR, 0), "io": (IOTHREAD, 1)}
    return tuple(
        ExpectedThread(
            role=named[name][0],
            index=named[name][1],
            cpus=frozenset(own),
            policy="other",
            priority=0,
        )
        for name, own in cpus.items()
    )


@pytest.mark.parametrize(
    ("placed", "words"),
    [
        (threads(vcpu0={0, 1}, emulator={0, 1}), "CPU 0-1"),
        (threads(vcpu0={1}, emulator={0}), "vCPU 0: CPU 1, emulator: CPU 0"),
        (
            threads(vcpu0={2}, vcpu1={3}, emulator={0, 1}, io={0}),
            "vCPU 0: CPU 2, vCPU 1: CPU 3, emulator: CPU 0-1",
        ),
    ],
)
def test_its_cpus_are_said_in_words(placed: tuple[ExpectedThread, ...], words: str) -> None:
    clone: Any = SimpleNamespace(threads=placed)
    assert TunedGuest(1, clone, ()).cpus == words


class Room:
    def __init__(self) -> None:
        self.tuning = SimpleNamespace(guest=GuestSide(), disk=DISK, handicap_percent=0.0)
        self.lab = SimpleNamespace(data=SimpleNamespace(count=1))
        self.clones: list[int] = []
        self.made = 0

    def add(self, pins: Any) -> Any:
        self.made += 1
        self.clones.append(self.made)
        return SimpleNamespace(channel=None, pid=1, threads=())

    def remove_last(self) -> None:
        self.clones.pop()


def test_the_last_ones_are_ended_first_and_all_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "guest_data_paths", lambda disk, count: ())
    room: Any = Room()
    with tuned_guests(room) as guests:
        for _ in range(3):
            guests.add({})
        assert [guest.number for guest in guests.guests] == [1, 2, 3]
        guests.remove_last()
        assert room.clones == [1, 2]
    assert room.clones == []


def test_one_that_is_not_as_asked_inside_is_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "guest_data_paths", lambda disk, count: ())
    wrong = SimpleNamespace(problems=("in the guest /sys/x reads '0', expected '1'",))
    monkeypatch.setattr(module.tuned, "set_up", lambda *of: wrong)
    room: Any = Room()
    with tuned_guests(room) as guests:
        with pytest.raises(BrokenError, match="expected '1'"):
            guests.add({})
        assert (room.clones, guests.guests) == ([], [])
