"""What labctl reads in a profile of tuned: the files that it may set, and what can't be undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import HostError
from labctl.host.settings.tuned import Refused, Undoable, Unit, effect, profile_names, read_profile

# After tuned 2.20's latency-performance, network-latency and realtime.
PROFILES = {
    "parent": """\
[main]
summary=Deterministic
[cpu]
force_latency=cstate.id_no_zero:1|3   # a comment
governor=performance
[sysctl]
vm.swappiness=10
vm.dirty_ratio=10
""",
    "child": """\
[main]
include=parent
[vm]
transparent_hugepages=never
[sysctl]
vm.swappiness=1
[bootloader]
cmdline_network_latency=skew_tick=1
""",
    "grandchild": """\
[main]
include = child, -not-there
[variables]
include = /etc/tuned/realtime-variables.conf
isolated_cores = ${isolated_cores}
[sysfs]
/sys/devices/virtual/workqueue/*/cpumask = ${mask}
[bootloader]
cmdline_realtime=+isolcpus=${isolated_cores} nosoftlockup
[sysctl.arm]
type=sysctl
uname_regex=aarch64
kernel.numa_balancing=0
""",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in PROFILES.items():
        write(tmp_path, f"usr/lib/tuned/{name}", text)
    return tmp_path


def write(root: Path, folder: str, text: str) -> None:
    path = root / folder / "tuned.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def units(root: Path, name: str) -> dict[str, Unit]:
    return {unit.name: unit for unit in read_profile(name, root).units}


def test_a_profile_has_what_it_includes_and_overrides(root: Path) -> None:
    found = units(root, "grandchild")
    assert found["sysctl"].options == {"vm.swappiness": "1", "vm.dirty_ratio": "10"}
    assert found["cpu"].options["force_latency"] == "cstate.id_no_zero:1|3"
    assert found["bootloader"].options.keys() == {"cmdline_network_latency", "cmdline_realtime"}


def test_a_section_for_some_machines_only_is_known_as_such(root: Path) -> None:
    found = units(root, "grandchild")
    assert (found["sysctl.arm"].type, found["sysctl.arm"].conditional) == ("sysctl", True)
    assert "uname_regex" not in found["sysctl.arm"].options
    assert not found["sysctl"].conditional


def test_a_profile_that_wants_isolated_cpus_is_known_as_such(root: Path) -> None:
    assert read_profile("grandchild", root).uses_isolated
    assert not read_profile("child", root).uses_isolated


def test_a_section_that_is_switched_off_or_replaced_sets_nothing_of_before(root: Path) -> None:
    write(root, "etc/tuned/ours", "[main]\ninclude=child\n[vm]\nenabled=false\n")
    assert "vm" not in units(root, "ours")
    write(root, "etc/tuned/ours", "[main]\ninclude=child\n[sysctl]\nreplace=1\nvm.a=1\n")
    assert units(root, "ours")["sysctl"].options == {"vm.a": "1"}


def test_an_administrators_profile_comes_before_the_distributions(root: Path) -> None:
    write(root, "etc/tuned/parent", "[sysctl]\nvm.swappiness=5\n")
    assert units(root, "parent").keys() == {"sysctl"}
    assert profile_names(root) == ["child", "grandchild", "parent"]


def test_a_profile_of_ours_needs_no_file(root: Path) -> None:
    found = read_profile("ours", root, {"ours": "[main]\ninclude=parent\n[vm]\ndirty=1\n"})
    assert {unit.name for unit in found.units} == {"cpu", "sysctl", "vm"}


def test_a_profile_that_is_not_there_is_an_error_with_those_that_are(root: Path) -> None:
    with pytest.raises(HostError, match="no profile 'chidl'") as caught:
        read_profile("chidl", root)
    assert "child, grandchild, parent" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[main]\ninclude=ours\n", "includes itself"),
        ("[main]\ninclude=${f:virt_check:a:b}\n", "only tuned can evaluate"),
        ("no section\n", "can't be read"),
    ],
)
def test_a_profile_that_only_tuned_could_read_is_an_error(
    root: Path, text: str, words: str
) -> None:
    write(root, "etc/tuned/ours", text)
    with pytest.raises(HostError, match=words):
        read_profile("ours", root)


def files(type_: str, *options: str) -> list[str] | None:
    """What a section may set; None for one that is left out."""
    found = effect(Unit(name=type_, type=type_, options=dict.fromkeys(options, "1")))
    return [*found.files] if isinstance(found, Undoable) else None


def test_what_a_section_sets_is_known_by_its_files() -> None:
    assert files("sysctl", "vm.swappiness") == ["proc/sys/vm/swappiness"]
    assert files("sysfs", "/sys/kernel/mm/ksm/run") == ["sys/kernel/mm/ksm/run"]
    assert files("vm", "transparent_hugepages") == ["sys/kernel/mm/transparent_hugepage/enabled"]
    assert files("disk", "readahead") == ["sys/block/*/queue/read_ahead_kb"]
    assert files("cpu", "governor", "force_latency") == [
        "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
    ]


@pytest.mark.parametrize(
    "type_",
    ["bootloader", "script", "systemd", "irqbalance", "service", "modules", "net", "rtentsk"],
)
def test_what_is_no_file_is_left_out(type_: str) -> None:
    assert files(type_, "anything") is None


def test_a_plugin_or_an_option_that_labctl_does_not_know_is_left_out() -> None:
    assert files("uncore", "max_freq_khz") is None
    assert files("cpu", "governor", "brand_new_option") is None
    assert files("sysctl", "vm.${name}") is None
    assert files("scheduler", "isolated_cores") is None
    assert files("scheduler", "sched_min_granularity_ns") is not None


def test_the_words_for_the_kernel_are_planned() -> None:
    options = {"cmdline_a": "skew_tick=1", "cmdline_b": "+nohz=on nohz_full=${isolated_cores}"}
    found = effect(Unit(name="bootloader", type="bootloader", options=options))
    assert isinstance(found, Refused)
    assert found.planned == "skew_tick=1 nohz=on nohz_full=${isolated_cores}"
    assert found.sentence("p").startswith("[bootloader] of 'p' is left out: it changes the kernel")
