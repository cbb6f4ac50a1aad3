"""Counting guests in one block, with guests that only say what their workload would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import HostError
from labctl.base.events import Event
from labctl.base.units import Unit
from labctl.run.planning.density import Search
from labctl.run.trials import density as module
from labctl.run.trials.density import Together
from labctl.store.density_record import Bound, CountRecord, DensityFolder, DensityLog, Limit
from tests.unit.density_records import record

Value = float | str
LIMIT = Limit(metric="frame_p95", bound=Bound.BELOW, value=0.016, unit=Unit.SECONDS)


@dataclass
class Guests:
    """Guests that cost each other 4 ms. `room_for`: how many the host's memory has."""

    room_for: int = 100
    value: Callable[[int, int], Value] = lambda count, number: 0.004 * count
    others: list[float] = field(default_factory=list)
    """CPUs that others take, step by step; 0.01 afterwards."""
    said: list[Event] = field(default_factory=list)
    guests: list[Any] = field(default_factory=list)
    pins: list[int] = field(default_factory=list)

    @property
    def room(self) -> Any:
        tuning, lab = SimpleNamespace(name="vcpupin"), SimpleNamespace(listener=self.said.append)
        return SimpleNamespace(check_memory=self._check, tuning=tuning, lab=lab)

    def _check(self, more: int) -> None:
        if len(self.guests) + more > self.room_for:
            raise HostError("1 more guests of 1024 MiB need 1088 MiB, and the host has 100 MiB")

    def add(self, pins: int) -> None:
        self.pins.append(pins)
        number = len(self.guests) + 1
        clone = SimpleNamespace(to_json=lambda: {"name": f"labctl-noisy-{number}"})
        self.guests.append(SimpleNamespace(number=number, cpus=f"CPU {pins}", clone=clone))

    def check_places(self) -> None:
        """They stay where they are."""

    def remove_last(self) -> None:
        self.guests.pop()

    def together(self, job: Any, guests: Sequence[Any], folders: Sequence[Any]) -> Together:
        values = [self.value(len(guests), guest.number) for guest in guests]
        others = self.others.pop(0) if self.others else 0.01
        return Together(values=values, common_s=9.9, other_cpus=others)


@dataclass
class Counting:
    monkeypatch: pytest.MonkeyPatch
    log: DensityLog
    waits: list[str] = field(default_factory=list)

    def of(self, guests: Guests, *, most: int = 20, search: Search = Search.UP) -> CountRecord:
        self.monkeypatch.setattr(module, "run_together", guests.together)
        plan: Any = SimpleNamespace(
            most=most,
            most_by="--most",
            places=SimpleNamespace(of=lambda number: number % 2),
            request=SimpleNamespace(limit=LIMIT, search=search, blocks=3),
        )
        job: Any = None
        fake: Any = guests
        quiet: Any = SimpleNamespace(may_wait=True, wait=lambda: self.waits.append("waited"))
        return module.count_guests(plan, fake, job, 2, self.log, quiet)

    @property
    def tried(self) -> list[int]:
        return [step.count for step in self.log.record.steps]


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counting:
    folder = DensityFolder.create(tmp_path / "results" / "one")
    empty = record({"vcpupin": [None]}).model_copy(update={"steps": (), "counts": ()})
    return Counting(monkeypatch, DensityLog(folder, empty))


def test_the_number_is_the_last_that_kept_the_limit(counting: Counting) -> None:
    """4, 8 and 12 ms hold; 16 ms isn't below 16 ms."""
    count = counting.of(Guests())
    assert (count.number, count.bounded, count.why) == (3, None, None)
    assert counting.tried == [1, 2, 3, 4]


def test_the_worst_guest_decides(counting: Counting) -> None:
    last_is_slow = Guests(value=lambda count, number: 0.02 if number == 3 else 0.001)
    assert counting.of(last_is_slow).number == 2
    assert counting.log.record.steps[-1].values == [0.001, 0.001, 0.02]


def test_a_limit_that_one_guest_breaks_makes_the_number_0(counting: Counting) -> None:
    count = counting.of(Guests(value=lambda count, number: 0.02))
    assert (count.number, counting.tried) == (0, [1])


def test_a_bound_makes_it_a_lower_one(counting: Counting) -> None:
    count = counting.of(Guests(), most=2)
    assert (count.number, count.bounded) == (2, "--most")


def test_memory_that_another_takes_meanwhile_makes_it_a_lower_one(counting: Counting) -> None:
    count = counting.of(Guests(room_for=2))
    assert count.number == 2
    assert (count.bounded or "").startswith("memory: 1 more guests of 1024 MiB need 1088 MiB")


