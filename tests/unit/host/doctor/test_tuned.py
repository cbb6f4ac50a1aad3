from __future__ import annotations

import pytest

from labctl.host.doctor.check import Status
from tests.unit.host.doctor.conftest import FakeHost

# After tuned 2.20's throughput-performance and virtual-host.
PARENT = """\
[main]
summary=Broadly applicable tuning
[variables]
amd_cpuinfo_regex=model name\\s+:.*\\bAMD\\b
[cpu]
governor=performance
energy_perf_bias=performance
[vm.thunderx]
type=vm
transparent_hugepages=never
[sysctl]
# a comment
vm.dirty_background_ratio = 10
vm.swappiness=10
net.core.somaxconn=>2048
kernel.sched_wakeup_granularity_ns = ${granularity}
"""
CHILD = """\
[main]
include=throughput-performance
[vm]
transparent_hugepages=madvise|always
[sysctl]
vm.dirty_background_ratio = 5
[sysfs]
/sys/kernel/mm/ksm/run=0
"""
AS_WANTED = {
    "/etc/tuned/active_profile": "virtual-host\n",
    "/usr/lib/tuned/throughput-performance/tuned.conf": PARENT,
    "/usr/lib/tuned/virtual-host/tuned.conf": CHILD,
    "/proc/sys/vm/dirty_background_ratio": "5\n",
    "/proc/sys/vm/swappiness": "10\n",
    "/proc/sys/net/core/somaxconn": "128\n",
    "/sys/kernel/mm/ksm/run": "0\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
}


@pytest.fixture
def tuned(host: FakeHost) -> FakeHost:
    host.write_all(AS_WANTED)
    return host


def test_without_tuned_there_is_nothing_to_say(host: FakeHost) -> None:
    assert host.find("tuned").value is None
    assert host.find("tuned-drift").status is Status.OK


def test_the_active_profile_is_named(tuned: FakeHost) -> None:
    assert tuned.find("tuned").value == {"profile": "virtual-host", "running": False}
    tuned.write("/proc/5/comm", "tuned\n")
    assert tuned.find("tuned").value["running"] is True


def test_a_host_that_is_as_its_profile_has_it(tuned: FakeHost) -> None:
    finding = tuned.find("tuned-drift")
    assert (finding.status, finding.value) == (Status.OK, [])
    assert finding.found.startswith("5 settings")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/proc/sys/vm/dirty_background_ratio", "10"),  # the parent's, which the child overrides
        ("/proc/sys/vm/swappiness", "60"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
        ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave"),
        ("/sys/kernel/mm/ksm/run", "1"),
    ],
)
def test_a_setting_that_somebody_changed_is_drift(tuned: FakeHost, path: str, text: str) -> None:
    tuned.write(path, text)
    finding = tuned.find("tuned-drift")
    assert (finding.status, finding.remedy) == (Status.WARN, "tuned-adm profile virtual-host")
    assert [item["path"] for item in finding.value] == [path]


def test_an_administrators_profile_shadows_the_distributions(tuned: FakeHost) -> None:
    tuned.write("/etc/tuned/virtual-host/tuned.conf", "[sysctl]\nvm.swappiness=1\n")
    assert [item["profile"] for item in tuned.find("tuned-drift").value] == ["1"]


def test_what_only_some_machines_get_is_no_drift_here(tuned: FakeHost) -> None:
    tuned.write(
        "/usr/lib/tuned/virtual-host/tuned.conf",
        CHILD + "[sysctl.arm]\ntype=sysctl\nuname_regex=aarch64\nvm.swappiness=1\n",
    )
    assert tuned.find("tuned-drift").status is Status.OK


def test_profiles_that_include_each_other_end(tuned: FakeHost) -> None:
    for name in ("virtual-host", "throughput-performance"):
        other = {"virtual-host": "throughput-performance"}.get(name, "virtual-host")
        tuned.write(
            f"/usr/lib/tuned/{name}/tuned.conf", f"[main]\ninclude={other}\n[sysctl]\nvm.a=1\n"
        )
    finding = tuned.find("tuned-drift")
    assert finding.status is Status.UNKNOWN
    assert "includes itself" in finding.found


def test_a_profile_that_is_gone_is_no_drift(tuned: FakeHost) -> None:
    tuned.write("/etc/tuned/active_profile", "ours\n")
    finding = tuned.find("tuned-drift")
    assert finding.status is Status.UNKNOWN
    assert "no profile 'ours'" in finding.found
