"""Which boots are made when, and what is looked at as soon as a guest has started."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.base.events import Event, Note, Warned
from labctl.host.cgroups import Hierarchy, Layout
from labctl.run.guests import boots as module
from labctl.run.guests.lab import Lab
from labctl.run.resources.disks import DataDisks

REAL_TIME = Layout({"cpu": Hierarchy(1, Path("/sys/fs/cgroup/cpu"))}, None, rt_group_sched=True)
IN_A_GROUP = {"cpu": "/machine/qemu-1-labctl-guest.libvirt-qemu/emulator", "autogroup": "/a nice 0"}


def lab(uri: str) -> Any:
    session = SimpleNamespace(uri=uri, is_embedded=uri.startswith("qemu:///embed"))
    return SimpleNamespace(layout=REAL_TIME, session=session)


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "placement", lambda pid: IN_A_GROUP)


def test_a_daemon_whose_cgroups_would_make_every_trial_invalid_ends_the_run_at_once() -> None:
    with pytest.raises(HostError, match="it is in the cpu cgroup /machine") as caught:
        module._check_place(lab("qemu:///system"), SimpleNamespace(pid=1))
    assert """'cgroup_controllers = ["devices"]' to /etc/libvirt""" in str(caught.value.hint)


def test_the_embedded_driver_has_a_qemu_conf_of_labctls() -> None:
    module._check_place(lab("qemu:///embed?root=/var/lib/labctl/lv"), SimpleNamespace(pid=1))


@dataclass
class Guests:
    """What a host does with guests that are asked for, in order: "start 1", "save 1", "end 1"."""

    monkeypatch: pytest.MonkeyPatch
    tmp_path: Path
    cpus: int = 2
    memory_bytes: int = 16 << 30
    link: Any = None
    may_boot_two: bool = True
    is_embedded: bool = True
    refused: tuple[str, ...] = ()
    """Domains that libvirt doesn't start."""
    pages: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    """Domains that never answer."""
    endless: tuple[str, ...] = ()
    """Domains that boot until they are ended."""
    lying: tuple[str, ...] = ()
    """Domains whose answers labctl trips over."""
    did: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def boots(self, *to_come: int) -> module.Boots:
        self.monkeypatch.setattr(module, "guest_xml", lambda lab, tuning, disks: lab.domain_name)
        # A guest's XML is its name here, live as well.
        self.monkeypatch.setattr(
            module, "with_usb_addresses", lambda asked, live: {live: asked}[asked]
        )
        self.monkeypatch.setattr(module, "pages_of", lambda xml: self.pages)
        self.monkeypatch.setattr(module, "huge_pages", lambda pages, journal: nullcontext())
        self.monkeypatch.setattr(module, "make_overlays", lambda *of: {})
        self.monkeypatch.setattr(module, "make_empty", lambda path, form: path.touch())
        self.monkeypatch.setattr(module, "hand_over", lambda lab, file: None)
        self.monkeypatch.setattr(module, "memory_available", lambda: self.memory_bytes)
        self.monkeypatch.setattr(module, "answering", self._answering)
        self.monkeypatch.setattr(module, "_check_place", lambda lab, running: None)
        self.monkeypatch.setattr(module.Boots, "set_up", lambda *of: None)
        self.monkeypatch.setattr(
            module.nic, "with_guest_nic", lambda *of: nullcontext(lambda guest: None)
        )
        source = SimpleNamespace(check=lambda: None, may_boot_two=self.may_boot_two)
        session = SimpleNamespace(
            uri="qemu:///embed?root=/x",
            is_embedded=self.is_embedded,
            start=lambda xml: self._running(xml),
            restore=lambda memory, xml, name: self._restored(memory, xml, name),
        )
        words: Any = dict.fromkeys(field.name for field in fields(Lab))
        words |= {
            "seat": 0,
            "work": self.tmp_path,
            "source": source,
            "session": session,
            "layout": REAL_TIME,
            "topology": SimpleNamespace(usable=frozenset(range(self.cpus))),
            "link": self.link,
            "memory_mib": 1024,
            "data": DataDisks(self.tmp_path / "data"),
            "boot_s": 180.0,
            "listener": self.events.append,
        }
        baseline: Any = SimpleNamespace(name="baseline", disk=SimpleNamespace(format="raw"))
        return module.Boots(Lab(**words), {}, baseline, lambda *of: None, to_come=to_come)

    def _running(self, name: str) -> Any:
        which = name.removeprefix("labctl-guest").removeprefix("-") or "1"
        if name in self.refused:
            raise BrokenError(f"libvirt does not start the guest {which}")
        self.did.append(f"start {which}")

        def save(path: Path) -> None:
            self.did.append(f"save {which}")
            path.write_text(name)

        ended = threading.Event()

        def end() -> None:
            if name in self.endless and not ended.is_set():
                self.did.append(f"end {which}")
            ended.set()

        return SimpleNamespace(
            pid=1,
            name=name,
            resume=lambda: None,
            live_xml=lambda: name,
            save=save,
            end=end,
            ended=ended,
        )

    def _restored(self, memory: Path, xml: str, name: str) -> Any:
        assert memory.read_text() == xml == name
        return SimpleNamespace(end=lambda: None)

    @contextmanager
    def _answering(self, lab: Any, running: Any, seconds: float, **how: bool) -> Iterator[Any]:
        if running.name in self.endless:
            assert running.ended.wait(60)
            raise BrokenError("the guest ended")
        if running.name in self.silent:
            raise BrokenError("the guest did not answer within 180 s")
        if running.name in self.lying:
            raise TypeError("'NoneType' object is not subscriptable")
        yield None

    def said(self) -> list[str]:
        return [e.text for e in self.events if isinstance(e, Note | Warned)]


