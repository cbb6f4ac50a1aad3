from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from labctl.base.errors import BusyError, ExitCode, HostError
from labctl.host.lock import host_locked


def test_a_second_run_is_told_who_runs_and_since_when(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        host_locked(path, what="labctl sweep pinning", run_folder=Path("results/r1")),
        pytest.raises(BusyError) as caught,
        host_locked(path, what="labctl sweep other"),
    ):
        pytest.fail("two hold the lock")
    assert re.search(
        rf"'labctl sweep pinning' \(process {os.getpid()}\) has been running since "
        rf"\d{{4}}-\d\d-\d\dT.* into results/r1",
        caught.value.message,
    )
    assert caught.value.hint == f"Wait until it is done, or end it with 'kill {os.getpid()}'."
    assert caught.value.exit_code is ExitCode.HOST


def test_the_lock_is_free_again_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(2):
        with host_locked(path, what="labctl sweep"):
            pass
    assert path.read_text() == ""


def test_what_an_earlier_holder_wrote_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text('{"pid": 1, "since": "long ago", "what": "killed", "run_folder": null}' * 9)
    with host_locked(path, what="labctl sweep"):
        assert "killed" not in path.read_text()


def test_a_holder_that_has_not_yet_written_is_reported_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with host_locked(path, what="labctl sweep"):
        path.write_text('{"pid":')
        with (
            pytest.raises(BusyError, match="another labctl is using this host"),
            host_locked(path, what="labctl sweep"),
        ):
            pytest.fail("two hold the lock")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("text")
    (tmp_path / "lock").symlink_to(target)
    with pytest.raises(HostError), host_locked(tmp_path / "lock", what="labctl sweep"):
        pytest.fail("a link was followed")
    assert target.read_text() == "text"


def test_no_other_user_can_open_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "labctl" / "host.lock"
    (tmp_path / "labctl").mkdir(mode=0o777)
    with host_locked(path, what="labctl sweep"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_holds_no_lock(tmp_path: Path) -> None:
    folder = tmp_path / "labctl"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with (
        pytest.raises(HostError, match="belongs to user 65534"),
        host_locked(folder / "host.lock", what="labctl sweep"),
    ):
        pytest.fail("the lock was taken")


def test_waiting_for_the_lock_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    told: list[BusyError] = []
    with (
        host_locked(path, what="labctl sweep"),
        pytest.raises(BusyError, match="'labctl sweep'"),
        host_locked(path, what="labctl host restore", waiting=told.append, wait_s=0.01),
    ):
        pytest.fail("two hold the lock")
    assert len(told) == 1
