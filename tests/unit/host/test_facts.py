from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from labctl.base.paths import StatePaths
from labctl.host import facts
from labctl.host.machines import facts_from_texts, machine_facts, same_kernel
from labctl.host.tracers import config_digest, config_value, read_config

FIXTURES = Path(__file__).parent / "fixtures"
CPUINFO = (FIXTURES / "cpuinfo-linux-6.18-2-cpus.txt").read_text()
CONFIG = (
    "#\n# Linux/x86 6.1.0\n#\nCONFIG_HZ=250\n# CONFIG_RT_GROUP_SCHED is not set\nCONFIG_SMP=y\n"
)

TEXTS: dict[str, str | None] = {
    "/proc/sys/kernel/osrelease": "6.1.0-56-cloud-amd64\n",
    "/proc/cpuinfo": CPUINFO,
    "/proc/meminfo": "MemTotal:       24684096 kB\nMemFree:  1 kB\nSwapTotal:  0 kB\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "/etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
    "/proc/partitions": "major minor  #blocks  name\n\n 254        0  1 vda\n 254  1  1 vda1\n"
    " 259 0 1 nvme0n1\n 259 1 1 nvme0n1p1\n"
    " 7 0 1 loop0\n 259 2 1 loop0p1\n 252 0 1 zram0\n 1 0 1 ram0\n",
    "/sys/block/vda/queue/scheduler": "none [mq-deadline] kyber bfq \n",
    "/proc/self/mounts": "rootfs / rootfs rw 0 0\n/dev/vda / ext4 rw,relatime 0 0\n",
    "/sys/devices/system/cpu/vulnerabilities/meltdown": "Not affected\n",
    "/boot/config-6.1.0-56-cloud-amd64": CONFIG,
    "/proc/cmdline": "root=/dev/vda isolcpus=2-3 ds=nocloud;s=http://user:pw@host/ nosmt quiet\n",
}


def test_facts_are_read_from_the_texts() -> None:
    found = facts_from_texts(TEXTS)
    assert found["kernel_release"] == "6.1.0-56-cloud-amd64"
    assert found["cpus"] == 2
    assert found["cpu_model"] == "Intel(R) Xeon(R) Processor @ 2.50GHz"
    assert found["microcode"] == "0x1"
    assert found["topology"] == {"packages": 1, "cores": 2, "threads": 2}
    assert found["hypervisor"] is True
    assert found["memory_bytes"] == 24684096 * 1024
    assert found["swap_bytes"] == 0
    assert found["thp"] == "madvise"
    assert found["os"] == "Debian GNU/Linux 12 (bookworm)"
    assert found["mitigations"] == {"meltdown": "Not affected"}
    assert found["root_file_system"] == "ext4"
    assert found["hz"] == "250"
    assert found["rt_group_sched"] == "n"
    assert found["fair_scheduler"] == "CFS"


def test_disks_are_whole_disks() -> None:
    schedulers = facts_from_texts(TEXTS)["block_schedulers"]
    assert schedulers["vda"] == "mq-deadline"
    assert schedulers.keys() == {"vda", "nvme0n1"}
    assert "unavailable" in schedulers["nvme0n1"]


def test_of_the_command_line_only_what_bears_on_measurements_is_kept() -> None:
    assert facts_from_texts(TEXTS)["kernel_options"] == ["isolcpus=2-3", "nosmt"]


def test_what_cannot_be_had_says_why_and_is_never_zero() -> None:
    found = facts_from_texts({})
    assert found.pop("block_schedulers") == {}
    assert all(set(value) == {"unavailable"} for value in found.values())


@pytest.mark.parametrize("cut", range(0, 2000, 97))
def test_a_cut_off_cpuinfo_breaks_nothing(cut: int) -> None:
    json.dumps(facts_from_texts({**TEXTS, "/proc/cpuinfo": CPUINFO[:cut]}))


@pytest.mark.parametrize(
    "garbage", ["", "\x00\x01", ":::\n\n:", "processor\n\nprocessor", "9" * 99]
)
def test_garbage_in_any_file_breaks_nothing(garbage: str) -> None:
    json.dumps(facts_from_texts(dict.fromkeys(TEXTS, garbage)))


