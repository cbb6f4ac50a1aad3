"""What a labctl that was killed left behind is ended; what is somebody else's is not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from labctl.base.events import Event, Note
from labctl.base.paths import StatePaths
from labctl.run.guests import leftovers
from labctl.run.guests.leftovers import clean_up, leftover_guests


@pytest.fixture
def places(tmp_path: Path) -> StatePaths:
    places = StatePaths(tmp_path / "state")
    (places.libvirt_root / "run/qemu").mkdir(parents=True)
    return places


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@contextmanager
def sleeper(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose argv is that of a guest, in what matters."""
    script = "import sys, time; print(flush=True); time.sleep(60)"
    argv = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def guest_arguments(places: StatePaths, name: str = "labctl-guest") -> list[str]:
    return ["-name", f"guest={name},debug-threads=on", "-drive", f"file={places.work}/root.qcow2"]


def pid_file(places: StatePaths, pid: object, name: str = "labctl-guest") -> None:
    (places.libvirt_root / "run/qemu" / f"{name}.pid").write_text(str(pid))


def test_a_guest_without_an_owner_is_ended_and_named(
    places: StatePaths, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = stack.enter_context(sleeper(*guest_arguments(places)))
    pid_file(places, guest.pid)
    kill = os.kill

    def kill_slowly(pid: int, number: int) -> None:
        threading.Timer(0.2, kill, (pid, number)).start()

    monkeypatch.setattr(leftovers.os, "kill", kill_slowly)
    said: list[Event] = []
    clean_up(places, said.append)
    # It is gone when clean_up returns, not only told to go: the next run needs its memory.
    assert Path(f"/proc/{guest.pid}/cmdline").read_bytes() == b""
    assert guest.wait(10) == -9
    assert [event.text for event in said if isinstance(event, Note)] == [
        "Stopped the guest 'labctl-guest' of an interrupted labctl."
    ]


def test_guests_that_ran_at_once_are_all_ended_and_neighbours_among_them(
    places: StatePaths, stack: ExitStack
) -> None:
    names = ("labctl-guest", "labctl-guest-2", "labctl-noisy-1", "labctl-noisy-64")
    guests = [stack.enter_context(sleeper(*guest_arguments(places, name))) for name in names]
    for name, guest in zip(names, guests, strict=True):
        pid_file(places, guest.pid, name)
    clean_up(places, lambda event: None)
    assert [guest.wait(10) for guest in guests] == [-9, -9, -9, -9]


def test_a_recycled_pid_is_somebody_elses_process(places: StatePaths, stack: ExitStack) -> None:
    other = stack.enter_context(sleeper("-name", "guest=theirs"))
    pid_file(places, other.pid)
    clean_up(places, lambda event: None)
    assert other.poll() is None


def test_the_guest_of_another_state_folder_is_left_alone(
    places: StatePaths, stack: ExitStack, tmp_path: Path
) -> None:
    elsewhere = StatePaths(tmp_path / "elsewhere")
    guest = stack.enter_context(sleeper(*guest_arguments(elsewhere)))
    pid_file(places, guest.pid)
    assert leftover_guests(places) == {}


def test_a_guest_that_is_not_labctls_is_left_alone(places: StatePaths, stack: ExitStack) -> None:
    guest = stack.enter_context(sleeper(*guest_arguments(places, "web")))
    pid_file(places, guest.pid, "web")
    assert leftover_guests(places) == {}


@pytest.mark.parametrize("text", ["", "garbage", "-1", "999999999"])
def test_a_pid_file_that_names_no_process_is_passed_over(places: StatePaths, text: str) -> None:
    pid_file(places, text)
    assert leftover_guests(places) == {}


def test_the_work_folder_is_emptied_of_what_a_guest_knew(places: StatePaths) -> None:
    (places.work / "sockets").mkdir(parents=True)
    (places.work / "boot-1.save").write_text("memory")
    clean_up(places, lambda event: None)
    assert not places.work.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="files are given away by root alone")
def test_the_data_disk_is_taken_back_from_qemus_user(places: StatePaths) -> None:
    places.data.mkdir()
    disk, link = places.data / "data.img", places.data / "link"
    disk.touch(mode=0o640)
    link.symlink_to(places.root / "elsewhere")
    os.chown(disk, 65534, 65534)
    clean_up(places, lambda event: None)
    assert (disk.stat().st_uid, disk.stat().st_gid) == (0, 65534)


def test_a_state_folder_that_was_never_used_needs_nothing(tmp_path: Path) -> None:
    said: list[Event] = []
    clean_up(StatePaths(tmp_path / "new"), said.append)
    assert said == []
    assert not (tmp_path / "new").exists()
