"""Keep a run's trials and samples in one Parquet file as well, derived and quick to read.

It may be deleted at any time. It counts only while every trial's files are those that it was made
from (docs/decisions/README.md).
"""

from __future__ import annotations

import hashlib
import os
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl import __version__
from labctl.base.errors import HostError
from labctl.base.json import parse_json
from labctl.store.jsonfile import canonical, replacing
from labctl.store.samples import Kind, Kinds, Readings, Unavailable
from labctl.store.trial import TrialRecord

NAME = "index.parquet"

_FORMAT = 2
"""Raised when the index looks otherwise, or when reading the JSON makes something else of it."""

_SETTLED_NS = 2_000_000_000
"""Age of the latest change: what changed later may change again within one tick of the file
system's clock, and look the same (git calls such files "racily clean")."""

_SMALLEST_BYTES = 4_000_000
"""Size of all samples.json files together: below this, reading them is no slower than loading the
library that reads an index."""

_AT_ONCE = 1000
"""Records, while the index is read."""

_FILES = frozenset({"trial.json", "samples.json"})


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hold what the files of a run's trials look like from outside: names, inodes, sizes and
    times."""

    digest: str
    sample_bytes: int
    newest_ns: int
    taken_ns: int

    @classmethod
    def of(cls, trials: Path) -> Fingerprint:
        """Take the fingerprint of the folder `trials`. The time of a file's last change (ctime) is
        set by the kernel alone: an edit shows in it though size and mtime were put back."""
        taken = time.time_ns()
        found = hashlib.sha256()
        sample_bytes, newest = 0, 0
        try:
            folders = sorted(entry.name for entry in os.scandir(trials) if entry.name[0].isdigit())
        except OSError:
            folders = []
        for folder in folders:
            found.update(f"{folder}\n".encode())
            for name in sorted(_FILES):
                path = f"{trials}/{folder}/{name}"
                try:
                    s = os.stat(path)
                except OSError as error:
                    found.update(f"{name} {error.errno}\n".encode())
                    continue
                looks = (name, s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
                found.update(f"{looks}\n".encode())
                newest = max(newest, s.st_ctime_ns, s.st_mtime_ns)
                if name == "samples.json":
                    sample_bytes += s.st_size
        return cls(found.hexdigest(), sample_bytes, newest, taken)

    @property
    def is_lasting(self) -> bool:
        """Return whether an index of these files is worth its while, and will not miss a change."""
        settled = self.newest_ns + _SETTLED_NS < self.taken_ns
        return settled and self.sample_bytes >= _SMALLEST_BYTES


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """Hold one attempt: its folder's name, its trial.json, and its readings."""

    folder: str
    record: TrialRecord
    readings: Readings


def read_index(run: Path, fingerprint: Fingerprint) -> list[AttemptRow] | None:
    """Return the rows of a run's index; None without one that was made of these very files."""
    path = run / NAME
    if not path.is_file():
        return None
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return None  # an optional library, and the JSON files are the run

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            metadata = {k.decode(): v.decode() for k, v in (file.metadata.metadata or {}).items()}
            if metadata.get("labctl.index") != _made_of(fingerprint):
                return None
            table = file.read(use_threads=False)
        return _rows(table, parse_json(metadata["labctl.kinds"]))
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        pa.ArrowException,
    ):
        return None  # whatever it is, it is no index of ours


def write_index(run: Path, fingerprint: Fingerprint, rows: Sequence[AttemptRow]) -> None:
    """Write the index, or leave it where the folder can't be written to, or pyarrow is missing."""
    try:
        import pyarrow.parquet as pq
    except ImportError:
        return

    table, kinds = _table(rows)
    try:
        with (
            replacing(run / NAME) as file,
            pq.ParquetWriter(
                file, table.schema, compression="zstd", write_page_checksum=True
            ) as writer,
        ):
            writer.write_table(table)
            writer.add_key_value_metadata(
                {"labctl.index": _made_of(fingerprint), "labctl.kinds": canonical(kinds)}
            )
    except (HostError, OSError):
        pass  # read-only, or full: the next one reads the files again


def _made_of(fingerprint: Fingerprint) -> str:
    return f"{_FORMAT} {__version__} {fingerprint.digest}"


def _table(rows: Sequence[AttemptRow]) -> tuple[Any, list[Any]]:
    """Return a row for each attempt, with its values as a list and a number for the kinds of
    them."""
    import numpy as np
    import pyarrow as pa

    alike: dict[tuple[Kind | Unavailable, ...], int] = {}
    numbers = [alike.setdefault(row.readings.kinds, len(alike)) for row in rows]
    lengths = [len(row.readings) for row in rows]
    values = np.concatenate([np.zeros(0), *(np.frombuffer(row.readings.values) for row in rows)])
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    table = pa.table(
        {
            "folder": [row.folder for row in rows],
            "record": [canonical(row.record.to_json()) for row in rows],
            "kinds": pa.array(numbers, type=pa.int32()),
            "values": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values)),
        }
    )
    return table, [[_kind_json(kind) for kind in kinds] for kinds in alike]


def _kind_json(kind: Kind | Unavailable) -> list[Any]:
    if isinstance(kind, Unavailable):
        return [kind.metric, kind.reason]
    return [kind.metric, kind.unit, kind.better, dict(kind.labels), kind.source]


def _rows(table: Any, patterns: Sequence[Sequence[Any]]) -> list[AttemptRow]:
    known = Kinds()
    alike = [known.alike(tuple(_kind(known, item) for item in kinds)) for kinds in patterns]
    column = table["values"].combine_chunks()
    values = column.values.to_numpy()
    ends = column.offsets.to_numpy()
    folders, numbers = table["folder"].to_pylist(), table["kinds"].to_pylist()
    rows = []
    for start in range(0, len(folders), _AT_ONCE):
        # Documents that are parsed together share their keys.
        texts = table["record"].slice(start, _AT_ONCE).to_pylist()
        for place, record in enumerate(parse_json(f"[{','.join(texts)}]"), start):
            own = array("d", values[ends[place] : ends[place + 1]].tobytes())
            readings = Readings(alike[numbers[place]], own)
            rows.append(AttemptRow(folders[place], TrialRecord.from_json(record), readings))
    return rows


def _kind(known: Kinds, item: Sequence[Any]) -> Kind | Unavailable:
    if len(item) == 2:
        return known.absence(*item)
    metric, unit, better, labels, source = item
    return known.kind(metric, unit, better, labels, source)
