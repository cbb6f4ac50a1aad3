"""Samples as CSV: all of them, exactly, and harmless to a spreadsheet."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from labctl.report.samples_csv import COLUMNS, samples_csv
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Sample, Unavailable
from tests.unit.synthetic import synthetic_run


def rows(run: LoadedRun) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(samples_csv(run))))


def test_each_reading_is_a_row_with_its_exact_value_or_its_reason() -> None:
    run = synthetic_run(blocks=2, repeated=[("pinned", "sysbench-cpu", 1)])
    found = rows(run)
    readings = [reading for trial in run.trials for reading in trial.readings]
    assert len(found) == len(readings)
    for row, reading in zip(found, readings, strict=True):
        assert tuple(row) == COLUMNS
        assert row["metric"] == reading.metric
        if isinstance(reading, Sample):
            assert float(row["value"]) == reading.value
            assert row["unavailable"] == ""
        else:
            assert isinstance(reading, Unavailable)
            assert (row["value"], row["unavailable"]) == ("", reading.reason)
    assert {row["status"] for row in found} <= {"done", "invalid"}
    assert "thread=vcpu" in {row["labels"] for row in found}


def test_names_from_elsewhere_are_no_formulas() -> None:
    run = synthetic_run(blocks=1, primary_only=True)
    trial = run.trials[0]
    cell = {**trial.record.cell, "condition": "=HYPERLINK(1)"}
    hostile = replace(trial, record=replace(trial.record, cell=cell))
    found = rows(replace(run, trials=(hostile,)))
    assert {row["condition"] for row in found} == {"'=HYPERLINK(1)"}
