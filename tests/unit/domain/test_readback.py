"""Threads as /proc and a domain as libvirt showed them, recorded and then bent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.base.tuning import Kind, Policy, Sched, Tuning
from labctl.domain.asked import ThreadState, expected_threads, mismatches, urged
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.domain.readback import live_mismatches, native_mismatches, read_threads
from labctl.domain.render import render
from labctl.study.tunings import load_tuning

from . import hosts

PLAN = pin_plan(hosts.TWO_CPUS, 1, 1)
TUNING = load_tuning("pinned+fifo+iothreads")
RECORDED: dict[str, Any] = json.loads((hosts.FIXTURES / "qemu-7.2-threads.json").read_text())
PID = int(RECORDED["pid"])
VCPUS = {int(number): tid for number, tid in RECORDED["vcpus"].items()}
IOTHREADS = {int(number): tid for number, tid in RECORDED["iothreads"].items()}
ASKED = (hosts.FIXTURES / "libvirt-9.0.0-asked.xml").read_text()
LIVE = (hosts.FIXTURES / "libvirt-9.0.0-live.xml").read_text()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for tid, files in RECORDED["tasks"].items():
        add_thread(tmp_path, PID, int(tid), files)
    return tmp_path


def add_thread(proc: Path, pid: int, tid: int, files: dict[str, str]) -> None:
    folder = proc / str(pid) / "task" / str(tid)
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def one_thread(comm: str, cpus: str = "0-1", policy: int = 0, priority: int = 0) -> dict[str, str]:
    fields = ["S"] + ["0"] * 49
    fields[16], fields[37], fields[38] = "-5", str(priority), str(policy)
    return {
        "stat": f"77 ({comm}) {' '.join(fields)}\n",
        "status": f"Name:\tx\nCpus_allowed:\t3\nCpus_allowed_list:\t{cpus}\n",
        "comm": comm + "\n",
    }


def threads(proc: Path) -> list[ThreadState]:
    return read_threads(PID, VCPUS, IOTHREADS, proc)


def wrong(states: list[ThreadState]) -> list[str]:
    return mismatches(expected_threads(TUNING, PLAN, PLAN.usable), states)


def test_a_recorded_guest_is_read_as_it_was(proc: Path) -> None:
    states = {(state.role, state.index): state for state in threads(proc)}
    vcpu, iothread, main = states["vcpu", 0], states["iothread", 1], states["emulator", 0]
    assert (vcpu.comm, vcpu.cpus, vcpu.policy, vcpu.priority) == ("CPU 0/TCG", {1}, "fifo", 1)
    assert (iothread.comm, iothread.cpus, iothread.policy) == ("IO iothread1", {0}, "other")
    assert (main.tid, main.comm, main.cpus, main.nice) == (PID, "qemu-system-x86", {0}, 0)
    assert len(states) == len(RECORDED["tasks"])
    assert vcpu.to_json()["cpus"] == "1"


def test_a_guest_that_got_what_was_asked_has_no_mismatch(proc: Path) -> None:
    assert wrong(threads(proc)) == []


@pytest.mark.parametrize(
    ("role", "change", "sentence"),
    [
        ("vcpu", {"cpus": frozenset({0, 1})}, "expected CPU 1, got 0-1"),
        ("vcpu", {"policy": "other", "priority": 0}, "expected policy SCHED_FIFO at prio"),
        (
            "vcpu",
            {"priority": 2},
            "expected policy SCHED_FIFO at priority 1, got SCHED_FIFO at priority 2",
        ),
        ("iothread", {"cpus": frozenset({1})}, "iothread 1 ('IO iothread1'"),
        (
            "iothread",
            {"policy": "rr", "priority": 1},
            "expected policy SCHED_OTHER, got SCHED_RR at priority 1",
        ),
        ("emulator", {"cpus": frozenset({1})}, "expected CPU 0, got 1"),
        ("emulator", {"policy": "deadline"}, "expected policy SCHED_OTHER, got SCHED_DEADLINE"),
    ],
)
def test_a_thread_that_differs_is_named(
    proc: Path, role: str, change: dict[str, Any], sentence: str
) -> None:
    states = threads(proc)
    at = next(n for n, state in enumerate(states) if state.role == role)
    states[at] = replace(states[at], **change)
    (said,) = wrong(states)
    assert sentence in said


def test_a_helper_thread_on_a_vcpus_cpu_is_a_mismatch(proc: Path) -> None:
    add_thread(proc, PID, 99999, one_thread("worker"))
    (said,) = wrong(threads(proc))
    assert "'worker', thread 99999" in said


def test_a_helper_thread_may_have_inherited_the_emulators_policy(proc: Path) -> None:
    tuning = replace(TUNING, emulator_sched=Sched(policy=Policy.FIFO, priority=2))
    states = [
        replace(state, policy="fifo", priority=2)
        if state.role == "emulator" and state.index in (0, 2)
        else state
        for state in threads(proc)
    ]
    assert mismatches(expected_threads(tuning, PLAN, PLAN.usable), states) == []


def test_a_missing_vcpu_is_a_mismatch(proc: Path) -> None:
    states = [state for state in threads(proc) if state.role != "vcpu"]
    assert wrong(states) == ["vCPU 0: no such thread"]


def test_a_free_thread_must_have_all_cpus_that_labctl_has() -> None:
    expected = expected_threads(load_tuning("baseline"), PLAN, frozenset({0, 1}))
    assert {(want.role, want.cpus, want.policy) for want in expected} == {
        ("vcpu", frozenset({0, 1}), "other"),
        ("emulator", frozenset({0, 1}), "other"),
    }


def test_a_name_with_parentheses_and_spaces_hides_no_field(proc: Path) -> None:
    add_thread(proc, PID, 99999, one_thread("a) R 1 (b", cpus="0", policy=2, priority=42))
    (state,) = [state for state in threads(proc) if state.tid == 99999]
    assert (state.comm, state.policy, state.priority, state.nice) == ("a) R 1 (b", "rr", 42, -5)


def test_vhost_workers_are_found_in_the_process_and_beside_it(proc: Path) -> None:
    add_thread(proc, PID, 99998, one_thread(f"vhost-{PID}"))
    add_thread(proc, 4711, 4711, one_thread(f"vhost-{PID}"))
    (proc / "4711/comm").write_text(f"vhost-{PID}\n")
    add_thread(proc, 4712, 4712, one_thread("vhost-1"))
    (proc / "4712/comm").write_text("vhost-1\n")
    found = [(s.tid, s.index) for s in threads(proc) if s.role == "vhost"]
    assert found == [(99998, 0), (4711, 1)]


@pytest.mark.parametrize("name", ["stat", "status"])
@pytest.mark.parametrize("text", [None, "", "77 (x", "77 (x) S 1 2"])
def test_a_thread_that_ends_while_it_is_read_is_left_out(
    proc: Path, name: str, text: str | None
) -> None:
    files = one_thread("worker")
    if text is None:
        del files[name]
    else:
        files[name] = text
    add_thread(proc, PID, 99999, files)
    assert 99999 not in [state.tid for state in threads(proc)]


def test_a_process_that_is_gone_has_no_threads(tmp_path: Path) -> None:
    assert read_threads(PID, VCPUS, IOTHREADS, tmp_path) == []


def test_a_native_workload_is_held_to_its_twins_cpus_and_policy(tmp_path: Path) -> None:
    add_thread(tmp_path, 10, 10, one_thread("sysbench", cpus="1", policy=1, priority=1))
    add_thread(tmp_path, 10, 11, one_thread("sysbench", cpus="0-1", policy=1, priority=1))
    fifo = Sched(policy=Policy.FIFO, priority=1)
    (said,) = native_mismatches(10, frozenset({1}), fifo, tmp_path)
    assert "the workload ('sysbench', thread 11): expected CPU 1, got 0-1" in said
    assert len(native_mismatches(10, frozenset({1}), None, tmp_path)) == 3
    assert native_mismatches(12, frozenset({1}), None, tmp_path) == ["the workload: no such thread"]


def test_a_native_workload_is_held_to_its_twins_nice_value(tmp_path: Path) -> None:
    add_thread(tmp_path, 10, 10, one_thread("sysbench", cpus="1"))
    twin = Tuning(name="native+nice", description="", kind=Kind.NATIVE, nice=5)
    assert native_mismatches(10, frozenset({1}), None, tmp_path, tuning=twin) == [
        "the workload ('sysbench', thread 10): expected nice value 5, got -5"
    ]


def test_every_thread_of_a_guest_is_held_to_its_nice_value(proc: Path) -> None:
    expected = expected_threads(TUNING, PLAN, PLAN.usable)
    lowered = replace(TUNING, nice=5)
    said = mismatches(urged(expected, lowered, PLAN), threads(proc))
    assert len(said) == len(threads(proc))
    assert all("expected nice value 5, got 0" in text for text in said)


def test_an_enlightenment_that_the_domain_lacks_is_named() -> None:
    plan = pin_plan(hosts.FOUR_CPUS, 2, 0)
    tuning = load_tuning("hyperv-recommended")
    asked = render(hosts.request(tuning, plan=plan, accelerator="kvm"))
    bent = asked.replace('retries="8191"', 'retries="4096"').replace('<ipi state="on"/>', "")
    bent = bent.replace('<direct state="on"/>', '<direct state="off"/>')
    assert live_mismatches(asked, bent) == [
        "Hyper-V feature ipi: expected on, the domain has none",
        "Hyper-V feature spinlocks: expected on 8191, the domain has on 4096",
        "Hyper-V feature stimer direct: expected on, the domain has off",
    ]


def test_vhosts_workers_are_held_to_the_plans_cpus_of_the_emulator(proc: Path) -> None:
    tuning = replace(TUNING, pin=replace(TUNING.pin, vhost="plan"))
    expected = urged(expected_threads(TUNING, PLAN, PLAN.usable), tuning, PLAN)
    assert mismatches(expected, threads(proc)) == ["vhost thread 0: no such thread"]
    add_thread(proc, PID, 99999, one_thread(f"vhost-{PID}"))
    (said,) = mismatches(expected, threads(proc))
    assert said == (f"vhost thread 0 ('vhost-{PID}', thread 99999): expected CPU 0, got 0-1")


def test_what_libvirt_fills_in_is_no_mismatch() -> None:
    assert live_mismatches(ASKED, LIVE) == []


@pytest.mark.parametrize(
    ("was", "now", "sentence"),
    [
        ("<vcpupin vcpu='0' cpuset='1'/>", "", "vcpupin of vCPU 0: expected 1, the domain has n"),
        ("<emulatorpin cpuset='0'/>", "<emulatorpin cpuset='0-1'/>", "emulatorpin: expected 0, "),
        ("iothread='1' cpuset='0'", "iothread='1' cpuset='1'", "iothreadpin of iothread 1"),
        ("scheduler='fifo'", "scheduler='rr'", "vcpusched of vCPU 0: expected fifo 1"),
        ("<iothreads>1</iothreads>", "", "iothreads: expected 1, the domain has none"),
        ("discard='unmap' iothread='1'", "discard='unmap'", "disk vda iothread: expected 1"),
        ("type='raw'", "type='raw' cache='none'", "disk vdb cache: expected none, the domain has"),
        ("running/data.raw", "running/other.raw", "disk vdb file"),
        ("<domain type='qemu'", "<domain type='kvm'", "accelerator: expected qemu"),
        (">262144</memory>", ">131072</memory>", "memory: expected 262144 KiB"),
    ],
)
def test_a_difference_in_the_live_xml_is_named(was: str, now: str, sentence: str) -> None:
    assert was in LIVE
    said = live_mismatches(ASKED, LIVE.replace(was, now, 1))
    assert len(said) == 1
    assert sentence in said[0]


def test_what_somebody_elses_xml_leaves_open_is_filled_in_by_libvirt() -> None:
    asked = "<domain type='qemu'><vcpu>1</vcpu><memory unit='GiB'>1</memory><devices><disk>"
    asked += "<source file='/a'/><target dev='vda'/></disk></devices></domain>"
    live = asked.replace("dev='vda'", "dev='vda' bus='virtio'").replace(
        "<disk>", "<disk><driver cache='none'/>"
    )
    assert live_mismatches(asked, live, is_whole=False) == []
    assert len(live_mismatches(asked, live)) == 2
    other = live.replace("file='/a'", "file='/b'")
    assert live_mismatches(asked, other, is_whole=False) == [
        "disk vda file: expected /a, the domain has /b"
    ]


def test_sizes_are_equal_in_whatever_unit() -> None:
    asked, live = (
        f"<domain type='kvm'><memory {unit}</memory><memoryBacking><hugepages><page size={size}/>"
        "</hugepages></memoryBacking></domain>"
        for unit, size in (("unit='G'>1", "'2' unit='M'"), (">1048576", "'2048' unit='KiB'"))
    )
    assert live_mismatches(asked, live) == []


def test_the_cpu_mode_is_compared_where_one_was_asked() -> None:
    asked = ASKED.replace("<clock", '<cpu mode="host-passthrough"/><clock', 1)
    assert live_mismatches(asked, LIVE) == [
        "CPU mode: expected host-passthrough, the domain has custom"
    ]


ASKED_PARTS = """
<domain type="qemu"><memory unit="MiB">512</memory>
  <memoryBacking><hugepages><page size="2048" unit="KiB"/></hugepages><nosharepages/><locked/>
    <source type="memfd"/><access mode="shared"/></memoryBacking>
  <numatune><memory mode="strict" nodeset="0-1"/>
    <memnode cellid="0" mode="strict" nodeset="1"/></numatune>
  <features><kvm><hint-dedicated state="on"/></kvm></features>
  <cpu mode="custom" match="exact"><model fallback="forbid">Nehalem</model>
    <topology sockets="1" cores="1" threads="2"/><cache level="3" mode="emulate"/>
    <feature policy="require" name="aes"/><feature policy="optional" name="avx"/>
    <feature policy="forbid" name="smep"/>
    <numa><cell id="0" cpus="0-1" memory="512" unit="MiB"/></numa></cpu>
  <clock><timer name="hpet" present="yes"/><timer name="kvmclock" present="no"/></clock>
  <devices>
    <disk><driver queues="4" packed="on"><iothreads><iothread id="1"/><iothread id="2"/></iothreads>
      </driver><source file="/d"/><target dev="sda" bus="scsi"/></disk>
    <controller type="scsi" index="0" model="virtio-scsi"><driver queues="2" iothread="1"/>
    </controller>
    <interface type="ethernet"><model type="virtio"/><driver name="vhost" queues="4"/></interface>
    <memballoon model="none"/></devices></domain>
