"""sysfs trees as the kernel lays them out, whole and with holes."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.cpus import parse_cpus
from labctl.base.errors import HostError
from labctl.host import topology
from labctl.host.topology import (
    EFFICIENT,
    LOW_POWER,
    PERFORMANCE,
    read_rt_runtime_us,
    read_topology,
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def sysfs(root: Path, cpus: int, *, threads: int = 1, l3: str | None = None) -> Path:
    """A tree with `cpus` CPUs whose hardware threads are numbered next to each other."""
    base = root / "devices/system/cpu"
    write(base / "online", f"0-{cpus - 1}")
    (base / "cpufreq").mkdir()
    (base / "cpuidle").mkdir()
    for cpu in range(cpus):
        folder = base / f"cpu{cpu}"
        first = cpu // threads * threads
        write(folder / "topology/core_id", str(cpu // threads))
        write(folder / "topology/physical_package_id", "0")
        write(folder / "topology/thread_siblings_list", f"{first}-{first + threads - 1}")
        if l3 is not None:
            write(folder / "cache/index0/level", "1")
            write(folder / "cache/index0/shared_cpu_list", str(cpu))
            write(folder / "cache/index3/level", "3")
            write(folder / "cache/index3/shared_cpu_list", l3)
    write(root / "devices/system/node/node0/cpulist", f"0-{cpus - 1}")
    write(root / "devices/system/node/has_memory", "0")
    return root


def all_cpus(count: int) -> frozenset[int]:
    return frozenset(range(count))


def test_cores_caches_and_nodes_are_read(tmp_path: Path) -> None:
    found = read_topology(sysfs(tmp_path, 4, threads=2, l3="0-3"), allowed=all_cpus(4))
    assert found.usable == {0, 1, 2, 3}
    assert found.cores(found.usable) == (frozenset({0, 1}), frozenset({2, 3}))
    assert [cpu.core for cpu in found.cpus] == [0, 0, 1, 1]
    assert {cpu.l3 for cpu in found.cpus} == {0}
    assert {cpu.node for cpu in found.cpus} == {0}


def test_ten_cpus_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    found = read_topology(sysfs(tmp_path, 12), allowed=all_cpus(12))
    assert [cpu.number for cpu in found.cpus] == list(range(12))


def test_an_offline_cpu_is_present_and_not_usable(tmp_path: Path) -> None:
    sysfs(tmp_path, 4, threads=2)
    write(tmp_path / "devices/system/cpu/online", "0-2")
    for path in (tmp_path / "devices/system/cpu/cpu3/topology").iterdir():
        path.unlink()
    write(tmp_path / "devices/system/cpu/cpu2/topology/thread_siblings_list", "2")
    found = read_topology(tmp_path, allowed=all_cpus(4))
    assert found.present == {0, 1, 2, 3}
    assert found.usable == {0, 1, 2}
    assert found.cores(found.usable) == (frozenset({0, 1}), frozenset({2}))


def test_a_cpu_outside_our_affinity_is_not_usable(tmp_path: Path) -> None:
    found = read_topology(sysfs(tmp_path, 4), allowed=frozenset({2, 3, 9}))
    assert found.usable == {2, 3}
    assert found.online == {0, 1, 2, 3}


def test_a_cpu_that_two_cores_claim_is_in_one(tmp_path: Path) -> None:
    sysfs(tmp_path, 4)
    for cpu, siblings in enumerate(["0-1", "1-2", "2", "0-3"]):
        write(tmp_path / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    found = read_topology(tmp_path, allowed=all_cpus(4))
    assert found.cores(found.usable) == ({0, 1}, {2}, {3})


def test_a_core_that_sysfs_has_on_two_nodes_is_two_cores(tmp_path: Path) -> None:
    sysfs(tmp_path, 2, threads=2)
    write(tmp_path / "devices/system/node/node0/cpulist", "0")
    write(tmp_path / "devices/system/node/node1/cpulist", "1")
    found = read_topology(tmp_path, allowed=all_cpus(2))
    assert found.cores(found.usable) == ({0}, {1})


def test_in_a_copy_every_cpu_is_ours_but_the_isolated_ones(tmp_path: Path) -> None:
    sysfs(tmp_path, 600)
    assert read_topology(tmp_path).usable == all_cpus(600)
    write(tmp_path / "devices/system/cpu/isolated", "2-599")
    found = read_topology(tmp_path)
    assert (found.usable, found.pinnable) == ({0, 1}, all_cpus(600))


class Affinity:
    """The kernel's side of sched_setaffinity(2): a mask is cut to the cpuset."""

    def __init__(self, mine: set[int], cpuset: set[int]) -> None:
        self.mine, self.cpuset = mine, cpuset

    def get(self, pid: int) -> set[int]:
        return self.mine

    def set(self, pid: int, cpus: frozenset[int]) -> None:
        if not cpus & self.cpuset:
            raise OSError(22, "Invalid argument")
        self.mine = set(cpus & self.cpuset)


