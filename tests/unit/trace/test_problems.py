"""Why a collector recorded nothing is kept beside what the others say."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.files import note_problem, noted_problem


def test_each_collector_has_its_own_sentence(tmp_path: Path) -> None:
    raw = TrialFolder(tmp_path)
    assert noted_problem(raw, "guest_trace") is None
    note_problem(raw, "guest_trace", "no perf")
    note_problem(raw, "host_trace", "no tracefs")
    assert noted_problem(raw, "guest_trace") == "no perf"
    assert noted_problem(raw, "host_trace") == "no tracefs"
    assert noted_problem(raw, "exits") is None


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    raw = TrialFolder(tmp_path)
    raw.write_raw_json(files.PROBLEMS, ["no perf"])
    with pytest.raises(BrokenError, match=r"problems\.json: expected a sentence by collector"):
        noted_problem(raw, "guest_trace")
