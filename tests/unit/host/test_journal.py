from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.host.machines import boot_id, is_alive, start_time
from labctl.host.settings import tunables
from labctl.host.settings.journal import Journal, State
from labctl.host.settings.journal_file import DamagedError, UndoOutcome, decoded, encoded
from labctl.host.settings.tunables import PRESENT, CgroupFolder, FileAccess, FileValue


@pytest.fixture
def setting(on_disk: Path) -> Path:
    path = on_disk / "swappiness"
    path.write_text("60")
    return path


def entry_of_a_dead_owner(path: Path, **fields: Any) -> dict[str, Any]:
    return {
        "op": "change",
        "id": fields.pop("id", "a"),
        "name": str(path),
        "kind": "file-value",
        "arguments": {"path": str(path)},
        "old": "60",
        "new": "10",
        # A pid that is alive, but that another process had when it wrote this.
        "pid": os.getpid(),
        "pid_start": 1,
        "boot_id": boot_id(),
        "time": "2026-01-01T00:00:00+00:00",
        **fields,
    }


def write_journal(journal: Journal, *records: dict[str, Any], tail: str = "") -> None:
    journal.path.parent.mkdir(parents=True)
    journal.path.write_text("".join(json.dumps(record) + "\n" for record in records) + tail)


def test_a_changed_setting_has_its_old_value_after_the_block(
    journal: Journal, setting: Path
) -> None:
    with journal.changed(FileValue(str(setting)), "10"):
        assert setting.read_text() == "10"
        assert [(e.old, e.new) for e in journal.pending()] == [("60", "10")]
    assert setting.read_text() == "60"
    assert journal.pending() == []


def test_a_failing_block_is_undone_too(journal: Journal, setting: Path) -> None:
    with pytest.raises(KeyError), journal.changed(FileValue(str(setting)), "10"):
        raise KeyError
    assert setting.read_text() == "60"


def test_nothing_is_written_down_for_a_value_that_is_there_already(
    journal: Journal, setting: Path
) -> None:
    with journal.changed(FileValue(str(setting)), "60"):
        assert not journal.path.exists()


def test_the_entry_is_on_disk_before_the_change(journal: Journal, setting: Path) -> None:
    written: list[bytes] = []

    class Watched(FileValue):
        def write(self, value: str) -> None:
            written.append(journal.path.read_bytes())
            super().write(value)

    with journal.changed(Watched(str(setting)), "10"):
        pass
    assert decoded(written[0]).records[0][1]["old"] == "60"


