"""The CPUs of a guest's vCPUs become isolated partitions, and are what they were afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.host.cgroups import Hierarchy, Layout
from labctl.host.cpu_partition import Partitions, isolated, why_no_partition
from labctl.host.settings.journal import Journal, UndoOutcome
from labctl.host.settings.journal_file import Entry
from labctl.host.settings.tunables import FileValue

MOUNT = "sys/fs/cgroup"
GUEST = "machine.slice/machine-qemu.scope/libvirt"
FILES = ("cpuset.cpus", "cpuset.cpus.exclusive", "cpuset.cpus.partition")
PID, TIDS = 100, {0: 101, 1: 102}
V2 = Layout({"cpuset": Hierarchy(2, Path("/", MOUNT))}, Path("/", MOUNT), rt_group_sched=False)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host on which libvirt has pinned the two vCPUs of a guest to CPUs 2 and 3."""
    root = tmp_path / "host"
    for path, cpus in (("", ""), ("emulator", "0"), ("vcpu0", "2"), ("vcpu1", "3")):
        folder = root / MOUNT / GUEST / path
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, cpus)
    for parent in (root / MOUNT / GUEST).parents[:2]:
        make(parent, "")
    for number, tid in TIDS.items():
        task = root / f"proc/{PID}/task/{tid}"
        task.mkdir(parents=True)
        (task / "cgroup").write_text(f"0::/{GUEST}/vcpu{number}\n")
    monkeypatch.setattr(FileValue, "write", as_the_kernel_does)
    return root


def make(folder: Path, cpus: str) -> None:
    for name, text in zip(FILES, (cpus, "", "member"), strict=True):
        (folder / name).write_text(f"{text}\n")


def as_the_kernel_does(tunable: FileValue, value: str) -> None:
    """A partition whose CPUs a folder above lacks in its exclusive list, or a cgroup beside it has
    in cpuset.cpus, is invalid."""
    path = Path(tunable.path)
    if value == "isolated":
        cpus = (path.parent / "cpuset.cpus").read_text().strip()
        above = [folder / FILES[1] for folder in path.parents if (folder / FILES[1]).exists()]
        beside = [one / FILES[0] for one in path.parent.parent.iterdir() if one.is_dir()]
        if not all(cpus in one.read_text() for one in above):
            value = "isolated invalid (Invalid cpu list in cpuset.cpus.exclusive)"
        elif sum(one.read_text().strip() == cpus for one in beside) > 1:
            value = "isolated invalid (Cpu list in cpuset.cpus not exclusive)"
    path.write_text(f"{value}\n")


def state(root: Path) -> dict[str, str]:
    """What is not as the kernel makes it, by path."""
    files = [path for name in FILES[1:] for path in (root / MOUNT).rglob(name)]
    texts = {str(path.relative_to(root / MOUNT)): path.read_text().strip() for path in files}
    return {path: text for path, text in texts.items() if text not in ("", "member")}


def test_each_vcpu_gets_a_partition_and_the_folders_above_give_its_cpus(
    root: Path, journal: Journal
) -> None:
    with isolated(V2, journal, PID, TIDS, root) as partitions:
        assert partitions.problems() == []
        assert state(root) == {
            "machine.slice/cpuset.cpus.exclusive": "2-3",
            "machine.slice/machine-qemu.scope/cpuset.cpus.exclusive": "2-3",
            f"{GUEST}/cpuset.cpus.exclusive": "2-3",
            f"{GUEST}/vcpu0/cpuset.cpus.exclusive": "2",
            f"{GUEST}/vcpu1/cpuset.cpus.exclusive": "3",
            f"{GUEST}/vcpu0/cpuset.cpus.partition": "isolated",
            f"{GUEST}/vcpu1/cpuset.cpus.partition": "isolated",
        }
    assert state(root) == {}
    assert journal.pending() == []


def test_cpus_that_others_have_reserved_stay_theirs(root: Path, journal: Journal) -> None:
    theirs = root / MOUNT / "machine.slice/cpuset.cpus.exclusive"
    theirs.write_text("5\n")
    with isolated(V2, journal, PID, TIDS, root):
        assert theirs.read_text() == "2-3,5\n"
    assert theirs.read_text() == "5\n"


def test_a_killed_labctl_leaves_no_partition(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = isolated(V2, journal, PID, TIDS, root)
    killed.__enter__()
    monkeypatch.setattr(Entry, "left_behind", lambda entry: True)
    assert {one.outcome for one in journal.restore_all()} == {UndoOutcome.RESTORED}
    assert state(root) == {}
    assert journal.pending() == []


def test_a_guest_that_is_gone_has_taken_its_partition_along(root: Path, journal: Journal) -> None:
    with isolated(V2, journal, PID, TIDS, root):
        (root / MOUNT / GUEST).rename(root / "gone")
    assert state(root) == {}
    assert journal.pending() == []


def test_a_refused_partition_is_an_error_with_the_kernel_s_reason(
    root: Path, journal: Journal
) -> None:
    (root / MOUNT / GUEST / "emulator/cpuset.cpus").write_text("2\n")
    said = r"vcpu0/cpuset.cpus.partition was set to 'isolated' but reads 'isolated invalid \(Cpu "
    with pytest.raises(BrokenError, match=said), isolated(V2, journal, PID, TIDS, root):
        pytest.fail("it is not isolated")
    assert state(root) == {}
    assert journal.pending() == []


def test_a_partition_that_ends_is_told_and_undone(root: Path, journal: Journal) -> None:
    file = root / MOUNT / GUEST / "vcpu1/cpuset.cpus.partition"
    with isolated(V2, journal, PID, TIDS, root) as partitions:
        file.write_text("isolated invalid (Parent is not a partition root)\n")
        assert partitions.problems() == [
            f"vCPU 1's CPUs are not an isolated partition: {file} reads 'isolated invalid (Parent "
            "is not a partition root)'"
        ]
    assert state(root) == {}
    assert journal.pending() == []


def test_no_partition_has_no_problems() -> None:
    assert Partitions({}).problems() == []


def test_a_vcpu_without_cpus_of_its_own_cannot_have_one(root: Path, journal: Journal) -> None:
    (root / MOUNT / GUEST / "vcpu1/cpuset.cpus").write_text("\n")
    with (
        pytest.raises(
            BrokenError, match=r"vCPU 1's cgroup has no CPUs .* missing or empty"
        ) as said,
        isolated(V2, journal, PID, TIDS, root),
    ):
        pytest.fail("it has no CPUs")
    assert "cgroup_controllers" in (said.value.hint or "")
    assert not journal.path.exists()


@pytest.mark.parametrize(
    ("controllers", "refuses_realtime", "why"),
    [
        ({"cpuset": 2, "cpu": 2}, False, None),
        ({"cpuset": 1, "cpu": 1}, False, "cgroup v1 has it here"),
        ({"cpu": 2}, False, "this host has none"),
        ({"cpuset": 2, "cpu": 2}, True, "guests have none"),
    ],
)
def test_a_host_without_v2_s_cpusets_for_guests_says_so(
    controllers: dict[str, int], refuses_realtime: bool, why: str | None
) -> None:
    found = {name: Hierarchy(version, Path("/x")) for name, version in controllers.items()}
    said = why_no_partition(Layout(found, Path("/x"), rt_group_sched=refuses_realtime))
    assert said is None if why is None else why in str(said)
