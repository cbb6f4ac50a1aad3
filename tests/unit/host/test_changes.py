"""Several changes of the host at once, kept ones, and a death at any of their system calls."""

from __future__ import annotations

import errno
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.host.machines import boot_id
from labctl.host.settings import journal_file
from labctl.host.settings.journal import Journal, KnobChange, State
from labctl.host.settings.journal_file import UndoOutcome, decoded, encoded
from labctl.host.settings.tunables import FileValue

BEFORE = {"a": "01", "b": "02", "c": "03"}
"""As long as the values after: unlike the kernel's files, these keep what isn't written over."""

AFTER = {"a": "10", "b": "20", "c": "30"}


@pytest.fixture
def knobs(on_disk: Path) -> Path:
    folder = on_disk / "knobs"
    folder.mkdir()
    for name, value in BEFORE.items():
        (folder / name).write_text(value)
    return folder


def all_values(knobs: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(knobs.iterdir())}


def wanted(knobs: Path) -> list[KnobChange]:
    return [
        KnobChange(tunable=FileValue(str(knobs / n)), value=value) for n, value in AFTER.items()
    ]


class Refusing(FileValue):
    def write(self, value: str) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def in_a_child(act: Callable[[], object]) -> int:
    """What os.waitpid says of a process that did it."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        except BaseException:  # whatever it is, this process is a copy of pytest
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def killed_at_call(number: int, act: Callable[[], object]) -> bool:
    """Whether a process that did it lived to its `number`th call that changes a file; it was
    killed before that."""
    calls = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return counting

    def patched() -> None:
        for name in ("write", "fsync", "ftruncate", "mkdir"):
            setattr(os, name, counted(getattr(os, name)))
        act()

    status = in_a_child(patched)
    assert status in (0, signal.SIGKILL)
    return status != 0


def tune(journal: Journal, knobs: Path) -> None:
    with journal.changing() as changes:
        changes.make(wanted(knobs))
        changes.keep("several")


def test_all_are_written_down_before_the_first_is_made(journal: Journal, knobs: Path) -> None:
    seen: list[int] = []

    class Watched(FileValue):
        def write(self, value: str) -> None:
            seen.append(len(journal.path.read_text().splitlines()))
            super().write(value)

    with journal.changing() as changes:
        changes.make(
            [KnobChange(tunable=Watched(str(knobs / n)), value=v) for n, v in AFTER.items()]
        )
        assert all_values(knobs) == AFTER
    assert seen[:3] == [3, 3, 3]
    assert all_values(knobs) == BEFORE
    assert journal.pending() == []


def test_one_that_is_refused_undoes_those_before_it(journal: Journal, knobs: Path) -> None:
    changes = [*wanted(knobs)[:2], KnobChange(tunable=Refusing(str(knobs / "c")), value="30")]
    with (
        pytest.raises(HostError, match="cannot set .*c to '30': Operation not permitted"),
        journal.changing() as changing,
    ):
        changing.make(changes)
    assert all_values(knobs) == BEFORE
    assert journal.pending() == []


def test_an_optional_one_that_is_refused_is_left_and_told(journal: Journal, knobs: Path) -> None:
    refusing = KnobChange(tunable=Refusing(str(knobs / "b")), value="20", optional=True)
    gone = KnobChange(tunable=FileValue(str(knobs / "z")), value="20", optional=True)
    with journal.changing() as changes:
        refused = changes.make([gone, wanted(knobs)[0], refusing])
        assert [text.rpartition("knobs/")[2] for text in refused] == [
            "z is left as it is: No such file or directory",
            "b is left as it is: Operation not permitted",
        ]
        assert [entry.name[-1] for entry in journal.pending()] == ["a"]
    assert all_values(knobs) == BEFORE


def test_what_a_tool_changes_is_undone_without_it(journal: Journal, knobs: Path) -> None:
    seen = [KnobChange(tunable=FileValue(str(knobs / name))) for name in BEFORE]
    with journal.changing() as changes:
        changes.make(seen, act=lambda: (knobs / "b").write_text("22"))
        assert [(e.old, e.new) for e in journal.pending()] == [("02", "22")]
    assert all_values(knobs) == BEFORE


@pytest.mark.parametrize(("dragging", "b"), [(("10", "01"), "15"), (("01",), "02")])
def test_what_the_kernel_changes_along_is_put_back_last(
    journal: Journal, knobs: Path, dragging: tuple[str, ...], b: str
) -> None:
    """khugepaged's switch sets min_free_kbytes, whichever way it is turned."""

    class Dragging(FileValue):
        def write(self, value: str) -> None:
            super().write(value)
            if value in dragging:
                (knobs / "b").write_text(f"{int(value) + 5}")

    with journal.changing() as changes:
        changes.make(
            [
                KnobChange(tunable=FileValue(str(knobs / "b")), follows=True),
                KnobChange(tunable=Dragging(str(knobs / "a")), value="10"),
            ]
        )
        assert all_values(knobs) == {"a": "10", "b": b, "c": "03"}
    assert all_values(knobs) == BEFORE


