"""Write a run's answer as JSON: in reports, and as `answer.json` in the run's folder.

labctl never reads that file: it works out the answer from the run's trials each time
(docs/decisions/answer-record.md). It is there for programs that can't.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from labctl.analysis.answer_record import AnswerRecord
from labctl.base.errors import HostError
from labctl.base.jsontext import parse_json
from labctl.store.jsonfile import write_json
from labctl.store.records.tolerant import adapter
from labctl.store.run_folder import RunFolder

NAME = "answer.json"

SCHEMA = 1
"""Raised when a key goes or changes its meaning; new keys leave it as it is."""


def answer_json(record: AnswerRecord) -> dict[str, Any]:
    """Return the record as plain JSON values."""
    # What is no finite number is null.
    return {"schema": SCHEMA, **parse_json(adapter(AnswerRecord).dump_json(record))}


def write_answer(folder: RunFolder, record: AnswerRecord) -> None:
    """Write the record into the run's folder, or leave it where that can't be written to: nothing
    depends on it."""
    with suppress(HostError):
        write_json(folder.path / NAME, answer_json(record), below=folder.path)
