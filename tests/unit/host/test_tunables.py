from __future__ import annotations

import os
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.host.settings.journal import rebuild
from labctl.host.settings.netdevices import NetworkNamespace, TapDevice
from labctl.host.settings.tunables import (
    ABSENT,
    PRESENT,
    CgroupControllers,
    CgroupFolder,
    CpuMask,
    FileAccess,
    FileValue,
    Hugetlbfs,
    StillUsedError,
    Tunable,
    access,
    selected,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("always [madvise] never\n", "madvise"),
        ("none [mq-deadline] kyber bfq \n", "mq-deadline"),
        ("60\n", "60"),
        ("", ""),
        ("[none]\n", "none"),
        ("#1 SMP PREEMPT_DYNAMIC Debian 6.1.90-1 (2024-05-03)\n",) * 2,
    ],
)
def test_the_selected_word_is_the_value(text: str, value: str) -> None:
    assert selected(text) == value.strip()


@pytest.mark.parametrize(
    "tunable",
    [
        FileValue("/proc/sys/vm/swappiness"),
        FileAccess("/dev/kvm"),
        CpuMask("/proc/irq/default_smp_affinity"),
        CgroupFolder("/sys/fs/cgroup/memory/labctl-native-1"),
        CgroupControllers("/sys/fs/cgroup/cgroup.subtree_control"),
        NetworkNamespace("labctl-peer-1"),
        TapDevice("labctl1", "labctl-peer-1", "many"),
    ],
)
def test_a_tunable_is_rebuilt_from_its_kind_and_arguments(tunable: Tunable) -> None:
    assert rebuild(tunable.kind, tunable.arguments()) == tunable
    assert not tunable.survives_reboot


def test_a_file_on_disk_survives_a_reboot() -> None:
    assert FileAccess("/var/lib/labctl/running").survives_reboot


@pytest.mark.parametrize(("kind", "arguments"), [("nothing", {}), ("file-value", {"file": "/x"})])
def test_what_cannot_be_rebuilt_is_an_error(kind: str, arguments: dict[str, str]) -> None:
    with pytest.raises(BrokenError, match=kind):
        rebuild(kind, arguments)


def test_access_is_four_octal_digits() -> None:
    assert access(0, 108, 0o660) == "0:108:0660"


def test_a_setting_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileValue(str(tmp_path / "typo")).write("1")
    assert list(tmp_path.iterdir()) == []


def test_controllers_are_switched_one_by_one_to_what_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cgroup.subtree_control"
    path.write_text("pids io\n")
    words: list[str] = []
    monkeypatch.setattr(FileValue, "write", lambda self, value: words.append(value))
    CgroupControllers(str(path)).write("cpu memory pids")
    assert words == ["+cpu", "+memory", "-io"]


def test_controllers_that_others_use_by_now_are_not_an_error_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cgroup.subtree_control"
    path.write_text("cpu\n")

    def busy(self: FileValue, value: str) -> None:
        raise OSError(16, os.strerror(16))

    monkeypatch.setattr(FileValue, "write", busy)
    with pytest.raises(StillUsedError):
        CgroupControllers(str(path)).write("")


def test_an_empty_value_is_written_as_a_line(tmp_path: Path) -> None:
    setting = tmp_path / "cpus"
    setting.write_text("")
    FileValue(str(setting)).write("")
    assert setting.read_text() == "\n"


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("3\n", "0-1"),
        ("ffffffff,fffffffe\n", "1-63"),
        ("1,00000000,00000001\n", "0,64"),
        ("0\n", ""),
    ],
)
def test_a_mask_is_read_as_cpus_and_written_in_groups_of_32_bits(
    tmp_path: Path, text: str, cpus: str
) -> None:
    path = tmp_path / "cpumask"
    path.write_text(text)
    mask = CpuMask(str(path))
    assert mask.read() == cpus
    path.write_text("")
    mask.write(cpus)
    assert mask.read() == cpus
    assert all(len(group) <= 8 for group in path.read_text().split(","))


def test_the_files_of_a_cpu_that_is_offline_are_not_gone(tmp_path: Path) -> None:
    cpu = tmp_path / "devices/system/cpu/cpu3"
    cpu.mkdir(parents=True)
    governor = FileValue(str(cpu / "cpufreq/scaling_governor"))
    (cpu / "online").write_text("1")
    with pytest.raises(FileNotFoundError):
        governor.read()
    (cpu / "online").write_text("0")
    with pytest.raises(OSError, match="cpu3 is offline") as raised:
        governor.read()
    assert not isinstance(raised.value, FileNotFoundError)


def test_a_file_that_holds_no_mask_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "cpumask"
    path.write_text("all\n")
    with pytest.raises(OSError, match="it holds 'all', which is not a mask"):
        CpuMask(str(path)).read()


def test_a_folder_that_nothing_is_mounted_on_is_no_hugetlbfs(tmp_path: Path) -> None:
    asked = Hugetlbfs(str(tmp_path / "2M"), "2M")
    assert asked.read() == ABSENT
    assert rebuild(asked.kind, asked.arguments()) == asked
    assert not asked.survives_reboot


def test_a_size_that_the_kernel_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Invalid argument|Operation not permitted"):
        Hugetlbfs(str(tmp_path / "3M"), "3M").write(PRESENT)
    assert Hugetlbfs(str(tmp_path / "3M"), "3M").read() == ABSENT