def test_followers_alone_are_nothing_to_write_down(journal: Journal, knobs: Path) -> None:
    follower = KnobChange(tunable=FileValue(str(knobs / "b")), follows=True)
    with journal.changing() as changes:
        changes.make([follower, KnobChange(tunable=FileValue(str(knobs / "a")), value="01")])
    assert not journal.path.exists()


def test_what_is_kept_stays_until_it_is_asked_back(journal: Journal, knobs: Path) -> None:
    tune(journal, knobs)
    assert journal.restore_all() == []
    assert all_values(knobs) == AFTER
    assert {entry.kept for entry in journal.pending()} == {"several"}
    assert [standing.state for standing in journal.standing()] == [State.IN_FORCE] * 3
    assert {r.outcome for r in journal.restore_all(kept=True)} == {UndoOutcome.RESTORED}
    assert all_values(knobs) == BEFORE
    assert journal.path.read_text() == ""


def test_what_is_spared_stays_when_the_rest_is_asked_back(journal: Journal, knobs: Path) -> None:
    tune(journal, knobs)
    spared = journal.pending()[1].id
    journal.restore_all(kept=True, spared=[spared])
    assert all_values(knobs) == {**BEFORE, "b": AFTER["b"]}
    assert [entry.id for entry in journal.pending()] == [spared]


def test_a_run_on_top_of_what_is_kept_puts_back_only_its_own(journal: Journal, knobs: Path) -> None:
    tune(journal, knobs)
    with journal.changed(FileValue(str(knobs / "a")), "99"):
        pass
    assert all_values(knobs) == AFTER
    journal.restore_all(kept=True)
    assert all_values(knobs) == BEFORE


def test_a_death_at_any_system_call_of_tuning_is_undone(journal: Journal, knobs: Path) -> None:
    number = 1
    while killed_at_call(number, lambda: tune(journal, knobs)):
        assert all(entry.left_behind() or entry.kept for entry in journal.pending())
        journal.restore_all()
        assert all_values(knobs) in (BEFORE, AFTER)  # all of it is kept, or nothing
        journal.restore_all(kept=True)
        assert all_values(knobs) == BEFORE
        assert journal.pending() == []
        number += 1
    assert number > 10
    assert all_values(knobs) == AFTER


def test_a_death_at_any_system_call_of_restoring_is_made_up_for(
    journal: Journal, knobs: Path
) -> None:
    number = 1
    while True:
        assert in_a_child(lambda: tune(journal, knobs)) == 0
        killed = killed_at_call(number, lambda: journal.restore_all(kept=True))
        assert {r.outcome for r in journal.restore_all(kept=True)} <= {UndoOutcome.RESTORED}
        assert all_values(knobs) == BEFORE
        assert journal.pending() == []
        if not killed:
            break
        number += 1
    assert number > 4


def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.open

    def refusing(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).endswith(".jsonl"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)


