"""What a try says of a program that does something else than its user means."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.command import CommandResult, LeftBehind
from labctl.base.yamltext import YamlMapping
from labctl.run.commands.try_workload import Read, notes_on
from labctl.workloads.declarations import declare
from labctl.workloads.workload import Workload


def program(kind: str) -> Workload:
    keys = {"description": "mine", "primary": "elapsed", "command": ["a"], "trial": {"kind": kind}}
    return declare("mine", YamlMapping(keys), Path("mine.yaml"))


def notes(
    kind: str = "once",
    *,
    status: int = 0,
    stdout: bytes = b"value 1\n",
    stderr: bytes = b"",
    seconds: float = 2.0,
    left: LeftBehind | None = None,
    problem: str | None = None,
) -> list[str]:
    result = CommandResult(
        returncode=status,
        stdout=stdout,
        stderr=stderr,
        files={},
        duration_s=seconds,
        counts={},
        left=left or LeftBehind(),
    )
    return list(notes_on(program(kind), result, Read(error=problem), 2.0))


def test_a_run_as_it_should_be_needs_no_note() -> None:
    assert notes() == notes("duration") == []


def test_a_program_that_goes_to_the_background_is_noted() -> None:
    (said,) = notes(left=LeftBehind(count=2, names=("worker", "worker")))
    assert "mine left processes running, such as worker, which labctl ended" in said
    assert "--serve" in said


def test_a_program_that_ignores_its_duration_is_noted() -> None:
    (said,) = notes("duration", seconds=0.01)
    assert "mine ended in less than half of the 2 s that it was told to run" in said
    assert notes("repeat", seconds=0.01) == []
    assert notes("duration", seconds=0.01, status=1) == [], "its status says more"


@pytest.mark.parametrize(
    ("stdout", "stderr", "status"),
    [
        (b"", b"", 0),
        (b"\x1erun\n\x1erun\n", b"\x1erun\n\x1erun\n", 0),
        (b"", b"EOFError: EOF when reading a line\n", 1),
    ],
)
def test_a_program_that_may_wait_for_input_is_noted(
    stdout: bytes, stderr: bytes, status: int
) -> None:
    (said,) = notes(stdout=stdout, stderr=stderr, status=status, problem="matches nothing")
    assert "standard input is empty" in said
    assert "--file PATH" in said
