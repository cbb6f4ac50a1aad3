"""Tuning files: what they become, and what is said about wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.base.tuning import PLAN, Disk, Kind, Pin, Policy, Sched, Strategy
from labctl.study.tunings import load_tuning, load_tunings, tuning_file, tuning_names

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a tuning into a lab folder of the test's own."""
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    (tmp_path / "domains").mkdir()

    def written(name: str, text: str) -> Path:
        path = tmp_path / "domains" / f"{name}.yaml"
        path.write_text(text)
        return path

    return written


def refused(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_tuning(name)
    return f"{caught.value.message} | {caught.value.hint}"


def test_every_tuning_that_labctl_brings_loads_and_is_explained() -> None:
    for name, tuning in load_tunings(tuning_names()).items():
        assert tuning.name == name
        assert len(tuning.description.split()) > 15, name
        assert tuning.sources, name
        assert tuning.needs, name
        assert tuning.risks, name


def test_the_tunings_of_the_pinning_study_are_there() -> None:
    assert set(tuning_names()) >= {
        "native",
        "native+pinned",
        "native+fifo",
        "native+rr",
        "baseline",
        "control",
        "handicap",
        "vcpupin",
        "pinned",
        "pinned+iothreads",
        "pinned+fifo",
        "pinned+rr",
        "pinned+fifo+iothreads",
    }


def test_a_guests_twin_has_its_placement_and_policy() -> None:
    for tuning in load_tunings(tuning_names()).values():
        if tuning.kind is Kind.GUEST:
            assert tuning.twin is not None, tuning.name
            twin = load_tuning(tuning.twin)
            assert twin.pin.vcpus == tuning.pin.vcpus, tuning.name
            assert twin.vcpu_sched == tuning.vcpu_sched, tuning.name
            assert twin.vcpu_slice_ms == tuning.vcpu_slice_ms, tuning.name
            assert twin.nice == tuning.nice, tuning.name
            assert twin.cpu_weight == tuning.cpu_weight, tuning.name


def test_the_control_is_the_baseline_but_for_its_name() -> None:
    baseline, control = load_tuning("baseline"), load_tuning("control")
    for field in ("kind", "restore", "twin", "pin", "vcpu_sched", "iothreads", "disk"):
        assert getattr(control, field) == getattr(baseline, field)
    assert load_tuning("handicap").handicap_percent == 5


def test_a_chain_of_files_adds_up() -> None:
    tuning = load_tuning("pinned+fifo+iothreads")
    assert tuning.pin == Pin(vcpus=PLAN, emulator=PLAN, iothreads=PLAN)
    assert tuning.vcpu_sched == Sched(policy=Policy.FIFO, priority=1)
    assert (tuning.iothreads, tuning.disk) == (1, Disk(iothread=True))


def test_mappings_merge_and_scalars_and_lists_replace(write: Write) -> None:
    write("low", "description: d\nsources: [a, b]\niothreads: 2\ndisk: {cache: none, io: native}\n")
    write("high", "extends: low\ndescription: e\nsources: [c]\niothreads: 1\ndisk: {io: threads}\n")
    tuning = load_tuning("high")
    assert tuning.sources == ("c",)
    assert (tuning.iothreads, tuning.disk) == (1, Disk(cache="none", io="threads"))


def test_null_takes_away_what_was_inherited(write: Write) -> None:
    write("low", "description: d\nvcpu_sched: {policy: fifo, priority: 5}\npin: {vcpus: plan}\n")
    write("high", "extends: low\ndescription: e\nvcpu_sched: null\npin: {vcpus: null}\n")
    tuning = load_tuning("high")
    assert (tuning.vcpu_sched, tuning.pin) == (None, Pin())


def test_a_policy_keeps_the_inherited_priority(write: Write) -> None:
    write("low", "description: d\nvcpu_sched: {policy: fifo, priority: 5}\n")
    write("high", "extends: low\ndescription: e\nvcpu_sched: {policy: rr}\n")
    assert load_tuning("high").vcpu_sched == Sched(policy=Policy.RR, priority=5)


def test_a_description_is_not_inherited(write: Write) -> None:
    path = write("high", "extends: baseline\n")
    assert f"{path}: key 'description' is missing" in refused("high")


def test_pins_may_name_cpus(write: Write) -> None:
    write(
        "own",
        "description: d\niothreads: 1\n"
        "pin:\n  vcpus: {0: 2, 1: '3-4,6'}\n  emulator: 0-1\n  iothreads: {1: 7}\n",
    )
    assert load_tuning("own").pin == Pin(
        vcpus={0: frozenset({2}), 1: frozenset({3, 4, 6})},
        emulator=frozenset({0, 1}),
        iothreads={1: frozenset({7})},
    )


def test_one_pin_of_a_mapping_can_be_replaced_and_one_taken_away(write: Write) -> None:
    write("low", "description: d\npin: {vcpus: {0: 1, 1: 2, 2: 3}}\n")
    write("high", "extends: low\ndescription: e\npin: {vcpus: {1: 7, 2: null}}\n")
    assert load_tuning("high").pin.vcpus == {0: frozenset({1}), 1: frozenset({7})}


def test_a_users_tuning_shadows_the_one_that_labctl_brings(write: Write) -> None:
    path = write("baseline", "description: mine\n")
    assert tuning_file("baseline") == path
    assert load_tuning("control").description != "mine"
    assert load_tuning("baseline").description == "mine"


def test_an_unknown_tuning_gets_the_nearest_name() -> None:
    assert "no tuning 'pined' | Did you mean 'pinned'?" in refused("pined")


def test_extending_a_circle_names_its_files(write: Write) -> None:
    a = write("a", "extends: b\ndescription: d\n")
    b = write("b", "extends: a\ndescription: d\n")
    assert f"in a circle: {a} extends {b} extends {a}" in refused("a")
    write("a", "extends: a\ndescription: d\n")
    assert f"{a} extends {a}" in refused("a")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("vcpu_schedd: {policy: fifo}", 2, "unknown key 'vcpu_schedd'. Did you mean 'vcpu_sched'?"),
        ("pin: {vcpu: plan}", 2, "unknown key 'pin.vcpu'. Did you mean 'vcpus'?"),
        ("vcpu_sched:\n  policy: fifoo\n  priority: 1", 3, "'vcpu_sched.policy' is 'fifoo'"),
        ("vcpu_sched: {policy: fifo, priority: 100}", 2, "'vcpu_sched.priority' is 100"),
        ("vcpu_sched: {policy: fifo}", 2, "needs a priority from 1 to 99"),
        ("vcpu_sched: {priority: 1}", 2, "key 'vcpu_sched.policy' is missing"),
        ("vcpu_sched: {policy: batch, priority: 1}", 2, "policy 'batch' has no priorities"),
        ("vcpu_slice_ms: 0.05", 2, "'vcpu_slice_ms' is 0.05"),
        ("vcpu_slice_ms: 1 s", 2, "'vcpu_slice_ms'"),
        (
            "vcpu_slice_ms: 3 ms\nvcpu_sched: {policy: fifo, priority: 1}",
            2,
            "needs the fair scheduler, but 'vcpu_sched.policy' is 'fifo'",
        ),
        ("hyperv: {spinlocks: 4094}", 2, "'hyperv.spinlocks' is 4094"),
        ("hyperv: {relaxed: true}", 2, "'hyperv.relaxed' needs KVM"),
        (
            "requires: {accelerator: kvm}\nrestore: false\nhyperv: {synic: true}",
            4,
            "'hyperv.synic' needs 'hyperv.vpindex', without which QEMU doesn't start. | Write "
            "'hyperv: {vpindex: true}'",
        ),
        (
            "requires: {accelerator: kvm}\nrestore: false\n"
            "hyperv: {vpindex: true, synic: true, stimer: true}",
            4,
            "'hyperv.stimer' needs 'timers.hypervclock'",
        ),
        ("requires: {accelerator: kvm}\nhyperv: {reset: true}", 3, "Write 'restore: false'"),
        (
            "restore: false\nmemory: {balloon: false, free_page_reporting: true}",
            3,
            "is a feature of the balloon, and 'memory.balloon' is false",
        ),
        ("memory: {free_page_reporting: true}", 2, "Write 'restore: false'"),
        (
            "pin: {vcpus: plan}\ncpu: {topology: true}",
            3,
            "'cpu.topology' is given in a tuning whose guest is restored",
        ),
        (
            "requires: {libvirt: '11.2'}\nrestore: false\niothreads: 2\n"
            "disk: {bus: scsi, iothread: true, iothread_mapping: true}",
            5,
            "takes QEMU 10.0. | Write 'requires: {qemu: \"10.0\"}'",
        ),
        (
            "pin: {vcpus: plan, partition: isolated}",
            2,
            "'pin.partition' needs 'pin.emulator': no other thread may have the CPUs of an "
            "isolated vCPU. | Write 'pin: {emulator: plan}'",
        ),
        ("pin: {emulator: plan, partition: isolated}", 2, "'pin.partition' needs 'pin.vcpus'"),
        (
            "iothreads: 1\npin: {vcpus: plan, emulator: plan, partition: isolated}",
            3,
            "'pin.partition' needs 'pin.iothreads'",
        ),
        ("pin: {partition: root}", 2, "'pin.partition' is 'root'"),
        ("pin: {vhost: plan}", 2, "no network card is served by the kernel's vhost"),
        ("nice: 20", 2, "'nice' is 20"),
        ("cpu_weight: 0", 2, "'cpu_weight' is 0"),
        (
            "nice: -5\nvcpu_sched: {policy: rr, priority: 1}",
            2,
            "'nice' needs the fair scheduler, but 'vcpu_sched.policy' is 'rr'",
        ),
        ("pin: {vcpus: {0: 3-1}}", 2, "not a CPU list: '3-1'"),
        ("pin: {vcpus: 1-3}", 2, "give 'plan', or a mapping of numbers to CPU lists"),
        ("pin: {vcpus: {a: 1}}", 2, "give 'plan', or a mapping"),
        ("pin: {emulator: ''}", 2, "give at least one CPU"),
        ("pin: {emulator: true}", 2, "give a CPU list"),
        ("pin: {iothreads: plan}", 2, "the guest has no iothreads. | Write 'iothreads: 1'"),
        ("disk: {iothread: true}", 2, "'disk.iothread' is set, but the guest has no iothreads"),
        ("iothreads: 17", 2, "'iothreads' is 17"),
        ("iothreads: true", 2, "'iothreads' is true: a whole number from 0 to 16 is needed"),
        ("restore: 'no'", 2, "'restore' is 'no'"),
        ("disk: {cache: fast}", 2, "'disk.cache' is 'fast'"),
        ("disk: {io: native}", 2, "needs 'disk.cache' none or directsync"),
        ("disk: {cache: directsync}", 2, "Write 'restore: false'"),
        ("handicap_percent: 100", 2, "'handicap_percent' is 100"),
        ("handicap_percent: -1", 2, "'handicap_percent' is -1"),
        ("extends: baselin", 2, "does not exist. | Did you mean 'baseline'?"),
        ("twin: native+pined", 2, "does not exist. | Did you mean 'native+pinned'?"),
        ("twin: baseline", 2, "'twin' is 'baseline', which is not a native tuning"),
        ("kind: native\niothreads: 1", 3, "'iothreads' has no effect in a native tuning"),
        ("kind: native\npin:\n  emulator: plan", 4, "'pin.emulator' has no effect in a native"),
        ("kind: ghost", 2, "'kind' is 'ghost'"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(
    write: Write, text: str, line: int, said: str
) -> None:
    path = write("wrong", f"description: d\n{text}\n")
    message = refused("wrong")
    assert f"{path}:{line}: " in message
    assert said in message


def test_a_mistake_in_an_extended_file_is_named_there(write: Write) -> None:
    low = write("low", "description: d\n\nrestored: true\n")
    write("high", "extends: low\ndescription: e\n")
    assert f"{low}:3: unknown key 'restored'. Did you mean 'restore'?" in refused("high")


def test_a_file_that_is_no_yaml_is_named(write: Write) -> None:
    path = write("broken", "description: [\n")
    assert str(path) in refused("broken")


@pytest.mark.parametrize(
    "key", ["sources", "needs", "kind", "restore", "pin", "host", "timers", "iothreads", "twin"]
)
def test_a_key_that_is_empty_where_nothing_is_extended_is_named(write: Write, key: str) -> None:
    path = write("wrong", f"description: d\n{key}:\n")
    message = refused("wrong")
    assert f"{path}:2: '{key}' is empty" in message
    assert "Give it a value, or remove the key." in message


def test_a_key_that_is_empty_takes_away_what_is_extended(write: Write) -> None:
    write(
        "low",
        "description: d\nsources: [a]\npin: {strategy: spread}\nvcpu_sched: {policy: batch}\n",
    )
    write(
        "high",
        "extends: low\ndescription: e\nsources:\npin:\n  strategy:\nvcpu_sched:\nhost:\n"
        "timers: {hpet: null}\n",
    )
    high = load_tuning("high")
    assert (high.sources, high.pin.strategy, high.vcpu_sched) == ((), Strategy.COMPACT, None)
    assert (high.host, high.timers) == ({}, {})


@pytest.mark.parametrize("cpus", ["0-99999999999", "99999999999", "'0-16384'"])
def test_a_cpu_beyond_all_is_refused_and_the_limit_named(write: Write, cpus: str) -> None:
    path = write("wrong", f"description: d\npin:\n  emulator: {cpus}\n")
    message = refused("wrong")
    assert f"{path}:3: " in message
    assert "is above the limit of 16383" in message
