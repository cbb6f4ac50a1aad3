"""Recorded runs whose figure of what others took can't be trusted say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from labctl.analysis.caveats.caveats import OTHER, unseen_disturbance
from labctl.analysis.judge import judge
from labctl.base.units import Better, Unit
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.store.samples import Reading, Sample, Unavailable
from tests.unit.analysis.alter import with_run
from tests.unit.example import EXAMPLE
from tests.unit.synthetic import TUNINGS, synthetic_run

PINNED = {"vcpus": "plan", "emulator": "plan", "iothreads": None, "strategy": "compact"}
FREE = {"vcpus": None, "emulator": None, "iothreads": None, "strategy": "compact"}


def _sample(metric: str, value: float, **labels: str) -> Sample:
    return Sample(
        metric=metric,
        value=value,
        unit=Unit.CPUS,
        better=Better.NEITHER,
        labels=labels,
        source="host.json",
    )


HOGS = _sample("host_cpu", 1.7, thread="neighbour")
OTHERS = _sample("host_cpu", 0.0, thread="other")
BUSY = _sample("host_busy", 2.0)


def _run(pins: Mapping[str, Any], *readings: Reading, usable: str = "0-3") -> LoadedRun:
    """Every trial with these readings beside its own; arms that aren't named are free."""
    run = synthetic_run(primary_only=True)
    tunings = {
        name: {"kind": entry["kind"], "iothreads": 0, "pin": pins.get(name, FREE)}
        for name, entry in TUNINGS.items()
    }
    data = {"vcpus": {"0": 1, "1": 2}, "emulator": "0", "iothreads": {"1": "0"}, "usable": usable}
    trials = (replace(t, readings=(*t.readings, *readings)) for t in run.trials)
    plan = {**run.run.to_json()["pin_plan"], "data": data}
    return with_run(replace(run, trials=tuple(trials)), tunings=tunings, pin_plan=plan)


def _arms(run: LoadedRun) -> set[str]:
    said = " ".join(unseen_disturbance(run))
    return {name for name in TUNINGS if f"'{name}'" in said}


def test_pinned_arms_beside_neighbours_that_roamed_are_named() -> None:
    run = _run({"native+pinned": PINNED, "pinned": PINNED}, HOGS, OTHERS)
    (said,) = unseen_disturbance(run)
    assert _arms(run) == {"native+pinned", "pinned"}
    assert "How much others disturbed 40 valid trials of" in said
    assert said in judge(run).warnings


def test_counted_by_cpu_they_can_be_trusted() -> None:
    assert _arms(_run({"native+pinned": PINNED}, HOGS, OTHERS, BUSY)) == set()


def test_without_neighbours_nothing_roamed() -> None:
    assert _arms(_run({"native+pinned": PINNED}, OTHERS)) == set()


def test_a_peer_roams_as_well() -> None:
    peer = _sample("host_cpu", 0.4, thread="peer")
    assert _arms(_run({"native+pinned": PINNED}, peer, OTHERS)) == {"native+pinned"}


def test_a_guest_whose_threads_together_have_all_cpus_hid_nothing() -> None:
    run = _run({"native+pinned": PINNED, "pinned": PINNED}, HOGS, OTHERS, usable="0-2")
    assert _arms(run) == {"native+pinned"}


def test_a_guest_with_a_thread_that_is_free_has_all_cpus() -> None:
    assert _arms(_run({"pinned": {**PINNED, "emulator": None}}, HOGS, OTHERS)) == set()


def test_pins_of_its_own_are_known_too() -> None:
    own = {**PINNED, "vcpus": {"0": [1], "1": [3]}, "emulator": [0]}
    assert _arms(_run({"pinned": own}, HOGS, OTHERS)) == {"pinned"}
    assert _arms(_run({"pinned": own}, HOGS, OTHERS, usable="0-1,3")) == set()


def test_parsed_again_its_trials_are_still_not_known_to_be_undisturbed() -> None:
    unknown = Unavailable(metric=OTHER, reason="the labctl that measured this did not count it.")
    assert _arms(_run({"native+pinned": PINNED}, HOGS, unknown, BUSY)) == {"native+pinned"}


def test_a_run_that_records_no_pins_says_nothing() -> None:
    run = _run({"native+pinned": PINNED}, HOGS, OTHERS)
    assert _arms(with_run(run, tunings=None)) == set()
    assert _arms(with_run(run, pin_plan=None)) == set()
    assert _arms(with_run(run, pin_plan={"data": {"vcpus": "x", "usable": "0--"}})) == set()


def test_the_recorded_example_says_so_of_its_native_twins() -> None:
    (said,) = unseen_disturbance(RunFolder(EXAMPLE).load())
    assert (
        "'native+pinned' and 'native+fifo'" in said or "'native+fifo' and 'native+pinned'" in said
    )
