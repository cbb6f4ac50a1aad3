"""Clones of one saved guest differ in all that would make them one guest twice, and are all gone
afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.base.paths import guest_name, guest_uuid, mac_of, neighbour_seat
from labctl.domain.save_image import SaveHeader, identity_of
from labctl.host.cgroups import Hierarchy, Layout
from labctl.run.guests import clones
from labctl.run.guests import clones as module
from labctl.run.guests.clones import TICK_S, CloneParts, clone_room
from tests.unit.domain.test_save_image import STREAM, header

CPUS = frozenset({0, 1})


@dataclass
class Host:
    """What starts there, in order, and what is left of it."""

    monkeypatch: pytest.MonkeyPatch
    tmp_path: Path
    silent: str = ""
    """Name of a guest that doesn't answer."""
    did: list[str] = field(default_factory=list)
    seeds: list[bytes] = field(default_factory=list)

    def room(self, seed: str = "7:1") -> Any:
        saved = self.tmp_path / "boot-1.save"
        saved.write_bytes(header() + STREAM)
        for name, fake in {
            "clone_parts": self._parts,
            "answering": self._answering,
            "check_place": lambda *of: None,
            "confined_threads": lambda *of: [],
            "reseed": lambda channel, seed: self.seeds.append(seed),
            "guest_xml": lambda *of: "<domain/>",
        }.items():
            self.monkeypatch.setattr(module, name, fake)
        session = SimpleNamespace(restore=self._restore)
        lab: Any = SimpleNamespace(memory_mib=512, session=session, layout=None)
        boot: Any = SimpleNamespace(
            memory=saved, copy=saved.with_suffix(".copy"), disks={}, live=""
        )
        tuning: Any = None
        return clone_room(lab, boot, tuning, seed)

    @contextmanager
    def _parts(self, lab: Any, saved: Any, tuning: Any, cpus: Any, number: int) -> Iterator[Any]:
        seat = neighbour_seat(number)
        uuid = guest_uuid(self.tmp_path, seat)
        self.did.append(f"make {number}")
        yield CloneParts(
            lab,
            f"<domain><name>{guest_name(seat)}</name><uuid>{uuid}</uuid><devices><interface>"
            f"<mac address='{mac_of(uuid)}'/></interface></devices></domain>",
        )
        self.did.append(f"remove {number}")

    def _restore(self, copy: Path, xml: str, name: str) -> Any:
        saved = SaveHeader.parse(copy.read_bytes(), "copy")
        assert identity_of(saved.xml) == identity_of(xml)
        assert copy.read_bytes()[saved.size :] == STREAM
        self.did.append(f"restore {name}")
        return SimpleNamespace(name=name, pid=1, end=lambda: self.did.append(f"end {name}"))

    @contextmanager
    def _answering(self, lab: Any, running: Any, seconds: float, **how: Any) -> Iterator[Any]:
        if running.name == self.silent:
            raise BrokenError(f"{how['what']} did not answer within {seconds:g} s")
        yield None


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    monkeypatch.setattr(module, "memory_problem", lambda more, memory: None)
    return Host(monkeypatch, tmp_path)


def test_each_is_restored_as_a_guest_of_its_own_and_ended_with_its_files(host: Host) -> None:
    with host.room() as room:
        made = [room.add(CPUS).to_json() for _ in range(3)]
        restored = [f"restore labctl-noisy-{n}" for n in (1, 2, 3)]
        assert [what for what in host.did if what.startswith("restore")] == restored
    assert host.did[-6:] == [
        *("end labctl-noisy-3", "remove 2", "end labctl-noisy-2", "remove 1"),
        *("end labctl-noisy-1", "remove 0"),
    ]
    for key in ("name", "uuid"):
        assert len({clone[key] for clone in made}) == 3
    assert len({clone["macs"][0] for clone in made}) == 3
    saved = SaveHeader.parse((host.tmp_path / "boot-1.save").read_bytes(), "boot-1.save")
    assert identity_of(saved.xml).name == "labctl-guest"


def test_none_shares_its_timers_phase_or_random_numbers_and_a_seed_gives_them_again(
    host: Host,
) -> None:
    waits = []
    for seed in ("7:1", "7:1", "7:2"):
        with host.room(seed) as room:
            waits.append([room.add(CPUS).waited_s for _ in range(4)])
    assert waits[0] == waits[1]
    assert waits[0] != waits[2]
    assert len(set(waits[0])) == 4
    assert all(0 <= wait < TICK_S for wait in waits[0])
    assert host.seeds[:4] == host.seeds[4:8]
    assert len(set(host.seeds)) == 8
    assert {len(seed) for seed in host.seeds} == {32}


def test_one_that_does_not_answer_is_ended_at_once_and_the_others_with_the_room(host: Host) -> None:
    host.silent = "labctl-noisy-2"
    with host.room() as room:
        room.add(CPUS)
        with pytest.raises(BrokenError, match="guest labctl-noisy-2 did not answer within 60 s"):
            room.add(CPUS)
    assert [what for what in host.did if what.startswith("end")] == [
        "end labctl-noisy-2",
        "end labctl-noisy-1",
    ]


def test_nothing_is_made_without_memory_for_it(host: Host) -> None:
    refusal = HostError("1 more guests of 512 MiB need 576 MiB")
    host.monkeypatch.setattr(module, "memory_problem", lambda more, memory: refusal)
    with pytest.raises(HostError, match="need 576 MiB"), host.room() as room:
        room.add(CPUS)
    assert host.did == []


def test_a_full_disk_ends_the_run_and_leaves_no_part_of_a_copy(host: Host) -> None:
    def full(saved: Path, copy: Path) -> None:
        copy.write_bytes(b"Libvirt")
        raise OSError(28, os.strerror(28))

    host.monkeypatch.setattr(module, "copy_saved", full)
    with pytest.raises(HostError, match="No space left on device"), host.room() as room:
        room.add(CPUS)
    assert not (host.tmp_path / "boot-1.copy").exists()


def test_threads_that_may_run_elsewhere_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout({"cpu": Hierarchy(2, Path("/sys/fs/cgroup"))}, None, rt_group_sched=False)
    monkeypatch.setattr(clones, "weight_problems", lambda *given: [])
    running: Any = SimpleNamespace(
        pid=os.getpid(),
        name="labctl-noisy-1",
        vcpu_threads=lambda: {0: os.getpid()},
        iothread_threads=dict,
    )
    expected = clones.confined_threads(running, frozenset({4096}))
    with pytest.raises(BrokenError) as caught:
        clones.check_place(layout, running, expected)
    assert caught.value.message.startswith("the guest labctl-noisy-1 differs from its tuning:")
    assert "vCPU 0 " in caught.value.message
    assert "expected CPU 4096" in caught.value.message


def test_the_cpu_time_of_a_guest_is_all_of_its_process() -> None:
    running: Any = SimpleNamespace(pid=os.getpid(), name="labctl-noisy-1")
    before = clones.cpu_ns(running)
    assert sum(range(300_000)) > 0
    assert clones.cpu_ns(running) > before
    running.pid = 2**22
    with pytest.raises(BrokenError, match="the guest labctl-noisy-1 is gone"):
        clones.cpu_ns(running)


def test_the_last_one_can_be_ended_and_its_place_taken_again(host: Host) -> None:
    with host.room() as room:
        first, second = room.add(CPUS), room.add(CPUS)
        room.remove_last()
        assert room.clones == [first]
        again = room.add(CPUS)
        assert again.identity == second.identity
        assert host.did.count(f"end {second.identity.name}") == 1
    assert host.did[-2:] == [f"end {first.identity.name}", "remove 0"]
