"""Instructions per operation, and the second count that bounds the first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.events import Event, Warned
from labctl.base.tuning import Kind
from labctl.collect.counters import calibrated
from labctl.collect.counters.perf import Countable, Printed
from labctl.run.collectors import calibrate
from labctl.run.collectors.calibrate import Calibrations
from labctl.study.study import StudyWorkload
from tests.unit.collect.targets import target

DECLARED = StudyWorkload(
    program="sysbench-cpu",
    parameters={"max_prime": 2000},
    duration_s=1.0,
    primary="events_per_s",
    margin=0.05,
)
START = 1_000_000
NO_PMU = Countable(problem="no PMU: so.")
PMU = Countable(events=("cycles:u", "instructions:u"), output=("--json-output",))


class _Channel:
    """A machine on which callgrind and lackey count so many instructions per event."""

    def __init__(self, callgrind: int, lackey: int = 0) -> None:
        self._per_event = {"callgrind": callgrind, "lackey": lackey}
        self.ran: list[Command] = []

    def run(self, command: Command, *, seconds: float) -> Any:
        self.ran.append(command)
        tool = "lackey" if "--tool=lackey" in command.argv else "callgrind"
        count = START + _events(command) * self._per_event[tool]
        said = f"Collected : {count}" if tool == "callgrind" else f"  guest instrs:  {count:,}"
        return SimpleNamespace(stderr=f"==7== {said}\n".encode())

    @contextmanager
    def prepared(self, command: Command, *, seconds: float) -> Iterator[Any]:
        self.ran.append(command)
        nothing = {name: lambda: None for name in ("go", "wait_exited", "result")}
        yield SimpleNamespace(pid=_events(command), **nothing)


def _events(command: Command) -> int:
    found = re.search(r"--events=(\d+)", " ".join(command.argv))
    assert found
    return int(found[1])


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    monkeypatch.setattr(calibrate, "countable", lambda _: NO_PMU)
    return []


def _calibrations(folder: Path, said: list[Event]) -> Calibrations:
    lab: Any = SimpleNamespace(
        other_images={},
        source=SimpleNamespace(has_native_side=True),
        image=SimpleNamespace(digest="abc", tree=folder),
        places=SimpleNamespace(cache=folder / "cache"),
        accelerator=SimpleNamespace(name="tcg"),
        memory_mib=512,
        vcpus=1,
        layout=None,
        journal=None,
        listener=said.append,
    )
    return Calibrations(lab, {"cpu": DECLARED})


def _count(
    folder: Path, said: list[Event], monkeypatch: pytest.MonkeyPatch, native: _Channel, guest: int
) -> Calibrations:
    found = _calibrations(folder, said)
    monkeypatch.setattr(calibrate, "tree_channel", lambda _: nullcontext(native))
    found.count_natively()
    machine: Any = _Channel(guest)
    found.count_in_guest(machine)
    return found


def test_without_a_pmu_lackey_counts_natively_and_bounds_the_error(
    tmp_path: Path, said: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _count(tmp_path, said, monkeypatch, _Channel(1000, lackey=1030), guest=990)
    (row,) = found.summary()
    assert (row["workload"], row["second_method"]) == ("cpu", "lackey")
    assert (row["native"], row["guest"], row["second"]) == (1000, 990, 1030)
    assert row["bound"] == pytest.approx(0.03)


def test_the_guest_s_count_bounds_it_as_well_and_is_stored_with_its_trials(
    tmp_path: Path, said: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _count(tmp_path, said, monkeypatch, _Channel(1000, lackey=1001), guest=950)
    asked = target(tmp_path, calibration=partial(found.of, Kind.GUEST, DECLARED))
    with calibrated.CALIBRATED.attached(asked):
        pass
    stored = json.loads((tmp_path / "calibration.json").read_text())
    assert stored["instructions_per_operation"] == 950
    assert stored["bound"] == pytest.approx(0.05)


def test_what_was_counted_is_kept(
    tmp_path: Path, said: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    _count(tmp_path, said, monkeypatch, _Channel(1000, lackey=1001), guest=1000)
    again = _Channel(1000, lackey=1001)
    _count(tmp_path, said, monkeypatch, again, guest=1000)
    assert again.ran == []


def _perf(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """A PMU whose perf prints that of each command, whose number of events is its process's."""

    @contextmanager
    def attached(command: tuple[str, ...]) -> Iterator[Printed]:
        printed = Printed()
        yield printed
        assert command[command.index("--event") + 1] == "instructions:u"
        printed.text = line.replace("COUNT", str(START + 1010 * int(command[-1])))

    monkeypatch.setattr(calibrate, "countable", lambda _: PMU)
    monkeypatch.setattr(calibrate, "perf_attached", attached)


def test_a_pmu_counts_the_plain_command(
    tmp_path: Path, said: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    _perf(monkeypatch, "COUNT,,instructions:u,5000,100.00,,")
    native = _Channel(1000)
    (row,) = _count(tmp_path, said, monkeypatch, native, guest=1000).summary()
    assert (row["second"], row["second_method"]) == (1010, "perf")
    assert [c.argv[0].endswith("valgrind") for c in native.ran] == [True, True, False, False]


def test_a_pmu_that_somebody_else_uses_leaves_it_to_lackey(
    tmp_path: Path, said: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    _perf(monkeypatch, "COUNT,,instructions:u,5000,61.20,,")
    native = _Channel(1000, lackey=1020)
    (row,) = _count(tmp_path, said, monkeypatch, native, guest=1000).summary()
    assert (row["second"], row["second_method"]) == (1020, "lackey")
    (warned,) = (event for event in said if isinstance(event, Warned))
    assert "only 61.2 % of the time" in warned.text


def test_a_tool_that_fails_is_named(
    tmp_path: Path, said: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    native = _Channel(1000, lackey=1000)
    monkeypatch.setattr(native, "run", lambda *_, **__: SimpleNamespace(stderr=b"valgrind: no"))
    with pytest.raises(BrokenError, match="callgrind"):
        _count(tmp_path, said, monkeypatch, native, guest=1000)
