"""Whom QEMU runs as, and what is said where something forces root. Its account here is nobody."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.host.accelerator import Accelerator
from labctl.run.resources import qemu_user as module
from labctl.run.resources.qemu_user import QemuUser, qemu_user
from labctl.store.records.run_record import RunRecord
from labctl.store.records.tolerant import as_far_as_whole
from labctl.study.tunings import load_tuning
from tests.unit.domain.own import own

TCG = Accelerator(name="tcg", reason="emulated")
KVM = Accelerator(name="kvm", reason="a kernel boots")
NOBODY = QemuUser(name="nobody", group="nogroup", uid=65534, gid=65534, groups=(65534,))
OPEN = [Path("/usr/lib/labctl")]
"""A folder that everybody may pass to."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where /dev/kvm is: nowhere, so far."""
    monkeypatch.setattr(module, "account_of_qemu", lambda: NOBODY)
    monkeypatch.setattr(module, "KVM_DEVICE", tmp_path / "kvm")
    return tmp_path / "kvm"


def asked(accelerator: Accelerator = TCG, *folders: Path, **more: Any) -> QemuUser:
    found = {"files": [], "tunings": [], **more}
    return qemu_user(accelerator, folders or OPEN, **found)


def test_qemu_runs_as_the_account_where_nothing_forces_root() -> None:
    assert asked() == NOBODY
    assert asked().sentence == "QEMU runs as nobody, without root privileges."
    assert asked().to_json() == {"name": "nobody", "why_root": []}


def test_a_missing_account_forces_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "account_of_qemu", lambda: None)
    found = asked()
    assert (found.name, found.uid, found.gid) == ("root", 0, 0)
    assert found.sentence == (
        "QEMU runs as root, because no account 'libvirt-qemu' ('labctl setup' creates it)."
    )


def test_an_account_that_nobody_can_become_forces_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_as", lambda account, *argv: ["sh", "-c", "echo no >&2; exit 1"])
    assert asked().why_root == ("labctl cannot start processes as nobody: no",)


def test_a_folder_on_the_way_that_is_closed_forces_root(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "state").mkdir(parents=True)
    found = asked(TCG, closed / "state" / "running")
    assert found.name == "root"
    (why,) = found.why_root  # the first one alone: what is below it is closed, too
    assert why.startswith("nobody can't pass through /")
    assert "mode 0700, owner 0:0" in why


def test_a_file_that_is_a_link_into_a_closed_folder_forces_root(tmp_path: Path) -> None:
    assert asked(files=[Path("/usr/lib/os-release")]).why_root == ()
    elsewhere = tmp_path / "disk.qcow2"
    elsewhere.touch()
    link = Path(tempfile.mkdtemp(prefix="labctl-open-")) / "disk.qcow2"
    link.symlink_to(elsewhere)
    link.parent.chmod(0o755)
    try:
        assert asked(TCG, link.parent).why_root == ()
        (why,) = asked(TCG, link.parent, files=[link]).why_root
        assert "can't pass through" in why
    finally:
        shutil.rmtree(link.parent)


def test_kvm_forces_root_where_the_account_cannot_open_it(account: Path, tmp_path: Path) -> None:
    account.touch(mode=0o600)
    (why,) = asked(KVM).why_root
    assert why.startswith(f"nobody can't open {account} (mode 0600, owner 0:0)")


def test_emulated_guests_need_no_kvm(account: Path) -> None:
    account.touch(mode=0o600)
    found = asked(TCG)
    assert (found.name, found.why_root) == ("nobody", ())
    assert not found.opens_kvm


@pytest.mark.parametrize(
    ("disabled", "group", "why"),
    [
        ("0", "-1", ()),
        ("1", "-1", ("'io-uring' needs io_uring, which this kernel allows only for root",)),
        ("1", "65534", ()),
    ],
)
def test_io_uring_forces_root_where_the_kernel_leaves_it_to_root(
    tmp_path: Path, disabled: str, group: str, why: tuple[str, ...]
) -> None:
    (tmp_path / "io_uring_disabled").write_text(disabled)
    (tmp_path / "io_uring_group").write_text(group)
    tunings = [load_tuning("baseline"), load_tuning("io-uring")]
    assert asked(tunings=tunings, sysctl=tmp_path).why_root == why
    assert asked(tunings=tunings[:1], sysctl=tmp_path).why_root == ()


def test_a_disk_that_the_account_cannot_read_forces_root(tmp_path: Path) -> None:
    """pytest's folder is root's alone, and so is what lies in it."""
    disk = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", disk, "1M"], check=True)
    domain = replace(own(), firmware=(), boot_files=(), read_only=())
    mine = replace(domain, disks=(replace(domain.disks[0], path=disk, format="qcow2"),))
    name = mine.disks[0].name
    assert asked(own=mine).why_root == (f"nobody can't read disk {name} of 'web', {disk}",)


def test_run_json_may_hold_what_it_says() -> None:
    record = {"qemu_user": module.root("no account").to_json()}
    assert as_far_as_whole(RunRecord, record)[1] == []
