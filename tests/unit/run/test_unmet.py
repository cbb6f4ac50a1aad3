"""What a host lacks for a tuning, said before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from labctl.base.errors import HostError
from labctl.base.tuning import GuestSide, Kind, Network, Pin, Requires, Tuning
from labctl.run.planning.requirements import Offers, Unmet, read_offers, refuse, unmet
from labctl.run.resources.huge_pages import MIB
from tests.unit.domain import hosts


def tuning(requires: Requires | None = None, **fields: Any) -> Tuning:
    return Tuning(
        name="wanted",
        description="A tuning.",
        kind=Kind.GUEST,
        requires=requires or Requires(),
        **fields,
    )


def offers(**found: Any) -> Offers:
    """A host with four CPUs and nothing special."""
    usual: dict[str, Any] = {
        "accelerator": "kvm",
        "cpus": 4,
        "nodes": 1,
        "smt": False,
        "vcpus": 2,
        "guest_memory_bytes": 1024 * MIB,
        "memory_bytes": 8192 * MIB,
        "versions": {"libvirt": "9.0.0", "qemu": "7.2.22", "kernel": "6.1.0-18-amd64"},
        "huge_pages": {"2M": 0},
    }
    return Offers(**{**usual, **found})


def texts(requires: Requires, **found: Any) -> list[str]:
    return [lack.text for lack in unmet(tuning(requires), offers(**found))]


def test_a_tuning_that_asks_for_nothing_lacks_nothing() -> None:
    assert unmet(tuning(), offers()) == []


@pytest.mark.parametrize(
    ("requires", "text"),
    [
        (Requires(libvirt="10.0"), "it needs libvirt 10.0, this host has 9.0.0"),
        (Requires(qemu="9.0"), "it needs QEMU 9.0, this host has 7.2.22"),
        (Requires(kernel="6.4"), "it needs Linux 6.4, this host has 6.1.0-18-amd64"),
        (Requires(cpus=5), "it needs 5 usable CPUs, this host has 4"),
        (Requires(nodes=2), "it needs 2 NUMA nodes"),
        (Requires(smt=True), "two usable hardware threads"),
        (Requires(cpu_flags=("avx",)), "the CPU's avx"),
        (Requires(paths=("/dev/vhost-net",)), "it needs /dev/vhost-net"),
        (Requires(programs=("tuned",)), "it needs 'tuned', not installed here"),
        (Requires(command_line=("isolcpus",)), "booted with 'isolcpus'"),
        (Requires(hugepages="1G"), "huge pages of 1G, which this host's CPU or kernel"),
    ],
)
def test_what_is_lacking_is_named_with_what_was_found(requires: Requires, text: str) -> None:
    (said,) = texts(requires)
    assert text in said


@pytest.mark.parametrize(
    "requires",
    [
        Requires(libvirt="9.0"),
        Requires(libvirt="9.0.0", qemu="7.2", kernel="6.1"),
        Requires(cpus=4, nodes=1),
    ],
)
def test_versions_and_counts_are_met_by_as_much(requires: Requires) -> None:
    assert texts(requires) == []


def test_a_version_that_nobody_knows_is_no_version_that_will_do() -> None:
    (said,) = texts(Requires(qemu="9.0"), versions={})
    assert "not known" in said


@pytest.mark.parametrize(("accelerator", "lacks"), [("kvm", False), ("tcg", True), (None, False)])
def test_kvm_is_lacking_only_where_it_is_known_not_to_work(
    accelerator: str | None, lacks: bool
) -> None:
    assert bool(texts(Requires(accelerator="kvm"), accelerator=accelerator)) is lacks


@pytest.mark.parametrize(("accelerator", "lacks"), [("kvm", False), ("tcg", True), (None, False)])
def test_vhost_needs_kvm_as_libvirt_ignores_it_for_emulated_guests(
    accelerator: str | None, lacks: bool
) -> None:
    asked = tuning(network=Network(vhost=True))
    assert bool(unmet(asked, offers(accelerator=accelerator))) is lacks


def test_a_partition_needs_cgroup_v2() -> None:
    asked = tuning(pin=Pin(vcpus="plan", emulator="plan", partition="isolated"))
    assert unmet(asked, offers()) == []
    (lack,) = unmet(asked, offers(partition_problem="it needs cgroup v2"))
    assert lack.text == "it needs cgroup v2"
    assert unmet(tuning(), offers(partition_problem="it needs cgroup v2")) == []


def test_every_lack_is_said_at_once() -> None:
    assert len(texts(Requires(libvirt="10.0", cpus=9, programs=("tuned",)))) == 3


@pytest.mark.parametrize(
    ("word", "line", "booted"),
    [
        ("isolcpus", ("isolcpus=2-3",), True),
        ("isolcpus=2-3", ("isolcpus=2-3",), True),
        ("isolcpus=2-3", ("isolcpus=2",), False),
        ("nohz", ("nohz_full=2",), False),
    ],
)
def test_a_word_of_the_command_line_is_found_with_or_without_its_value(
    word: str, line: tuple[str, ...], booted: bool
) -> None:
    assert (texts(Requires(command_line=(word,)), command_line=line) == []) is booted


@pytest.mark.parametrize(
    ("free", "memory_mib", "lacks"),
    [
        (512, 0, False),  # enough of them are free
        (511, 1024, True),  # they aren't, nor is there room for QEMU beside them
        (0, 8192, False),  # they can be made
    ],
)
def test_huge_pages_are_free_or_there_is_memory_to_make_them_of(
    free: int, memory_mib: int, lacks: bool
) -> None:
    found = texts(Requires(hugepages="2M"), huge_pages={"2M": free}, memory_bytes=memory_mib * MIB)
    assert bool(found) is lacks


def test_a_cpu_weight_that_nothing_gives_is_lacking() -> None:
    weighed = tuning(cpu_weight=400)
    assert unmet(weighed, offers()) == []
    (lack,) = unmet(weighed, offers(weight_problems={"wanted": "it needs cpu cgroups"}))
    assert lack.text == "it needs cpu cgroups"
    assert "sched_autogroup_enabled=1" in lack.remedy


def test_a_reason_holds_nothing_that_changes_from_minute_to_minute() -> None:
    """It is part of the plan, which is the same bytes each time."""
    few, fewer = (
        texts(Requires(hugepages="2M"), huge_pages={"2M": free}, memory_bytes=free * MIB)
        for free in (40, 30)
    )
    assert few == fewer != []


@pytest.mark.parametrize("word", ["isolcpus=domain,1-N", "nohz_full=1-N"])
def test_a_guest_with_one_vcpu_has_none_to_isolate(word: str) -> None:
    isolating = tuning(guest=GuestSide(command_line=(word,)), restore=False)
    assert "there is only one" in unmet(isolating, offers(vcpus=1))[0].text
    assert unmet(isolating, offers(vcpus=2)) == []


def test_a_refusal_names_the_tuning_every_lack_and_each_remedy_once() -> None:
    lacks = [
        Unmet(text="it needs KVM", remedy="Load kvm."),
        Unmet(text="it needs a flag", remedy="Load kvm."),
    ]
    with pytest.raises(
        HostError, match="this host can't run 'wanted': it needs KVM; it needs a flag"
    ) as caught:
        refuse(tuning(), lacks)
    assert caught.value.hint == "Load kvm."
    refuse(tuning(), [])


def test_this_hosts_offers_are_read_as_far_as_they_are_asked_for() -> None:
    asked = Requires(
        paths=("/proc/cmdline", "/proc/no-such-file"),
        programs=("sh", "no-such-program"),
        kernel="2.6",
    )
    found = read_offers(
        [tuning(asked)], hosts.FOUR_CORES_SMT, vcpus=2, memory_mib=1024, accelerator="tcg"
    )
    assert (found.cpus, found.nodes, found.smt) == (8, 1, True)
    assert found.paths == {"/proc/cmdline"}
    assert found.programs == {"sh"}
    assert set(found.versions) == {"kernel"}
    assert found.command_line == ()
    (paths, programs) = (lack.text for lack in unmet(tuning(asked), found))
    assert "/proc/no-such-file" in paths
    assert "no-such-program" in programs


def test_a_setting_that_the_host_cannot_have_is_a_lack_of_that_tuning_alone() -> None:
    found = offers(knob_problems={"wanted": ("'tuned' can't be 'x': it needs tuned",)})
    assert [lack.text for lack in unmet(tuning(host={"tuned": "x"}), found)] == [
        "'tuned' can't be 'x': it needs tuned"
    ]
    assert unmet(tuning(), offers(knob_problems={"other": ("no",)})) == []
