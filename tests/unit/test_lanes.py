"""Who waits for whom where tests with guests run in two lanes."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lanes import Lane, alone_first

A_WHILE_S = 0.2
"""Longer than a thread takes to do what it needn't wait for; one that has to wait waits on."""


def an_item(*marks: str, file: str = "test_one.py", worker: bool = True) -> Any:
    """What a lane looks at of one of pytest's tests."""
    config = SimpleNamespace(workerinput={}) if worker else SimpleNamespace()
    closest = dict.fromkeys(marks, True).get
    return SimpleNamespace(get_closest_marker=closest, config=config, path=Path(file))


SHARED, ALONE, UNIT = an_item("guest"), an_item("guest", "alone"), an_item()


@pytest.fixture
def lanes(tmp_path: Path) -> tuple[Lane, Lane, Lane]:
    turn, host = tmp_path / "turn", tmp_path / "host"
    turn.mkdir()
    host.mkdir()
    return Lane(turn, host), Lane(turn, host), Lane(turn, host)


class Waiting:
    """A lane that begins a test in a thread of its own."""

    def __init__(self, lane: Lane, item: Any) -> None:
        self._began = threading.Event()

        def begin() -> None:
            lane.before(item)
            self._began.set()

        threading.Thread(target=begin, daemon=True).start()

    def has_begun(self, seconds: float = 30) -> bool:
        return self._began.wait(seconds)

    @property
    def waits(self) -> bool:
        return not self.has_begun(A_WHILE_S)


def test_tests_of_two_lanes_run_at_once(lanes: tuple[Lane, Lane, Lane]) -> None:
    first, second, _ = lanes
    first.before(SHARED)
    assert Waiting(second, SHARED).has_begun()


def test_one_that_is_alone_waits_and_is_next(lanes: tuple[Lane, Lane, Lane]) -> None:
    first, second, third = lanes
    first.before(SHARED)
    alone = Waiting(second, ALONE)
    assert alone.waits
    later = Waiting(third, SHARED)
    assert later.waits
    first.after(SHARED, None)
    assert alone.has_begun()
    assert later.waits
    second.after(ALONE, None)
    assert later.has_begun()


def test_those_of_one_file_wait_once(lanes: tuple[Lane, Lane, Lane]) -> None:
    first, second, _ = lanes
    first.before(ALONE)
    first.after(ALONE, ALONE)
    other = Waiting(second, SHARED)
    assert other.waits
    first.before(ALONE)
    assert other.waits
    first.after(ALONE, an_item("guest", "alone", file="test_two.py"))
    assert other.has_begun()


@pytest.mark.parametrize("item", [UNIT, an_item("guest", "alone", worker=False)])
def test_what_is_in_no_lane_waits_for_nothing(lanes: tuple[Lane, Lane, Lane], item: Any) -> None:
    first, second, _ = lanes
    first.before(ALONE)
    assert Waiting(second, item).has_begun()


def test_files_of_tests_that_are_alone_come_first_and_others_keep_their_order() -> None:
    shared, partly = an_item("guest"), an_item("guest", "alone", file="test_two.py")
    rest = an_item("guest", file="test_two.py")
    first, second = (an_item("guest", "alone", file="test_three.py") for _ in range(2))
    items = [shared, partly, rest, first, second]
    alone_first(items)
    assert items == [first, second, shared, partly, rest]
