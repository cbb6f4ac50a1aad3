"""Guests as neighbours wait, work and tell what they did; one that is gone is named."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.channel import Serving
from labctl.base.command import Command, Server
from labctl.base.errors import BrokenError, HostError
from labctl.base.runner_messages import EndedServer
from labctl.domain.save_image import Identity
from labctl.run.guests import neighbours as module
from labctl.run.guests.clones import Clone
from labctl.run.guests.neighbours import NeighbourGuests, neighbour_guests
from labctl.study.conditions import Kind, Neighbour

CPUS = frozenset({0, 1})
FILES = {"hog.yaml": "---\n"}


@dataclass
class Guest:
    """A guest's runner, and what was asked of it."""

    name: str
    status: int = 0
    too_early: bool = False
    output: bytes = b"waits\n"
    is_gone: bool = False
    has_ended: bool = False
    did: list[Any] = field(default_factory=list)

    @contextmanager
    def serving(self, servers: Sequence[Server]) -> Iterator[Serving]:
        self.did.append([server.argv[0] for server in servers])
        serving = Serving(pids=[41, 42][: len(servers)])
        yield serving
        if not self.is_gone:
            ended = EndedServer(
                name="python3",
                too_early=self.too_early,
                status=self.status,
                output=self.output,
            )
            serving.ended = [ended] * len(servers)

    def run(self, command: Command, *, seconds: float) -> Any:
        self.did.append(command.argv)
        return SimpleNamespace(returncode=int(self.has_ended))

    def read(self, paths: Sequence[str], deadline: Any) -> dict[str, str]:
        row = {"status": 0, "seconds": 3.0, "stdout": "o", "stderr": "", "files": FILES}
        return dict.fromkeys(paths, json.dumps([row, row]))


@dataclass
class Room:
    """Where guests are made."""

    lab: Any = field(default_factory=lambda: SimpleNamespace(vcpus=2))
    memory_for: int = 9
    guests: list[Guest] = field(default_factory=list)

    def check_memory(self, more: int) -> None:
        if more > self.memory_for:
            raise HostError(f"{more} more guests")

    def add(self, cpus: Any) -> Clone:
        name = f"labctl-noisy-{len(self.guests) + 1}"
        self.guests.append(Guest(name))
        channel: Any = self.guests[-1]
        running: Any = SimpleNamespace(pid=100 + len(self.guests), name=name)
        return Clone(
            identity=Identity(name=name, uuid=f"{name}-uuid", macs=["52:54:00:00:00:01"]),
            running=running,
            channel=channel,
            waited_s=0.004,
            resumed_ns=17,
        )


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """CPU time of each guest, which is busier each time that it is looked at."""
    used: dict[int, int] = {}

    def cpu_ns(running: Any) -> int:
        used[running.pid] = used.get(running.pid, 0) + 1_000_000_000
        return used[running.pid]

    monkeypatch.setattr(module, "cpu_ns", cpu_ns)
    return used


def hog(**fields: Any) -> Neighbour:
    return Neighbour(program="cpu-hog", kind=Kind.GUESTS, **fields)


@contextmanager
def made(room: Room, declared: Neighbour) -> Iterator[NeighbourGuests]:
    as_room: Any = room
    with neighbour_guests(as_room, 3, declared, CPUS) as found:
        yield found


def test_each_runs_a_program_on_each_of_its_vcpus_and_tells_what_each_did() -> None:
    room = Room()
    with made(room, hog(guests=2)) as neighbours:
        assert neighbours.pids == [101, 102]
        assert [guest.did for guest in room.guests] == [[["python3"]], [["python3"]]]
        assert neighbours.outcome == []
        neighbours.start()
        assert [guest.did[-1] for guest in room.guests] == [("kill", "-USR1", "41")] * 2
        (used,) = neighbours.used()
        assert (used["workload"], used["cpus"]) == ("cpu-hog", "0-1")
        neighbours.stop()
    rows = neighbours.outcome
    assert [row["guest"]["name"] for row in rows] == [
        *["labctl-noisy-1"] * 2,
        *["labctl-noisy-2"] * 2,
    ]
    for row in rows:
        assert (row["kind"], row["workload"], row["was_killed"]) == (3, "cpu-hog", False)
        assert (row["seconds"], row["files"], row["stdout"]) == (3.0, FILES, "o")
        # Two programs share what their guest used.
        assert row["cpu_s"] == pytest.approx(1.5)
        assert row["guest"]["waited_s"] == 0.004


def test_all_are_checked_for_memory_before_the_first_is_made() -> None:
    room = Room(memory_for=3)
    with ExitStack() as stack, pytest.raises(HostError, match="4 more guests"):
        stack.enter_context(made(room, hog(guests=4)))
    assert room.guests == []


@pytest.mark.parametrize(
    ("of_guest", "said"),
    [
        (
            {"too_early": True, "output": b"waits\nstatus 9: no such file\n"},
            "the neighbour cpu-hog in labctl-noisy-2 ended unexpectedly with status 9: no "
            "such file",
        ),
        ({"is_gone": True}, "the neighbour cpu-hog in labctl-noisy-2 no longer answers"),
    ],
)
def test_one_that_ended_before_it_was_told_to_is_named(of_guest: dict[str, Any], said: str) -> None:
    room = Room()
    with made(room, hog(guests=2)) as neighbours:
        neighbours.start()
        for key, value in of_guest.items():
            setattr(room.guests[1], key, value)
        with pytest.raises(BrokenError) as caught:
            neighbours.stop()
    assert caught.value.message == said


def test_one_that_ended_while_it_waited_is_named() -> None:
    room = Room()
    with made(room, hog(guests=1)) as neighbours:
        room.guests[0].has_ended = True
        with pytest.raises(BrokenError, match="cpu-hog in labctl-noisy-1 ended before it was"):
            neighbours.start()


def test_one_that_had_to_be_killed_says_so_and_what_it_used() -> None:
    room = Room()
    with made(room, hog(guests=1, count=2)) as neighbours:
        neighbours.start()
        room.guests[0].status = -signal.SIGKILL
        neighbours.stop()
    assert [row["was_killed"] for row in neighbours.outcome] == [True, True]
    assert [row["files"] for row in neighbours.outcome] == [{}, {}]
    assert all(row["cpu_s"] > 0 for row in neighbours.outcome)


def test_what_holds_programs_is_closed_also_where_nobody_stopped_them() -> None:
    room, ended = Room(), []
    with suppress(KeyboardInterrupt), made(room, hog(guests=1)) as neighbours:
        neighbours.guests[0].stack.callback(ended.append, "ended")
        raise KeyboardInterrupt
    assert ended == ["ended"]
