"""Every collector is found where it is declared, and the engine goes by what it declares."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from labctl.base.process import running
from labctl.base.tuning import Kind, Level
from labctl.collect.collector import Attaching, Collector, Snapshot, Target
from labctl.collect.table import COLLECTORS, RECORDERS, SOURCES
from labctl.run.collectors import collecting as engine
from labctl.run.collectors.collecting import collecting
from labctl.run.guests.bench import labctl_threads
from tests.unit.collect.targets import target


def _traced(said: list[str], name: str, **given: Any) -> Collector:
    """One that says when it is attached, asked for a snapshot and ended."""

    @contextmanager
    def attached(_: Target) -> Iterator[Snapshot]:
        said.append(f"{name} begins")
        yield lambda edge: {name: said.append(f"{name} {edge.name.lower()}")}
        said.append(f"{name} ends")

    defaults = {"order": 0, "level": Level.COUNTERS, "gives": "", "parse": lambda trial: ()}
    return Collector(**{**defaults, **given, "name": name, "attached": attached})


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    words: list[str] = []
    made = (
        _traced(words, "window"),
        _traced(words, "counter", attaching=Attaching.COUNTERS),
        _traced(words, "guest's", sides=(Kind.GUEST,), attaching=Attaching.RECORDERS),
        _traced(words, "trace", level=Level.TRACE, attaching=Attaching.RECORDERS),
        _traced(words, "first", attaching=Attaching.BEFORE_COMMAND),
    )
    monkeypatch.setattr(engine, "COLLECTORS", made)
    return words


def _begun(said: list[str]) -> list[str]:
    return [word.removesuffix(" begins") for word in said if word.endswith("begins")]


def test_collectors_are_attached_the_closer_to_the_window_the_later(
    said: list[str], tmp_path: Path
) -> None:
    with collecting(target(tmp_path), Level.TRACE):
        assert _begun(said) == ["counter", "guest's", "trace", "window"]
    assert said[-4:] == ["window ends", "trace ends", "guest's ends", "counter ends"]


def test_what_asks_the_machine_itself_is_attached_before_the_command(
    said: list[str], tmp_path: Path
) -> None:
    with collecting(target(tmp_path), Level.TRACE, before_command=True):
        assert _begun(said) == ["first"]


def test_a_level_and_a_side_have_their_own_collectors_alone(
    said: list[str], tmp_path: Path
) -> None:
    with collecting(target(tmp_path, kind=Kind.NATIVE), Level.EXITS):
        assert _begun(said) == ["counter", "window"]


def test_the_first_of_the_table_is_read_next_to_the_window(said: list[str], tmp_path: Path) -> None:
    with collecting(target(tmp_path), Level.COUNTERS) as edges:
        said.clear()
        edges.before()
        assert said == ["guest's opens", "counter opens", "window opens"]
        said.clear()
        assert edges.after().keys() == {"window", "counter", "guest's"}
        assert said == ["window closes", "counter closes", "guest's closes"]


def test_no_garbage_is_collected_while_a_window_is_measured(
    said: list[str], tmp_path: Path
) -> None:
    with collecting(target(tmp_path), Level.COUNTERS):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_names_and_raw_files_are_those_of_one_collector() -> None:
    names = [collector.name for collector in COLLECTORS]
    assert len(set(names)) == len(names)
    sides: dict[str, set[Kind]] = {}
    for collector in COLLECTORS:
        for file in collector.raw:
            assert not sides.setdefault(file, set()) & set(collector.sides), file
            sides[file] |= set(collector.sides)


def test_collectors_are_listed_by_level_and_parsed_in_their_order() -> None:
    levels = [list(Level).index(collector.level) for collector in COLLECTORS]
    assert levels == sorted(levels)
    orders = [source.order for source in SOURCES]
    assert orders == sorted(orders)
    assert set(COLLECTORS) < set(SOURCES)


def test_what_records_for_a_trial_is_no_stranger() -> None:
    assert {"perf", "bpftrace"} <= RECORDERS


def test_what_a_program_of_that_name_takes_is_labctls_own(tmp_path: Path) -> None:
    shutil.copy("/bin/sleep", tmp_path / "bpftrace")
    argvs = ((str(tmp_path / "bpftrace"), "60"), ("/bin/sleep", "60"))
    with ExitStack() as stack:
        recorder, other = (stack.enter_context(running(argv)) for argv in argvs)
        while _name(recorder.pid) != "bpftrace":
            time.sleep(0.01)
        ours = {thread.pid for thread in labctl_threads()}
    assert recorder.pid in ours
    assert other.pid not in ours


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
