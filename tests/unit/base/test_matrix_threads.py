"""Threads that numpy's library for matrices would take."""

from __future__ import annotations

import sys

import pytest

from labctl.base import interpreter, process
from labctl.base.process import Deadline

VARIABLE = "OPENBLAS_NUM_THREADS"


def printed(*argv: str) -> str:
    return process.run(argv, deadline=Deadline.after(60, argv[0])).stdout.strip()


def test_numpy_and_scipy_start_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    script = (
        "import os; from labctl.base import interpreter; interpreter.take_no_matrix_threads(); "
        "import labctl.analysis.special; print(len(os.listdir('/proc/self/task')))"
    )
    assert printed(sys.executable, "-c", script) == "1"


def test_other_programs_are_told_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    interpreter.take_no_matrix_threads()
    assert printed("sh", "-c", f"echo ${VARIABLE}") == ""


def test_a_user_who_says_how_many_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    interpreter.take_no_matrix_threads()
    assert printed("sh", "-c", f"echo ${VARIABLE}") == "2"