"""
LIVE_PARTS = (
    ASKED_PARTS.replace('unit="MiB">512<', 'unit="KiB">524288<')
    .replace('memory="512" unit="MiB"', 'memory="524288" unit="KiB"')
    .replace('<topology sockets="1"', '<topology sockets="1" dies="1"')
    .replace('policy="forbid"', 'policy="disable"')
    .replace('<feature policy="optional" name="avx"/>', "")
    .replace('"custom" match="exact"', '"custom" match="exact" check="full"')
    .replace("<numa>", '<feature policy="require" name="hypervisor"/><numa>')
    .replace('<interface type="ethernet">', '<interface type="ethernet"><target dev="vnet0"/>')
)


def test_what_libvirt_writes_otherwise_means_the_same() -> None:
    assert live_mismatches(ASKED_PARTS, LIVE_PARTS) == []


@pytest.mark.parametrize(
    ("was", "now", "sentence"),
    [
        ('size="2048"', 'size="1048576"', "huge pages: expected 2048 KiB, the domain has 1048576"),
        ("<nosharepages/>", "", "nosharepages: expected yes, the domain has none"),
        ("<locked/>", "", "locked: expected yes"),
        ('type="memfd"', 'type="anonymous"', "memory source: expected memfd"),
        ('mode="shared"', 'mode="private"', "memory access: expected shared"),
        ('nodeset="0-1"', 'nodeset="0"', "memory policy: expected strict from nodes 0-1"),
        ('nodeset="1"', 'nodeset="0"', "memory policy of cell 0: expected strict from nodes 1"),
        ('state="on"', 'state="off"', "KVM feature hint-dedicated: expected on"),
        (">Nehalem<", ">Westmere<", "CPU model: expected Nehalem, the domain has Westmere"),
        ('cores="1"', 'cores="2"', "CPU sockets, cores, threads: expected 1, 1, 2"),
        ('level="3" mode="emulate"', 'mode="disable"', "CPU cache: expected emulate"),
        ('"require" name="aes"', '"disable" name="aes"', "CPU feature aes: expected require"),
        ('cpus="0-1"', 'cpus="0"', "cell 0: expected vCPUs 0-1, 524288 KiB, the domain has vCPUs"),
        ('name="hpet" present="yes"', 'name="hpet" present="no"', "timer hpet: expected yes"),
        ('<timer name="kvmclock" present="no"/>', "", "timer kvmclock: expected no"),
        ('queues="4" packed="on"', 'packed="on"', "disk sda queues: expected 4"),
        ('packed="on"', 'packed="off"', "disk sda packed: expected on"),
        ('<iothread id="2"/>', "", "disk sda iothreads: expected 1, 2, the domain has 1"),
        ('queues="2"', 'queues="1"', "SCSI controller 0 queues: expected 2"),
        ('model="virtio-scsi"', 'model="lsilogic"', "SCSI controller 0 model: expected virtio-s"),
        ('name="vhost"', 'name="qemu"', "network card 0 name: expected vhost"),
        ('type="ethernet"', 'type="user"', "network card 0 type: expected ethernet"),
        ('<model type="virtio"/>', '<model type="e1000e"/>', "network card 0 model: expected vi"),
        ('<memballoon model="none"/>', '<memballoon model="virtio"/>', "balloon: expected none"),
    ],
)
def test_each_thing_that_a_tuning_changes_is_compared(was: str, now: str, sentence: str) -> None:
    assert was in LIVE_PARTS
    said = live_mismatches(ASKED_PARTS, LIVE_PARTS.replace(was, now, 1))
    assert len(said) == 1
    assert sentence in said[0]


def test_a_host_model_becomes_the_model_that_it_stands_for() -> None:
    asked = "<domain><cpu mode='host-model'/></domain>"
    live = "<domain><cpu mode='custom'><model>EPYC</model><feature name='vme'/></cpu></domain>"
    assert live_mismatches(asked, live) == []
    wrong = live.replace("custom", "host-passthrough")
    assert live_mismatches(asked, wrong) == [
        "CPU mode: expected host-model, the domain has host-passthrough"
    ]


def test_vcpus_that_libvirt_groups_otherwise_are_equal() -> None:
    one = (
        "<domain><cputune><vcpusched vcpus='0-1' scheduler='fifo' priority='1'/></cputune></domain>"
    )
    two = (
        "<domain><cputune><vcpusched vcpus='1' scheduler='fifo' priority='1'/>"
        "<vcpusched vcpus='0' scheduler='fifo' priority='1'/></cputune></domain>"
    )
    assert live_mismatches(one, two) == []


def test_xml_that_is_cut_off_is_an_error() -> None:
    with pytest.raises(BrokenError, match="the live domain XML cannot be read"):
        live_mismatches(ASKED, LIVE[: len(LIVE) // 2])