def test_facts_of_a_guest_come_through_whatever_reads_its_files() -> None:
    asked: list[str] = []

    def read(paths: Sequence[str]) -> dict[str, str | None]:
        asked.extend(paths)
        return {path: TEXTS.get(path) for path in paths}

    assert machine_facts(read) == facts_from_texts(TEXTS)
    assert "/boot/config-6.1.0-56-cloud-amd64" in asked
    assert "/sys/block/vda/queue/scheduler" in asked


def test_a_packed_configuration_read_as_text_is_not_taken_for_one() -> None:
    packed = gzip.compress(CONFIG.encode()).decode(errors="replace")
    found = facts_from_texts({**TEXTS, "/proc/config.gz": packed})
    assert found["kernel_config"] == config_digest(CONFIG)


def test_a_configurations_digest_leaves_comments_out_but_not_unset_options() -> None:
    assert config_digest(CONFIG) == config_digest(f"# built in /home/me\n{CONFIG}")
    unset = CONFIG.replace("# CONFIG_RT_GROUP_SCHED is not set\n", "")
    assert config_digest(CONFIG) != config_digest(unset)
    assert config_value(CONFIG, "CONFIG_HZ") == "250"
    assert config_value(CONFIG, "CONFIG_H") == "n"


def test_a_packed_configuration_of_the_running_kernel_is_preferred(tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/config-6.1").write_text("CONFIG_HZ=100\n")
    assert read_config("6.1", tmp_path) == "CONFIG_HZ=100\n"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/config.gz").write_bytes(gzip.compress(b"CONFIG_HZ=1000\n"))
    assert read_config("6.1", tmp_path) == "CONFIG_HZ=1000\n"
    (tmp_path / "proc/config.gz").write_bytes(gzip.compress(b"CONFIG_HZ=1000\n")[:-9])
    assert read_config("6.1", tmp_path) == "CONFIG_HZ=100\n"


def kernel(release: Any, config: Any) -> dict[str, Any]:
    return {"kernel_release": release, "kernel_config": config}


def test_one_kernel_makes_the_ratio_virtualization_overhead() -> None:
    same, sentence = same_kernel(kernel("6.1.0", "abc"), kernel("6.1.0", "abc"))
    assert same
    assert "is virtualization overhead" in sentence


@pytest.mark.parametrize(
    ("guest", "words"),
    [
        (kernel("6.18.44", "abc"), "kernel 6.1.0 and the guest 6.18.44"),
        (kernel("6.1.0", "xyz"), "different configurations"),
        (kernel("6.1.0", {"unavailable": "no file"}), "can't be read"),
        (kernel({"unavailable": "no file"}, "abc"), "the guest unknown"),
    ],
)
def test_anything_else_makes_it_a_stack_difference(guest: dict[str, Any], words: str) -> None:
    same, sentence = same_kernel(kernel("6.1.0", "abc"), guest)
    assert not same
    assert words in sentence
    assert "stack difference, not virtualization overhead" in sentence


def test_two_unknown_kernels_are_not_the_same() -> None:
    nothing = kernel({"unavailable": "no file"}, {"unavailable": "no file"})
    assert not same_kernel(nothing, nothing)[0]


def test_the_hosts_own_facts_are_json_without_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "tool_version", lambda argv: "1.2.3")
    monkeypatch.setattr(facts, "hypervisor_vendor", lambda: "none")
    found = facts.host_facts(StatePaths(tmp_path / "not" / "there"))
    text = json.dumps(found)
    assert found["qemu"] == "1.2.3"
    assert found["boot_id"]
    assert isinstance(found["state_folder"], dict)
    assert "hostname" not in text


def test_a_tools_version_is_the_number_that_it_prints(fake_tool: Any) -> None:
    fake_tool("qemu-system-x86_64", "echo 'QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg)'")
    assert facts.tool_version(["qemu-system-x86_64", "--version"]) == "7.2.22"


@pytest.mark.parametrize("script", ["exit 1", "echo hello"])
def test_a_tool_that_tells_no_version_is_unavailable(fake_tool: Any, script: str) -> None:
    fake_tool("perf", script)
    assert "unavailable" in facts.tool_version(["perf", "--version"])


def test_a_tool_that_is_not_there_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = facts.tool_version(["no-such-tool-anywhere", "--version"])
    assert found == {"unavailable": "'no-such-tool-anywhere' is not installed"}