@pytest.fixture
def guests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Guests:
    return Guests(monkeypatch, tmp_path)


def test_two_boots_are_made_at_once_and_kept_until_their_blocks_are_over(
    guests: Guests, tmp_path: Path
) -> None:
    boots = guests.boots(1, 2, 3)
    first = boots.saved(1)
    assert guests.did[:2] == ["start 1", "start 2"]
    assert sorted(guests.did[2:]) == ["save 1", "save 2"]
    assert guests.said() == ["Booting two guests (1, 2)."]
    assert boots.saved(1) is first
    second = boots.saved(2)
    assert len(guests.did) == 4
    assert [path.name for path in tmp_path.glob("*.save")] == ["boot-2.save"]
    assert (first.number, second.number) == (1, 2)
    boots.saved(3)
    assert guests.did[4:] == ["start 1", "save 1"]
    assert [path.name for path in tmp_path.glob("*.save")] == ["boot-3.save"]
    boots.drop()
    assert list(tmp_path.glob("*.save")) == []


def test_each_is_restored_under_the_name_that_it_was_saved_with(guests: Guests) -> None:
    boots = guests.boots(1, 2)
    for planned in (1, 2):
        with boots.restored(planned, guests.boots()._baseline) as paused:
            assert paused.boot == planned


def test_a_boot_takes_half_of_what_two_took_together(guests: Guests) -> None:
    boots = guests.boots(1, 2)
    boots.saved(1)
    assert boots.seconds[1] == boots.seconds[2]


@pytest.mark.parametrize(
    "lacking",
    [
        {"cpus": 1},
        {"memory_bytes": 2 << 30},
        {"link": "there is one link"},
        {"may_boot_two": False},
        {"pages": ("2M",)},
        {"is_embedded": False},
    ],
)
def test_a_host_without_room_for_two_boots_one_at_a_time(
    guests: Guests, lacking: dict[str, Any]
) -> None:
    alone = replace(guests, **lacking)
    boots = alone.boots(1, 2)
    boots.saved(1)
    assert alone.did == ["start 1", "save 1"]
    assert alone.said() == ["Booting a guest (1)."]
    boots.saved(2)
    assert alone.did[2:] == ["start 1", "save 1"]


def test_a_spare_or_the_last_boot_boots_alone(guests: Guests) -> None:
    boots = guests.boots(1)
    boots.saved(1)
    boots.saved(2)
    assert guests.did == ["start 1", "save 1"] * 2


def test_a_second_guest_that_fails_is_booted_again_when_its_block_comes(guests: Guests) -> None:
    boots = replace(guests, silent=("labctl-guest-2",)).boots(1, 2)
    assert boots.saved(1).number == 1
    assert guests.did == ["start 1", "start 2", "save 1"]
    assert guests.said()[-1] == (
        "boot 2 failed beside boot 1: the guest did not answer within 180 s"
    )
    assert boots.saved(2).number == 3
    assert guests.did[3:] == ["start 1", "save 1"]


def test_where_two_cannot_start_at_once_one_boots_at_a_time_from_then_on(guests: Guests) -> None:
    boots = replace(guests, refused=("labctl-guest-2",)).boots(1, 2, 3)
    boots.saved(1)
    assert guests.did == ["start 1", "start 1", "save 1"]
    assert guests.said()[1] == (
        "cannot boot two guests at once, so one boots at a time: libvirt does not start the guest 2"
    )
    boots.saved(2)
    assert guests.did[3:] == ["start 1", "save 1"]


def test_a_first_guest_that_fails_is_a_failed_boot(guests: Guests) -> None:
    boots = replace(guests, silent=("labctl-guest",)).boots(1, 2)
    with pytest.raises(module.BootError, match="did not answer"):
        boots.saved(1)


def test_the_guest_beside_a_boot_that_failed_is_ended(guests: Guests) -> None:
    # The second one is still booting then, and nothing waits for it.
    boots = replace(guests, silent=("labctl-guest",), endless=("labctl-guest-2",)).boots(1, 2)
    with pytest.raises(module.BootError, match="did not answer"):
        boots.saved(1)
    assert "end 2" in guests.did


def test_an_answer_that_nobody_foresaw_is_a_failed_boot(guests: Guests) -> None:
    boots = replace(guests, lying=("labctl-guest",)).boots(1)
    with pytest.raises(
        module.BootError, match="a fault in labctl, while the guest of boot 1 was ready"
    ):
        boots.saved(1)


def test_one_of_a_guest_that_booted_beside_another_costs_that_boot_alone(guests: Guests) -> None:
    boots = replace(guests, lying=("labctl-guest-2",)).boots(1, 2)
    assert boots.saved(1).number == 1
    assert "boot 2 failed beside boot 1: a fault in labctl" in guests.said()[-1]
