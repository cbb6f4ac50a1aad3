"""The first boot of an image: one at a time, whoever asks for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import BrokenError, BusyError
from labctl.base.events import Event, Note
from labctl.guest.images import Image
from labctl.run.guests import base_guest as module
from labctl.run.guests.base_guest import prepared_disk
from labctl.study.tunings import load_tuning

BASELINE = load_tuning("baseline")
WAITING = "Another labctl is booting this image for the first time: waiting."


class Host:
    """Two labctls whose state folders share an image. A first boot takes until `over`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.image = Image(folder, {"user": "lab"})
        self.boots: list[Path] = []
        self.begun, self.over, self.is_awaited = (threading.Event() for _ in range(3))
        self.fails = False
        monkeypatch.setattr(module, "_boot_first", self.boot)

    def boot(self, lab: Any, baseline: Any, prepared: Path) -> None:
        self.boots.append(prepared)
        self.begun.set()
        assert self.over.wait(30)
        if self.fails:
            raise BrokenError("cloud-init failed")
        prepared.write_text(f"made by boot {len(self.boots)}")

    def listen(self, event: Event) -> None:
        if event == Note(text=WAITING):
            self.is_awaited.set()

    def prepared(self) -> Path:
        return prepared_disk(SimpleNamespace(image=self.image, listener=self.listen), BASELINE)  # type: ignore[arg-type]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_a_second_first_boot_waits_and_takes_what_the_first_has_made(host: Host) -> None:
    with ThreadPoolExecutor() as threads:
        first = threads.submit(host.prepared)
        assert host.begun.wait(30)
        second = threads.submit(host.prepared)
        assert host.is_awaited.wait(30)
        host.over.set()
        assert first.result() == second.result()
    assert first.result().read_text() == "made by boot 1"
    assert len(host.boots) == 1
    assert host.prepared() == first.result()
    assert len(host.boots) == 1


def test_who_waits_for_a_first_boot_does_not_wait_for_ever(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(host.prepared)
        assert host.begun.wait(30)
        with pytest.raises(BusyError, match="has not finished within"):
            host.prepared()
        host.over.set()
        first.result()


def test_a_first_boot_that_fails_leaves_the_next_its_turn(host: Host) -> None:
    host.fails = True
    host.over.set()
    with pytest.raises(BrokenError):
        host.prepared()
    host.fails = False
    assert host.prepared().read_text() == "made by boot 2"
    assert sorted(path.name for path in host.image.prepared_dir.iterdir()) == [
        host.boots[0].name,
    ]