def test_what_memory_still_has_is_tried_before_the_search_ends(counting: Counting) -> None:
    count = counting.of(Guests(room_for=3), search=Search.BISECT)
    assert (count.number, counting.tried) == (3, [1, 2, 3])
    assert count.bounded is not None


def test_a_host_that_has_no_memory_any_more_gives_no_number(counting: Counting) -> None:
    count = counting.of(Guests(room_for=0))
    assert (count.number, counting.tried) == (None, [])
    assert "need 1088 MiB" in (count.why or "")


def test_one_guest_that_others_disturb_gives_no_number(counting: Counting) -> None:
    """At least none says nothing, and would be a number in the median."""
    count = counting.of(Guests(value=lambda count, number: 0.02, others=[0.5] * 20))
    assert count.number is None
    assert "other processes" in (count.why or "")


def test_bisect_ends_guests_and_makes_some_anew(counting: Counting) -> None:
    guests = Guests(value=lambda count, number: 0.002 * count)
    count = counting.of(guests, search=Search.BISECT)
    assert (count.number, counting.tried) == (7, [1, 2, 4, 8, 6, 7])
    assert len(guests.guests) == 7
    assert guests.pins == [0, 1, 0, 1, 0, 1, 0, 1, 0]


def test_a_guest_without_a_value_makes_the_number_unavailable(counting: Counting) -> None:
    few = Guests(value=lambda count, number: "too few frames" if number == 2 else 0.001)
    count = counting.of(few)
    assert (count.number, count.why) == (None, "2 guests: too few frames")
    last = counting.log.record.steps[-1]
    assert (last.held, last.guests[1].why, last.guests[1].value) == (None, "too few frames", None)


def test_each_step_is_on_disk_and_said_when_it_ends(counting: Counting) -> None:
    guests = Guests()
    counting.of(guests, most=2)
    written = counting.log.folder.read()
    assert [step.count for step in written.steps] == [1, 2]
    assert [guest.cpus for guest in written.steps[1].guests] == ["CPU 0", "CPU 1"]
    assert written.steps[1].guests[1].folder == "b02-vcpupin-n02-g02"
    assert (counting.log.folder.path / "guests/b02-vcpupin-n02-g02/guest.json").is_file()
    texts = [getattr(event, "text", "") for event in guests.said]
    assert texts[1] == (
        "Block 2 of 3, vcpupin: 2 guests (guest 2 on CPU 1), worst frame_p95 8.00 ms: "
        "the limit holds."
    )


def test_a_step_that_breaks_beside_others_is_tried_again(counting: Counting) -> None:
    """The first two tries of the first step are spoilt, the third is not."""
    slow_at_first = iter([0.02, 0.02])
    guests = Guests(
        others=[0.5, 0.5], value=lambda count, number: next(slow_at_first, 0.004 * count)
    )
    count = counting.of(guests)
    assert (count.number, count.bounded) == (3, None)
    assert counting.tried == [1, 1, 1, 2, 3, 4]
    assert [step.disturbed for step in counting.log.record.steps] == [True, True, *[False] * 4]
    folders = [step.guests[0].folder for step in counting.log.record.steps]
    assert len(set(folders)) == len(folders)
    assert counting.waits == ["waited"] * 2


def test_a_step_that_holds_beside_others_is_believed(counting: Counting) -> None:
    count = counting.of(Guests(others=[0.5, 0.5, 0.5]))
    assert (count.number, counting.tried, counting.waits) == (3, [1, 2, 3, 4], [])


@pytest.mark.parametrize("search", Search)
def test_others_that_stay_make_the_number_a_lower_bound(counting: Counting, search: Search) -> None:
    count = counting.of(Guests(others=[0.0, 0.0, *[0.5] * 9]), search=search)
    assert count.number == (3 if search is Search.UP else 2)
    assert (count.bounded or "").startswith("other processes on this host beside 4 guests")


def test_memory_that_ends_a_bisection_leaves_a_lower_bound(counting: Counting) -> None:
    """Eight break, four hold, and for six there is no room any more."""
    guests = Guests(value=lambda count, number: 0.003 * count)
    check = guests._check

    def shrinking(more: int) -> None:
        guests.room_for = 4 if counting.tried[-1:] == [8] else guests.room_for
        check(more)

    guests._check = shrinking  # type: ignore[method-assign]
    guests.remove_last = lambda: guests.guests.clear()  # type: ignore[method-assign]
    count = counting.of(guests, search=Search.BISECT)
    assert (count.number, counting.tried) == (4, [1, 2, 4, 8])
    assert (count.bounded or "").startswith("memory: ")
