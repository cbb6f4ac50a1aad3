"""Knobs of a host, on files that stand for the kernel's."""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.base.errors import HostError, UsageError
from labctl.base.tuning import KNOB_VALUES, number
from labctl.host.settings import knobs
from labctl.host.settings.journal import Journal
from labctl.host.settings.knob import KnobPlace
from labctl.host.settings.knob_table import TABLE
from labctl.host.settings.tunables import FileValue
from tests.unit.host import fake_host

CPU = "sys/devices/system/cpu"
EVERYTHING = {
    "smt": "off",
    "hugepages-2M": "512",
    "governor": "performance",
    "c-states": "10",
    "thp": "never",
    "thp-defrag": "never",
    "ksm": "1",
    "swappiness": "10",
    "numa-balancing": "0",
    "halt-poll-ns": "0",
    "rt-runtime-us": "-1",
    "sched-autogroup": "0",
    "timer-migration": "0",
    "watchdog": "0",
    "workqueues": "housekeeping",
    "irq-affinity": "housekeeping",
}


@pytest.fixture(autouse=True)
def _like_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file takes a value as a whole, or not at all, as the kernel's do."""

    def write(self: FileValue, value: str) -> None:
        new = Path(f"{self.path}.new")
        new.write_text(value)
        new.rename(self.path)

    monkeypatch.setattr(FileValue, "write", write)


@pytest.fixture
def place(tmp_path: Path) -> KnobPlace:
    root = fake_host.make(tmp_path / "host")
    return KnobPlace(root=root, housekeeping=frozenset({0, 2}), isolated=frozenset({1, 3}))


def tune(host: dict[str, str], place: KnobPlace, journal: Journal) -> list[str]:
    with journal.changing() as changes:
        refused = knobs.turn(host, place, changes)
        changes.keep("everything")
    return refused


def test_every_knob_can_be_turned_and_turned_back(place: KnobPlace, journal: Journal) -> None:
    assert list(EVERYTHING) == [knob.name for knob in TABLE if knob.name in EVERYTHING]
    assert knobs.problems(EVERYTHING, place) == []
    assert tune(EVERYTHING, place, journal) == []
    found = fake_host.values(place.root)
    assert found[f"{CPU}/smt/control"] == "off"
    assert {found[f"{CPU}/cpu{n}/cpufreq/scaling_governor"] for n in range(4)} == {"performance"}
    assert found["proc/irq/default_smp_affinity"] == "00000005"
    assert found["proc/irq/9/smp_affinity_list"] == "0,2"
    assert found["proc/irq/10/smp_affinity_list"] == "2"
    assert found["sys/devices/virtual/workqueue/writeback/cpumask"] == "00000005"
    assert found["proc/sys/kernel/sched_rt_runtime_us"] == "-1"
    journal.restore_all(kept=True)
    assert fake_host.values(place.root) == {
        **fake_host.FILES,
        "proc/meminfo": "MemTotal: 8000000 kB",
        # A mask has a form of its own, and the same CPUs.
        "proc/irq/default_smp_affinity": "0000000f",
        "sys/devices/virtual/workqueue/cpumask": "0000000f",
        "sys/devices/virtual/workqueue/writeback/cpumask": "0000000f",
    }


def test_only_states_that_take_longer_are_switched_off(place: KnobPlace, journal: Journal) -> None:
    tune({"c-states": "10"}, place, journal)
    found = fake_host.values(place.root)
    assert [found[f"{CPU}/cpu3/cpuidle/state{n}/disable"] for n in range(3)] == ["0", "0", "1"]
    [state] = [state for state in knobs.states(place) if state.name == "c-states"]
    assert state.now == "2"


def test_a_knob_that_does_not_exist_is_named_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match=r"'host\.swapiness' is not a knob") as caught:
        knobs.check_knobs({"swapiness": "10"})
    assert "Did you mean 'swappiness'?" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("swappiness", "201"),
        ("swappiness", "ten"),
        ("thp", "on"),
        ("rt-runtime-us", "-2"),
        ("c-states", "C1"),
        ("irq-affinity", "0-3"),
        ("smt", "forceoff"),
        ("governor", ""),
    ],
)
def test_a_value_that_a_knob_does_not_take_is_refused(knob: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"'host.{knob}' is '{value}'") as caught:
        knobs.check_knobs({knob: value})
    assert "It takes" in (caught.value.hint or "")