def test_nothing_is_changed_where_the_journal_is_on_a_read_only_file_system(
    journal: Journal, knobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only(monkeypatch)
    with pytest.raises(HostError, match="Read-only file system"):
        tune(journal, knobs)
    assert all_values(knobs) == BEFORE


def test_a_file_system_that_has_become_read_only_keeps_no_setting_from_being_put_back(
    journal: Journal, knobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(journal, knobs)
    with monkeypatch.context() as patched:
        read_only(patched)
        assert journal.restore_all() == [], "nothing is due, so nothing needs writing"
        with pytest.raises(HostError, match="were restored as far as possible"):
            journal.restore_all(kept=True)
        assert all_values(knobs) == BEFORE
        assert len(journal.pending()) == 3
    assert {r.note for r in journal.restore_all(kept=True)} == {"had its old value already"}
    assert journal.pending() == []


def test_a_block_is_undone_although_its_journal_has_become_read_only(
    journal: Journal, knobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, journal.changed(FileValue(str(knobs / "a")), "10"):
        read_only(patched)
    assert all_values(knobs) == BEFORE


def test_a_knob_that_vanished_does_not_keep_the_others_from_being_put_back(
    journal: Journal, knobs: Path
) -> None:
    tune(journal, knobs)
    (knobs / "b").unlink()
    assert [s.state for s in journal.standing()] == [State.IN_FORCE, State.GONE, State.IN_FORCE]
    outcomes = [result.outcome for result in journal.restore_all(kept=True)]
    assert outcomes == [UndoOutcome.RESTORED, UndoOutcome.DROPPED, UndoOutcome.RESTORED]
    assert all_values(knobs) == {"a": "01", "c": "03"}
    assert journal.pending() == []


def test_after_a_reboot_what_was_kept_of_the_kernels_settings_is_forgotten_by_itself(
    journal: Journal, knobs: Path
) -> None:
    tune(journal, knobs)
    lines = [record for _, record in decoded(journal.path.read_bytes()).records]
    for line in lines:
        if line["op"] == "change":
            line["boot_id"] = "earlier"
    lines[0]["arguments"] = {"path": "/proc/sys/vm/swappiness"}
    journal.path.write_bytes(encoded(lines))
    assert [s.state for s in journal.standing()] == [
        State.REBOOTED,
        State.IN_FORCE,
        State.IN_FORCE,
    ]
    assert [result.outcome for result in journal.restore_all()] == [UndoOutcome.DROPPED]
    assert len(journal.pending()) == 2
    assert boot_id() != "earlier"


def test_a_journal_that_stays_for_weeks_does_not_grow_for_ever(
    journal: Journal, knobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_file, "_LARGE_BYTES", 4000)
    tune(journal, knobs)
    journal.path.with_suffix(".new").write_text("left by a crash")
    sizes = []
    for _ in range(20):
        with journal.changed(FileValue(str(knobs / "a")), "99"):
            sizes.append(journal.path.stat().st_size)
    assert max(sizes) < 6000
    assert journal.path.stat().st_mode & 0o777 == 0o600
    assert {entry.kept for entry in journal.pending()} == {"several"}
    journal.restore_all(kept=True)
    assert all_values(knobs) == BEFORE


def test_a_long_journal_that_only_half_fits_on_the_disk_stays_as_it_is(
    journal: Journal, knobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(journal, knobs)
    before = journal.path.read_bytes()
    really = os.write

    def half(file: int, data: bytes) -> int:
        return really(file, data[: len(data) // 2] if len(data) > 500 else data)

    def change() -> None:
        with monkeypatch.context() as patched, journal.changed(FileValue(str(knobs / "a")), "99"):
            patched.setattr(journal_file, "_LARGE_BYTES", 0)
            patched.setattr(os, "write", half)

    with pytest.raises(HostError, match="the undo journal .* can't be written: No space left"):
        change()
    assert journal.path.read_bytes().startswith(before)
    journal.restore_all(kept=True)
    assert all_values(knobs) == BEFORE


def test_a_foreign_value_among_several_stays_and_the_others_are_put_back(
    journal: Journal, knobs: Path
) -> None:
    def meddled_with() -> None:
        with journal.changing() as changes:
            changes.make(wanted(knobs))
            (knobs / "b").write_text("77")

    with pytest.raises(BrokenError, match="someone else"):
        meddled_with()
    assert all_values(knobs) == {"a": "01", "b": "77", "c": "03"}
    assert [entry.name[-1] for entry in journal.pending()] == ["b"]
