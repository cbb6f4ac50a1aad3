"""Counting block by block: what fails costs its own number, and two in a row end the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.run.guests.boots import BootError
from labctl.run.trials import density as module
from labctl.store.density_record import CountRecord, DensityFolder, DensityLog, DensityRecord
from tests.unit.density_records import record

ORDERS = {1: ("baseline", "vcpupin"), 2: ("vcpupin", "baseline"), 3: ("baseline", "vcpupin")}


@dataclass
class Host:
    """What goes wrong, by block and tuning; what was done, in order."""

    monkeypatch: pytest.MonkeyPatch
    log: DensityLog
    wrong: dict[tuple[int, str], Exception] = field(default_factory=dict)
    did: list[str] = field(default_factory=list)
    why_ended: Callable[[DensityRecord], str | None] = lambda record: None

    def run(self) -> None:
        boots = SimpleNamespace(saved=self._saved, drop=lambda: self.did.append("drop"))
        nothing = SimpleNamespace(check_tree=lambda: None, set_up=None)
        for name, fake in {
            "Proof": lambda *of: nothing,
            "PostBootSetup": lambda *of: nothing,
            "Calibrations": lambda *of: None,
            "Boots": lambda *of, **how: boots,
            "host_changed": self._changed,
            "with_cpus_of_now": lambda lab, tuning: lab,
            "clone_room": self._room,
            "tuned_guests": self._guests,
            "count_guests": self._count,
        }.items():
            self.monkeypatch.setattr(module, name, fake)
        tunings = {name: SimpleNamespace(name=name) for name in ("baseline", "vcpupin")}
        lab: Any = SimpleNamespace(
            tunings=tunings,
            source=SimpleNamespace(disks=lambda *of: {}),
            listener=lambda event: None,
        )
        of_sweep = SimpleNamespace(seed=7, roles=SimpleNamespace(baseline="baseline"))
        plan: Any = SimpleNamespace(
            planned=SimpleNamespace(plan=of_sweep),
            request=SimpleNamespace(blocks=3),
            order=lambda block: ORDERS[block],
        )
        job: Any = SimpleNamespace(program=SimpleNamespace(name="frame-loop"))
        quiet: Any = None
        module.count_blocks(lab, plan, job, self.log, quiet, self.why_ended)

    def _saved(self, block: int) -> int:
        if error := self.wrong.get((block, "boot")):
            raise error
        return block

    @contextmanager
    def _changed(self, lab: Any, tuning: Any) -> Iterator[None]:
        self.did.append(f"set {tuning.name}")
        yield
        self.did.append(f"undo {tuning.name}")

    @contextmanager
    def _room(self, lab: Any, saved: int, tuning: Any, seed: str) -> Iterator[Any]:
        assert seed == f"7:{saved}"
        yield SimpleNamespace(tuning=tuning)

    @contextmanager
    def _guests(self, room: Any) -> Iterator[Any]:
        yield SimpleNamespace(room=room)

    def _count(
        self, plan: Any, guests: Any, job: Any, block: int, log: Any, quiet: Any
    ) -> CountRecord:
        name = guests.room.tuning.name
        if error := self.wrong.get((block, name)):
            raise error
        return CountRecord(block=block, tuning=name, number=block)

    @property
    def counts(self) -> list[tuple[int, str, int | None]]:
        return [(c.block, c.tuning, c.number) for c in self.log.record.counts]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    folder = DensityFolder.create(tmp_path / "results" / "one")
    empty = record({"baseline": [None]}).model_copy(update={"steps": (), "counts": ()})
    return Host(monkeypatch, DensityLog(folder, empty))


def test_every_tuning_is_counted_in_every_block_in_the_plans_order(host: Host) -> None:
    host.run()
    assert host.counts == [(block, name, block) for block in ORDERS for name in ORDERS[block]]
    assert host.did[:4] == ["set baseline", "undo baseline", "set vcpupin", "undo vcpupin"]
    assert host.did[-1] == "drop"


def test_a_run_ends_after_the_block_that_decides_it(host: Host) -> None:
    host.why_ended = lambda record: "decided" if len(record.counts) >= 3 else None
    host.run()
    assert len(host.counts) == 4  # two whole blocks of three
    assert host.log.folder.read().stopped == "decided"
    assert host.did[-1] == "drop"


def test_what_fails_costs_its_own_number_alone(host: Host) -> None:
    host.wrong = {(2, "vcpupin"): BrokenError("the guest labctl-noisy-1 is gone")}
    host.run()
    lost = [count for count in host.log.record.counts if count.number is None]
    assert [(c.block, c.tuning, c.why) for c in lost] == [
        (2, "vcpupin", "the guest labctl-noisy-1 is gone")
    ]
    assert len(host.counts) == 6


def test_a_boot_that_fails_twice_ends_the_run_with_all_removed(host: Host) -> None:
    host.wrong = {(2, "boot"): BootError("the guest did not answer within 300 s")}
    with pytest.raises(BrokenError, match="2 counts failed in a row; the last one: .*300 s"):
        host.run()
    assert host.counts[2:] == [(2, "vcpupin", None), (2, "baseline", None)]
    assert host.did[-1] == "drop"


def test_a_host_that_can_not_go_on_ends_it_at_once(host: Host) -> None:
    host.wrong = {(1, "vcpupin"): HostError("cannot write: No space left on device")}
    with pytest.raises(HostError, match="No space left"):
        host.run()
    assert host.counts == [(1, "baseline", 1)]
    assert host.did[-1] == "drop"