def _write(path: str, text: str) -> Callable[[Path], object]:
    def spoil(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    return spoil


def _for_each(pattern: str, act: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda root: [act(path) for path in root.glob(pattern)]


@pytest.mark.parametrize(
    ("spoil", "host", "reason"),
    [
        (
            _write(f"{CPU}/smt/control", "notsupported"),
            {"smt": "off"},
            "smt/control says 'notsupported'",
        ),
        (
            _write("proc/mounts", "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0"),
            {"smt": "off"},
            "CPUs that go offline are lost to the cpusets of cgroup v1",
        ),
        (
            _for_each("**/scaling_governor", Path.unlink),
            {"governor": "performance"},
            "no cpufreq",
        ),
        (lambda root: None, {"governor": "schedutil"}, "only the governors performance powersave"),
        (_for_each("**/disable", Path.unlink), {"c-states": "0"}, "no cpuidle"),
        (lambda root: None, {"hugepages-2M": "4096"}, "more than the memory that is free"),
        (lambda root: None, {"hugepages-1G": "1"}, "this kernel has no"),
        (
            lambda root: (root / "sys/module/kvm/parameters/halt_poll_ns").chmod(0o444),
            {"halt-poll-ns": "0"},
            "is read-only on this kernel",
        ),
        (lambda root: None, {"cpu-dma-latency": "0"}, "cpu_dma_latency (CONFIG_CPU_IDLE)"),
        (_write("proc/7/comm", "irqbalance"), {"irq-affinity": "housekeeping"}, "irqbalance runs"),
    ],
)
def test_what_a_host_cannot_do_is_told_and_not_tried(
    place: KnobPlace,
    journal: Journal,
    spoil: Callable[[Path], object],
    host: dict[str, str],
    reason: str,
) -> None:
    spoil(place.root)
    [problem] = knobs.problems(host, place)
    assert reason in problem
    assert problem.startswith(f"'{next(iter(host))}' can't be ")
    with pytest.raises(HostError, match="can't be"):
        tune(host, place, journal)
    assert not journal.path.exists()


def test_a_knob_that_fails_in_the_middle_undoes_those_before_it(
    place: KnobPlace, journal: Journal
) -> None:
    (place.root / "sys/kernel/mm/ksm/run").unlink()
    with pytest.raises(HostError, match="this kernel has no"):
        tune({"governor": "performance", "thp": "never", "ksm": "1"}, place, journal)
    found = fake_host.values
    (place.root / "sys/kernel/mm/ksm/run").write_text("0\n")
    assert found(place.root) == found(fake_host.make(place.root.with_name("untouched")))
    assert journal.pending() == []


def test_every_knob_says_what_it_is_now_and_what_it_takes(place: KnobPlace) -> None:
    found = {state.name: state for state in knobs.states(place)}
    assert found["governor"].now == "powersave"
    assert found["c-states"].now == "all"
    assert found["irq-affinity"].now == "0-3"
    assert found["hugepages-1G"].now is None
    assert "this kernel has no" in (found["hugepages-1G"].problem or "")
    # Whether this machine has tuned is no matter of the files.
    assert [s.name for s in found.values() if s.problem and s.name != "tuned"] == [
        "hugepages-1G",
        "cpu-dma-latency",
        "program",
    ]


def test_the_example_of_every_knob_s_values_is_one_that_it_takes() -> None:
    assert [name for name, of in KNOB_VALUES.items() if not of.accepts(of.example)] == []
    assert number(1, 100).accepts(number(1, 100).example)


def test_a_host_without_any_of_it_is_no_fault(tmp_path: Path) -> None:
    bare = KnobPlace(root=tmp_path)
    assert all(state.problem for state in knobs.states(bare))
    assert [state.name for state in knobs.states(bare)] == [knob.name for knob in TABLE]


def test_all_cpus_isolated_leaves_interrupts_where_they_are(
    place: KnobPlace, journal: Journal
) -> None:
    nowhere = replace(place, housekeeping=frozenset(), isolated=frozenset(range(4)))
    tune({"irq-affinity": "housekeeping"}, nowhere, journal)
    assert journal.pending() == []


def test_knobs_names_are_unique_and_explained() -> None:
    assert len({knob.name for knob in TABLE}) == len(TABLE)
    assert all(len(knob.what.split()) > 2 and knob.values for knob in TABLE)


def killed_after(seconds: float, act: Callable[[], object]) -> bool:
    """Whether a process that did it was killed before it was done."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        except BaseException:  # whatever it is, this process is a copy of pytest
            traceback.print_exc()
            os._exit(1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


def test_a_tune_that_is_killed_a_hundred_times_is_always_undone(
    place: KnobPlace, journal: Journal
) -> None:
    """At random moments; test_changes has each of its system calls."""
    some = {name: EVERYTHING[name] for name in ("governor", "thp", "swappiness", "irq-affinity")}
    started = time.monotonic()
    tune(some, place, journal)
    takes = time.monotonic() - started
    journal.restore_all(kept=True)
    before = fake_host.values(place.root)
    moments = random.Random(20261121)
    killed = 0
    for _ in range(100):
        killed += killed_after(moments.uniform(0, 1.2 * takes), lambda: tune(some, place, journal))
        journal.restore_all(kept=True)
        assert fake_host.values(place.root) == before
        assert journal.pending() == []
    assert killed > 5