@pytest.mark.parametrize(
    ("mine", "cpuset", "isolated"),
    [
        ({0, 1}, {0, 1, 2, 3}, {2, 3}),  # as every process of a host with isolcpus=2,3
        ({0, 1}, {0, 1, 2}, {2}),  # one of them is out of the cpuset
        ({0}, {0, 1, 2, 3}, set()),  # somebody wanted CPU 0 alone
        ({0, 1}, {0, 1}, set()),
        ({0, 1, 2, 3}, {0, 1, 2, 3}, {2, 3}),
    ],
)
def test_isolated_cpus_are_ours_unless_cpuset_or_somebody_says_no(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mine: set[int],
    cpuset: set[int],
    isolated: set[int],
) -> None:
    kernel = Affinity(mine, cpuset)
    monkeypatch.setattr("os.sched_getaffinity", kernel.get)
    monkeypatch.setattr("os.sched_setaffinity", kernel.set)
    monkeypatch.setattr(topology, "SYS", tmp_path)
    write(sysfs(tmp_path, 4) / "devices/system/cpu/isolated", "2-3")
    found = read_topology(tmp_path)
    assert found.isolated == isolated
    assert found.usable == mine
    assert found.pinnable == mine | isolated


def test_missing_cache_folders_leave_the_cache_unknown(tmp_path: Path) -> None:
    found = read_topology(sysfs(tmp_path, 2, l3=None), allowed=all_cpus(2))
    assert [cpu.l3 for cpu in found.cpus] == [None, None]


def test_a_node_without_memory_is_told_from_one_with(tmp_path: Path) -> None:
    sysfs(tmp_path, 4)
    write(tmp_path / "devices/system/node/node0/cpulist", "0-1")
    write(tmp_path / "devices/system/node/node1/cpulist", "2-3")
    write(tmp_path / "devices/system/node/node2/cpulist", "")
    write(tmp_path / "devices/system/node/has_memory", "1-2")
    found = read_topology(tmp_path, allowed=all_cpus(4))
    assert [cpu.node for cpu in found.cpus] == [0, 0, 1, 1]
    assert found.memory_nodes == {1, 2}


def test_hybrid_cores_are_told_apart(tmp_path: Path) -> None:
    sysfs(tmp_path, 4)
    write(tmp_path / "devices/cpu_core/cpus", "0-1")
    write(tmp_path / "devices/cpu_atom/cpus", "2")
    write(tmp_path / "devices/cpu_lowpower/cpus", "3")
    found = read_topology(tmp_path, allowed=all_cpus(4))
    assert [cpu.kind for cpu in found.cpus] == [PERFORMANCE, PERFORMANCE, EFFICIENT, LOW_POWER]


def test_a_kernel_without_hotplug_and_numa_has_all_cpus_online_on_node_0(tmp_path: Path) -> None:
    for cpu in range(2):
        (tmp_path / f"devices/system/cpu/cpu{cpu}").mkdir(parents=True)
    found = read_topology(tmp_path, allowed=all_cpus(2))
    assert found.usable == {0, 1}
    assert found.memory_nodes == {0}
    assert found.cores(found.usable) == (frozenset({0}), frozenset({1}))


@pytest.mark.parametrize("garbage", ["", "x", "3-1", "\x00\xff"])
def test_garbage_in_a_file_counts_as_a_missing_file(tmp_path: Path, garbage: str) -> None:
    sysfs(tmp_path, 2)
    folder = tmp_path / "devices/system/cpu/cpu1/topology"
    write(folder / "thread_siblings_list", garbage)
    write(folder / "core_id", garbage)
    write(folder / "physical_package_id", "-1")
    cpu = read_topology(tmp_path, allowed=all_cpus(2)).cpu(1)
    assert (cpu.siblings, cpu.core, cpu.package) == (frozenset({1}), 1, 0)


def test_no_cpu_left_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="CPUs 0-1 are online, but this process may use 5"):
        read_topology(sysfs(tmp_path, 2), allowed=parse_cpus("5"))


def test_no_sysfs_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="lists no CPU") as caught:
        read_topology(tmp_path, allowed=all_cpus(2))
    assert caught.value.hint == "Mount sysfs at /sys."


def test_this_host_can_be_read() -> None:
    found = read_topology()
    assert found.usable
    assert found.usable <= found.present


def test_the_real_time_limit_is_read_and_absent_means_none(tmp_path: Path) -> None:
    assert read_rt_runtime_us(tmp_path) == -1
    write(tmp_path / "sys/kernel/sched_rt_runtime_us", "950000")
    assert read_rt_runtime_us(tmp_path) == 950000


def test_the_siblings_of_cpus_are_the_other_online_threads_of_their_cores(tmp_path: Path) -> None:
    machine = read_topology(sysfs(tmp_path / "two", 4, threads=2))
    assert machine.siblings(frozenset({0})) == {1}
    assert machine.siblings(frozenset({0, 1, 2})) == {0, 1, 3}
    assert read_topology(sysfs(tmp_path / "one", 2)).siblings(frozenset({0})) == frozenset()
