"""Samples as CSV and as Parquet: all of them, exactly, in one schema."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from labctl.report.export.samples import COLUMNS, SCHEMA, WHOLE_NUMBERS, samples_csv
from labctl.report.export.samples_parquet import VERSION_KEY, samples_parquet
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Sample, Unavailable
from tests.unit.synthetic import synthetic_run, write_run


def rows(run: LoadedRun) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("".join(samples_csv(run)))))


def table(run: LoadedRun) -> Any:
    return pq.read_table(io.BytesIO(samples_parquet(run)))


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
    assert {row["schema"] for row in found} == {str(SCHEMA)}
    assert "thread=vcpu" in {row["labels"] for row in found}


def test_names_from_elsewhere_are_no_formulas() -> None:
    run = synthetic_run(blocks=1, primary_only=True)
    trial = run.trials[0]
    cell = {**trial.record.cell, "condition": "=HYPERLINK(1)"}
    hostile = replace(trial, record=replace(trial.record, cell=cell))
    found = rows(replace(run, trials=(hostile,)))
    assert {row["condition"] for row in found} == {"'=HYPERLINK(1)"}


def test_parquet_says_row_for_row_what_the_csv_says() -> None:
    run = synthetic_run(blocks=2, repeated=[("pinned", "sysbench-cpu", 1)])
    columns = table(run)
    assert tuple(columns.column_names) == COLUMNS
    for name, field in zip(columns.column_names, columns.schema, strict=True):
        wanted = "double" if name == "value" else "int64" if name in WHOLE_NUMBERS else "string"
        assert str(field.type) == wanted, name
    as_texts = [
        {
            name: "" if value is None else repr(value) if name == "value" else str(value)
            for name, value in row.items()
        }
        for row in columns.to_pylist()
    ]
    assert as_texts == rows(run)


def test_the_parquet_files_own_metadata_has_the_schemas_version() -> None:
    metadata = table(synthetic_run(blocks=1)).schema.metadata
    assert metadata[VERSION_KEY.encode()] == str(SCHEMA).encode()
    assert metadata[b"labctl.run"] == b"synthetic"


def test_values_are_the_same_to_the_last_bit_after_a_way_through_files(tmp_path: Path) -> None:
    run = synthetic_run(blocks=1, workloads={"w": {"primary": "iops", "margin": 0.05}})
    loaded = write_run(tmp_path / "synthetic", run).load()
    assert json.dumps(table(loaded).to_pylist()) == json.dumps(rows_in_order(table(run)))


def rows_in_order(found: Any) -> list[dict[str, Any]]:
    """Files hold a trial's samples before what it lacks."""
    listed: list[dict[str, Any]] = found.to_pylist()
    return sorted(listed, key=lambda row: (row["trial"], row["unavailable"] is not None))


def test_a_run_without_a_trial_is_a_table_without_a_row() -> None:
    nothing = replace(synthetic_run(blocks=1), trials=())
    assert rows(nothing) == []
    found = table(nothing)
    assert (found.num_rows, tuple(found.column_names)) == (0, COLUMNS)
