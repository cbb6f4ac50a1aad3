"""Store why a trial's collectors recorded nothing, or not everything: one sentence each."""

from __future__ import annotations

from labctl.base.errors import FileError
from labctl.store.trial import TrialFolder
from labctl.trace import files

HOST_TRACE, GUEST_TRACE, EXITS = "host_trace", "guest_trace", "exits"
"""Collectors by their names in the file."""

SIZE_LIMIT = "size limit"
"""Words of every sentence on a recording that became too large, perf's own included."""


def note_problem(raw: TrialFolder, collector: str, sentence: str) -> None:
    """Store a collector's sentence on its problem beside those of the trial's others."""
    known = _all(raw) if raw.has(files.PROBLEMS) else {}
    raw.write_raw_json(files.PROBLEMS, {**known, collector: sentence})


def noted_problem(raw: TrialFolder, collector: str) -> str | None:
    """Return a collector's sentence; None if it recorded, or never ran. Raises BrokenError naming
    the file if it is invalid."""
    if not raw.has(files.PROBLEMS):
        return None
    sentence = _all(raw).get(collector)
    return None if sentence is None else str(sentence)


def _all(raw: TrialFolder) -> dict[str, object]:
    found = raw.read_json(files.PROBLEMS)
    if not isinstance(found, dict):
        raise FileError(f"{raw.path / files.PROBLEMS}: expected a sentence by collector")
    return found
