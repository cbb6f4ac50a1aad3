"""Write every sample of a run as a Parquet file, in the schema of
`labctl.report.export.samples`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from labctl import __version__
from labctl.report.export.samples import (
    COLUMNS,
    OF_KIND,
    OF_TRIAL,
    SCHEMA,
    WHOLE_NUMBERS,
    factors_of,
    levels_of,
    of_factors,
    of_kind,
    of_trial,
    packed,
)
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Kind, Unavailable

VERSION_KEY = "labctl.samples.schema"
"""Key in the file's own metadata, beside `labctl.version` and `labctl.run`."""

_Codes = np.ndarray[tuple[int], np.dtype[np.int32]]


def samples_parquet(run: LoadedRun) -> bytes:
    """Return all attempts, invalid ones too. The value of an unavailable metric is null."""
    table, file = samples_table(run), io.BytesIO()
    # Arrow's schema is left out beside Parquet's: with it, readers would show texts that refer to
    # a list as categories.
    with pq.ParquetWriter(file, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(
            {VERSION_KEY: str(SCHEMA), "labctl.version": __version__, "labctl.run": run.name}
        )
    return file.getvalue()


def samples_table(run: LoadedRun) -> Any:
    """Return the attempts as an Arrow table whose texts are references into lists."""
    kinds: dict[Kind | Unavailable, int] = {}
    patterns: dict[int, _Codes] = {}
    factors, levels = factors_of(run), levels_of(run)
    about, lengths, coded, values = [], [], [], []
    for trial, readings in packed(run):
        # Trials with the same kinds share one tuple of them, which outlives this loop.
        pattern = patterns.get(id(readings.kinds))
        if pattern is None:
            numbers = [kinds.setdefault(kind, len(kinds)) for kind in readings.kinds]
            pattern = patterns[id(readings.kinds)] = np.array(numbers, dtype=np.int32)
        about.append((*of_trial(run, trial), *of_factors(trial, factors, levels)))
        lengths.append(len(readings))
        coded.append(pattern)
        values.append(np.frombuffer(readings.values))
    trial_of = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    kind_of = np.concatenate([np.zeros(0, dtype=np.int32), *coded])
    absent = np.array([isinstance(kind, Unavailable) for kind in kinds], dtype=bool)
    columns = {
        "value": pa.array(np.concatenate([np.zeros(0), *values]), mask=absent[kind_of]),
        "schema": pa.array(np.full(len(kind_of), SCHEMA, dtype=np.int64)),
    }
    of_kinds = [of_kind(kind) for kind in kinds]
    for place, name in enumerate((*OF_TRIAL, *factors)):
        columns[name] = _column(name, [row[place] for row in about], trial_of)
    for place, name in enumerate(OF_KIND):
        columns[name] = _column(name, [row[place] for row in of_kinds], kind_of)
    return pa.table({name: columns[name] for name in (*COLUMNS, *factors)})


def _column(name: str, distinct: Sequence[Any], codes: _Codes) -> Any:
    """Return `distinct` by `codes`: numbers as they are, texts as references into one list of
    them.
    """
    if name in WHOLE_NUMBERS:
        return pa.array(np.array(distinct, dtype=np.int64)[codes])
    texts = pa.array(distinct, type=pa.string()).dictionary_encode()
    return texts.take(pa.array(codes))