def test_a_setting_that_reads_back_differently_is_an_error_and_undone(
    journal: Journal, setting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labctl.host.settings.journal._READ_BACK_S", 0.0)

    class Clamping(FileValue):
        def write(self, value: str) -> None:
            super().write("50" if value == "10" else value)

    with (
        pytest.raises(HostError, match="set to '10' but reads '50'"),
        journal.changed(Clamping(str(setting)), "10"),
    ):
        pytest.fail("the block must not run")
    assert setting.read_text() == "60"


def test_a_setting_that_reads_back_late_is_waited_for(journal: Journal, setting: Path) -> None:
    late: list[str] = []

    class Slow(FileValue):
        def write(self, value: str) -> None:
            late.append(super().read())
            super().write(value)

        def read(self) -> str:
            return late.pop() if late else super().read()

    with journal.changed(Slow(str(setting)), "10"):
        assert setting.read_text() == "10"
    assert setting.read_text() == "60"
    assert journal.pending() == []


def test_a_missing_setting_is_an_error_with_nothing_written(
    journal: Journal, tmp_path: Path
) -> None:
    with (
        pytest.raises(HostError, match=r"cannot read .*gone"),
        journal.changed(FileValue(str(tmp_path / "gone")), "1"),
    ):
        pytest.fail("the block must not run")
    assert not journal.path.exists()


def test_after_sigkill_the_next_command_puts_every_value_back(
    journal: Journal, setting: Path
) -> None:
    script = f"""
import os, signal
from pathlib import Path
from labctl.host.settings.journal import Journal
from labctl.host.settings.tunables import FileAccess, FileValue
journal = Journal(Path({str(journal.path)!r}))
path = {str(setting)!r}
access = FileAccess(path)
with (
    journal.changed(FileValue(path), "10"),
    journal.changed(FileValue(path), "20"),
    journal.changed(access, access.read().replace("0644", "0600")),
):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    os.chmod(setting, 0o644)
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == -9
    assert setting.read_text() == "20"
    assert setting.stat().st_mode & 0o777 == 0o600

    results = journal.restore_all()

    assert [result.outcome for result in results] == [UndoOutcome.RESTORED] * 3
    assert [result.old for result in results][1:] == ["10", "60"]
    assert setting.read_text() == "60"
    assert setting.stat().st_mode & 0o777 == 0o644
    assert journal.path.read_text() == ""


def test_changes_of_a_living_owner_are_left_alone(journal: Journal, setting: Path) -> None:
    with journal.changed(FileValue(str(setting)), "10"):
        assert journal.restore_all() == []
        assert journal.restore_all(kept=True) == [], "a run's own changes are not kept ones"
        assert setting.read_text() == "10"


def test_a_pid_that_another_process_has_got_since_does_not_protect_an_entry(
    journal: Journal, setting: Path
) -> None:
    write_journal(journal, entry_of_a_dead_owner(setting))
    setting.write_text("10")
    assert [result.note for result in journal.restore_all()] == ["was '10'"]
    assert setting.read_text() == "60"


def test_a_change_that_was_not_read_back_is_undone_whatever_is_found(
    journal: Journal, setting: Path
) -> None:
    """It may have been made in part: 500 huge pages instead of 512."""
    write_journal(journal, entry_of_a_dead_owner(setting))
    setting.write_text("33")
    assert journal.restore_all()[0].note == "was '33'"
    assert setting.read_text() == "60"


def test_a_value_that_someone_else_set_since_is_shown_and_left(
    journal: Journal, setting: Path
) -> None:
    write_journal(journal, entry_of_a_dead_owner(setting), {"op": "changed", "id": "a"})
    setting.write_text("33")
    [standing] = journal.standing()
    assert (standing.state, standing.present) == (State.FOREIGN, "33")
    [result] = journal.restore_all()
    assert (result.outcome, result.note) == (
        UndoOutcome.FOREIGN,
        "someone else has set it to '33' since",
    )
    assert setting.read_text() == "33"
    assert len(journal.pending()) == 1


@pytest.mark.parametrize(("how", "left"), [("force", "60"), ("accept", "33")])
def test_what_someone_else_set_can_be_overwritten_or_accepted(
    journal: Journal, setting: Path, how: str, left: str
) -> None:
    write_journal(journal, entry_of_a_dead_owner(setting), {"op": "changed", "id": "a"})
    setting.write_text("33")
    assert journal.restore_all(force=how == "force", accept=how == "accept")[0].outcome.settles
    assert setting.read_text() == left
    assert journal.pending() == []


def test_what_someone_else_set_inside_the_block_is_an_error_after_it(
    journal: Journal, setting: Path
) -> None:
    with (
        pytest.raises(BrokenError, match="set it to '10', but someone else has set it to '33'"),
        journal.changed(FileValue(str(setting)), "10"),
    ):
        setting.write_text("33")
    assert setting.read_text() == "33"


def test_a_value_that_an_earlier_change_of_ours_made_is_not_someone_elses(
    journal: Journal, setting: Path
) -> None:
    first = entry_of_a_dead_owner(setting, id="a")
    second = entry_of_a_dead_owner(setting, id="b", old="10", new="20")
    done = ({"op": "changed", "id": id_} for id_ in "ab")
    write_journal(journal, first, second, *done)
    setting.write_text("10")
    assert {result.outcome for result in journal.restore_all()} == {UndoOutcome.RESTORED}
    assert setting.read_text() == "60"


@pytest.mark.parametrize(("is_kernels", "left"), [(True, "60"), (False, "33")])
def test_what_someone_else_set_between_two_changes_of_ours_is_left_if_it_is_a_file(
    journal: Journal, setting: Path, monkeypatch: pytest.MonkeyPatch, is_kernels: bool, left: str
) -> None:
    """A file may be edited by hand; a kernel setting has the value that the first change found."""
    if is_kernels:
        monkeypatch.setattr(tunables, "_KERNEL_FOLDERS", (str(setting.parent),))
    second = entry_of_a_dead_owner(setting, id="b", old="33", new="20")
    done = ({"op": "changed", "id": id_} for id_ in "ab")
    write_journal(journal, entry_of_a_dead_owner(setting), second, *done)
    setting.write_text("20")
    journal.restore_all()
    assert setting.read_text() == left


def test_a_controller_that_another_cgroup_got_since_is_not_a_foreign_value(
    journal: Journal, setting: Path
) -> None:
    setting.write_text("cpu memory pids")
    entry = entry_of_a_dead_owner(setting, kind="cgroup-controllers", old="cpu", new="cpu memory")
    write_journal(journal, entry, {"op": "changed", "id": "a"})
    assert [standing.state for standing in journal.standing()] == [State.IN_FORCE]


def test_a_change_on_top_that_was_not_read_back_is_undone_whatever_is_found(
    journal: Journal, setting: Path
) -> None:
    second = entry_of_a_dead_owner(setting, id="b", old="10", new="20")
    write_journal(journal, entry_of_a_dead_owner(setting), {"op": "changed", "id": "a"}, second)
    setting.write_text("15")
    assert {result.outcome for result in journal.restore_all()} == {UndoOutcome.RESTORED}
    assert setting.read_text() == "60"


def test_a_crash_before_the_change_leaves_nothing_to_do(journal: Journal, setting: Path) -> None:
    write_journal(journal, entry_of_a_dead_owner(setting))
    assert journal.restore_all()[0].note == "had its old value already"
    assert journal.pending() == []


def test_after_a_reboot_kernel_settings_are_dropped_and_files_on_disk_restored(
    journal: Journal, setting: Path
) -> None:
    kernel = entry_of_a_dead_owner(Path("/proc/sys/labctl/none"), boot_id="earlier", id="k")
    disk = entry_of_a_dead_owner(setting, boot_id="earlier", id="d")
    write_journal(journal, kernel, disk)
    setting.write_text("10")
    outcomes = {result.name: result.outcome for result in journal.restore_all()}
    assert outcomes == {
        "/proc/sys/labctl/none": UndoOutcome.DROPPED,
        str(setting): UndoOutcome.RESTORED,
    }
    assert setting.read_text() == "60"


@pytest.mark.parametrize(
    ("boot", "is_kernels", "state", "outcome", "left"),
    [
        (boot_id(), True, State.IN_FORCE, UndoOutcome.RESTORED, "60"),
        ("earlier", True, State.REBOOTED, UndoOutcome.DROPPED, "10"),
        ("earlier", False, State.IN_FORCE, UndoOutcome.RESTORED, "60"),
    ],
)
def test_a_kernel_setting_is_restored_until_the_next_boot_and_a_file_after_it_too(
    journal: Journal,
    setting: Path,
    monkeypatch: pytest.MonkeyPatch,
    boot: str,
    is_kernels: bool,
    state: State,
    outcome: UndoOutcome,
    left: str,
) -> None:
    """Its owner of the earlier boot had the same pid and start time as a process of this one."""
    if is_kernels:
        monkeypatch.setattr(tunables, "_KERNEL_FOLDERS", (str(setting.parent),))
    start = 1 if boot == boot_id() else start_time(os.getpid())
    write_journal(
        journal,
        entry_of_a_dead_owner(setting, boot_id=boot, pid_start=start),
        {"op": "changed", "id": "a"},
    )
    setting.write_text("10")
    assert [standing.state for standing in journal.standing()] == [state]
    assert [result.outcome for result in journal.restore_all()] == [outcome]
    assert setting.read_text() == left
    assert journal.pending() == []


@pytest.mark.parametrize(("boot", "is_kernels"), [(boot_id(), True), ("earlier", False)])
def test_what_someone_else_set_is_left_as_long_as_our_change_would_last(
    journal: Journal, setting: Path, monkeypatch: pytest.MonkeyPatch, boot: str, is_kernels: bool
) -> None:
    if is_kernels:
        monkeypatch.setattr(tunables, "_KERNEL_FOLDERS", (str(setting.parent),))
    entry = entry_of_a_dead_owner(setting, boot_id=boot)
    write_journal(journal, entry, {"op": "changed", "id": "a"})
    setting.write_text("33")
    assert [result.outcome for result in journal.restore_all()] == [UndoOutcome.FOREIGN]
    assert setting.read_text() == "33"


def test_a_thing_that_is_gone_is_dropped(journal: Journal, tmp_path: Path) -> None:
    write_journal(journal, entry_of_a_dead_owner(tmp_path / "gone"))
    result = journal.restore_all()[0]
    assert (result.outcome, result.note) == (UndoOutcome.DROPPED, "it is no longer there")


def test_a_value_that_cannot_be_put_back_stays_in_the_journal(
    journal: Journal, tmp_path: Path
) -> None:
    write_journal(journal, entry_of_a_dead_owner(tmp_path))  # a folder can't be read as a file
    assert journal.restore_all()[0].outcome is UndoOutcome.FAILED
    assert [entry.id for entry in journal.pending()] == ["a"]


def test_leaving_the_block_fails_loudly_when_the_old_value_cannot_be_had_back(
    journal: Journal, setting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labctl.host.settings.journal._READ_BACK_S", 0.0)

    class Stuck(FileValue):
        def write(self, value: str) -> None:
            if value == "10":
                super().write(value)

    with (
        pytest.raises(BrokenError, match="to '60': it still reads '10'"),
        journal.changed(Stuck(str(setting)), "10"),
    ):
        pass
    assert len(journal.pending()) == 1


CUT = "v2 00000090 00000090 0011223344556677 {"


@pytest.mark.parametrize(
    "tail",
    ['{"op": "restored", "i', '{"op": "restored", "i\n', "\x00\x00\x00", "v2 000", CUT],
)
def test_a_last_line_that_a_crash_cut_off_is_ignored(
    journal: Journal, setting: Path, tail: str
) -> None:
    write_journal(journal, entry_of_a_dead_owner(setting), tail=tail)
    setting.write_text("10")
    journal.restore_all()
    assert setting.read_text() == "60"
    assert journal.pending() == []


def test_a_new_entry_does_not_join_a_line_that_was_cut_off(
    journal: Journal, setting: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("1")
    write_journal(journal, entry_of_a_dead_owner(setting), tail='{"op": "chan')
    with journal.changed(FileValue(str(other)), "2"):
        assert [entry.name for entry in journal.pending()] == [str(setting), str(other)]


@pytest.mark.parametrize(
    "bad", ["garbage", "[1]", '{"op": "change", "id": "b"}', '{"id": "b"}', '{"op": "restored", "i']
)
def test_a_bad_line_elsewhere_is_named_and_nothing_is_lost(
    journal: Journal, setting: Path, bad: str
) -> None:
    first, last = entry_of_a_dead_owner(setting), entry_of_a_dead_owner(setting, id="z")
    write_journal(journal, first, tail=f"{bad}\n{json.dumps(last)}\n")
    before = journal.path.read_bytes()
    with pytest.raises(BrokenError, match=r"journal\.jsonl:2: "):
        journal.restore_all()
    assert journal.path.read_bytes() == before
    assert setting.read_text() == "60"


def test_no_flipped_bit_forgets_a_change_or_restores_another_value(
    journal: Journal, setting: Path
) -> None:
    entries = [entry_of_a_dead_owner(setting), entry_of_a_dead_owner(setting, id="z", old="0")]
    whole = encoded(entries)
    records = decoded(whole).records
    assert [record for _, record in records] == entries
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedError):
            decoded(bytes(damaged))


def test_lines_that_other_versions_wrote_are_read() -> None:
    """A journal outlives the labctl that wrote it."""
    record = {"op": "restored", "id": "a", "note": "ä"}
    text = '{"op": "restored", "id": "a", "note": "ä"}\n'.encode()
    line = b"v2 00000043 00000043 64cd82ce2f5c2702 " + text
    first = b'{"op": "restored", "id": "a", "note": "\\u00e4"}\n'
    assert [record for _, record in decoded(first + line).records] == [record, record]


@pytest.mark.parametrize("size", [b"0000004x", b"-0000043", b" 0000043"])
def test_a_size_that_is_no_number_is_damage(size: bytes) -> None:
    line = encoded([{"op": "change", "id": "a"}])
    with pytest.raises(DamagedError):
        decoded(line.replace(line[3:11], size))


def test_however_a_crash_cuts_the_last_line_off_those_before_count() -> None:
    first, last = encoded([{"op": "change", "id": "a"}]), encoded([{"op": "change", "id": "b"}])
    for cut in range(len(last)):
        for zeros in (b"", b"\0" * 9):
            found = decoded(first + last[:cut] + zeros)
            assert [record["id"] for _, record in found.records] == ["a"]
            assert found.size == len(first)


def test_a_damaged_line_is_named_and_nothing_is_written(journal: Journal, setting: Path) -> None:
    data = bytearray(encoded([entry_of_a_dead_owner(setting)]))
    data[60] ^= 1
    journal.path.parent.mkdir(parents=True)
    journal.path.write_bytes(data)
    with pytest.raises(BrokenError, match=r"journal\.jsonl:1: "):
        journal.changed(FileValue(str(setting)), "10").__enter__()
    assert journal.path.read_bytes() == bytes(data)
    with pytest.raises(BrokenError, match=r"journal\.jsonl:1: "):
        journal.restore_all()


def test_an_unknown_kind_of_change_is_not_dropped(journal: Journal, setting: Path) -> None:
    write_journal(journal, entry_of_a_dead_owner(setting, kind="from-the-future"))
    with pytest.raises(BrokenError, match="from-the-future"):
        journal.restore_all()
    assert len(journal.pending()) == 1


def test_a_full_disk_stops_the_change(
    journal: Journal, setting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("labctl.host.settings.journal_file.os.fsync", full)
        patched.setattr("labctl.host.settings.journal_file._sync_folder", lambda folder: None)
        with (
            pytest.raises(HostError, match="No space left"),
            journal.changed(FileValue(str(setting)), "10"),
        ):
            pytest.fail("the block must not run")
    assert setting.read_text() == "60"
    assert journal.pending() == []


def test_another_processs_entry_is_kept_when_ours_is_settled(
    journal: Journal, setting: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("10")
    write_journal(journal, entry_of_a_dead_owner(other))
    with journal.changed(FileValue(str(setting)), "10"):
        pass
    assert [entry.name for entry in journal.pending()] == [str(other)]


@contextmanager
def ended_child() -> Iterator[int]:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if ") Z" in Path(f"/proc/{pid}/stat").read_text():
                break
        yield pid
    finally:
        os.waitpid(pid, 0)


def test_a_zombie_owns_nothing() -> None:
    with ended_child() as pid:
        assert start_time(pid) is None


def test_we_are_alive() -> None:
    started = start_time(os.getpid())
    assert started is not None
    assert is_alive(os.getpid(), started)
    assert not is_alive(os.getpid(), started + 1)


def test_a_folder_that_was_made_is_removed_after_the_block(
    journal: Journal, tmp_path: Path
) -> None:
    folder = tmp_path / "labctl-native-1"
    with journal.changed(CgroupFolder(str(folder)), PRESENT):
        assert folder.is_dir()
    assert not folder.exists()


def test_access_is_saved_with_owner_group_and_mode(journal: Journal, setting: Path) -> None:
    os.chmod(setting, 0o600)
    own = f"{os.getuid()}:{os.getgid()}"
    with journal.changed(FileAccess(str(setting)), f"{own}:0660"):
        assert setting.stat().st_mode & 0o777 == 0o660
    assert FileAccess(str(setting)).read() == f"{own}:0600"
