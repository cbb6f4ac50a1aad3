"""Keep hosts' results as two Parquet tables by day, and read them back a part at a time.

data/effects/day=2026-11-24/host-NAME.parquet   a row per comparison, and per baseline level
data/samples/day=2026-11-24/host-NAME.parquet   a row per reading of every attempt

A host's file is written by the first report after its run arrived, completely or not at all. It
names its host and the digest of the host's run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from labctl import __version__
from labctl.analysis.hosts.fleet import (
    HostEffect,
    HostFacts,
    HostRow,
    HostState,
    host_effects,
    host_facts,
)
from labctl.analysis.model import Role
from labctl.base.errors import FileError, LabctlError
from labctl.base.json import parse_json
from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.sweep_hosts import Status
from labctl.report.export.samples_parquet import samples_table
from labctl.store.jsonfile import newer, replacing
from labctl.store.records.plan_record import PlanRecord
from labctl.store.run_folder import LoadedRun

EFFECTS: Final = "effects"
SAMPLES: Final = "samples"
SCHEMA: Final = 1
"""Version of both tables' layout, raised when a column is removed or changes its meaning."""

_HOSTS_KEY: Final = b"labctl.fleet.hosts"
_SCHEMA_KEY: Final = b"labctl.fleet.schema"


_FILES_AT_ONCE: Final = 100
"""Files of a dataset: it keeps some 70 kB of each until it ends."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Name a file of a table, and its host with the digest of its run."""

    path: Path
    host: str
    digest: str


def write_host(data: Path, table: str, day: str, host: str, digest: str, rows: Any) -> None:
    """Write the rows of one host's run (an Arrow table without the host) as a file of its own."""
    names = pa.DictionaryArray.from_arrays(np.zeros(len(rows), dtype=np.int32), [host])
    rows = rows.add_column(0, "host", names)
    path = data / table / f"day={day}" / f"host-{quote(host, safe='')}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        _HOSTS_KEY: json.dumps({host: digest}),
        _SCHEMA_KEY: str(SCHEMA),
        b"labctl.version": __version__,
    }
    with (
        replacing(path) as file,
        pq.ParquetWriter(file, rows.schema, compression="zstd", store_schema=False) as writer,
    ):
        writer.write_table(rows, row_group_size=max(1, len(rows)))
        writer.add_key_value_metadata(about)


def pieces(data: Path, table: str) -> list[Piece]:
    """Return the files of a table, by day. Raises FileError for one that can't be read."""
    return [_piece(path) for path in sorted((data / table).glob("day=*/host-*.parquet"))]


def landed(found: Sequence[Piece], digests: Mapping[str, str]) -> dict[str, Piece]:
    """Return for each host the file that holds the run with that digest."""
    return {piece.host: piece for piece in found if digests.get(piece.host) == piece.digest}


def read(chosen: Mapping[str, Piece], columns: Sequence[str], where: Any = None) -> Iterator[Any]:
    """Yield record batches of these hosts, with only these columns and the rows for which the
    pyarrow expression `where` holds."""
    paths = [piece.path for piece in chosen.values()]
    for begin in range(0, len(paths), _FILES_AT_ONCE):
        yield from _batches(paths[begin : begin + _FILES_AT_ONCE], columns, where)


def _batches(paths: Sequence[Path], columns: Sequence[str], where: Any) -> Iterator[Any]:
    with _intact(paths[0] if len(paths) == 1 else paths[0].parents[1]):
        # Otherwise the first file's columns would apply, and others' additional columns would be
        # lost.
        schema = pa.unify_schemas([pq.read_schema(path).remove_metadata() for path in paths])
        source = ds.dataset([str(path) for path in paths], schema=schema, format="parquet")
        there = [name for name in columns if name in source.schema.names]
        # Read-ahead takes memory, and gains nothing here.
        yield from source.to_batches(
            columns=there, filter=where, batch_readahead=2, fragment_readahead=2
        )


@contextmanager
def _intact(path: Path) -> Iterator[None]:
    """Raise FileError with the remedy if a file at a path, or in a folder, is damaged."""
    try:
        yield
    except (OSError, ValueError, KeyError, AttributeError, pa.ArrowException) as error:
        raise FileError(
            f"{path} is incomplete: {error}",
            hint="Remove it: 'labctl fleet report' restores it from the hosts' runs.",
        ) from error


def _piece(path: Path) -> Piece:
    with _intact(path):
        metadata = pq.read_metadata(path).metadata or {}
        schema, hosts = int(metadata[_SCHEMA_KEY]), parse_json(metadata[_HOSTS_KEY])
        [(host, digest)] = hosts.items()
    if schema > SCHEMA:
        raise newer(path, schema, SCHEMA)
    return Piece(path, host, digest)


# Add hosts' runs to the fleet's tables with the next report, and read the effects back.


_TYPES = {
    "estimate": pa.float64(),
    "error": pa.float64(),
    "margin": pa.float64(),
    "no_worse_than": pa.float64(),
    "units": pa.int64(),
    "boots": pa.int64(),
    "blocks": pa.int64(),
}
"""Types of the columns of effects that are not text."""
_OF_RUN = ("run", "started", "study_digest")
_FACTS = tuple(one.name for one in fields(HostFacts))
_EFFECT = tuple(one.name for one in fields(HostEffect))


@dataclass(slots=True)
class Taken:
    """Hold what can be pooled of a fleet: the rows, and each host's progress."""

    rows: list[HostRow] = field(default_factory=list)
    states: list[HostState] = field(default_factory=list)


def take_in(fleet: FleetFolder, host: str) -> None:
    """Add a host's run. Raises LabctlError if it cannot be read, or is of another study."""
    run = fleet.run(host).load()
    check_study(fleet, run.plan)
    # An archive's name is its file's; the state has the run's own.
    write_run(fleet, host, replace(run, name=fleet.state(host).run or run.name))


def check_study(fleet: FleetFolder, plan: PlanRecord) -> None:
    """Raise LabctlError for the plan of another study than the fleet's."""
    wanted = fleet.record.study_digest
    if wanted and plan.study_digest != wanted:
        raise LabctlError(f"its run measured another study ({plan.study_digest or 'none'})")


def write_run(fleet: FleetFolder, host: str, run: LoadedRun) -> None:
    """Judge a run, and write its effects and samples as those of a host."""
    day, digest = _day(run), fleet.digest(host)
    write_host(fleet.data, SAMPLES, day, host, digest, samples_table(run))
    # Last, because it marks the host as added.
    write_host(fleet.data, EFFECTS, day, host, digest, _effects_table(run))


def taken(fleet: FleetFolder, tell: Callable[[str], None] = lambda host: None) -> Taken:
    """Return the primary effects and levels of all hosts that are done. Runs that have arrived
    since are added first; `tell` gets each of those hosts."""
    states, digests = _present(fleet)
    known = landed(pieces(fleet.data, EFFECTS), digests)
    for place, state in enumerate(states):
        if state.host not in digests or state.host in known:
            continue
        tell(state.host)
        try:
            take_in(fleet, state.host)
        except LabctlError as error:
            states[place] = _unread(state, error)
            del digests[state.host]
    if digests.keys() - known.keys():
        known = landed(pieces(fleet.data, EFFECTS), digests)
    found = Taken(states=states)
    found.rows += _read(known, pc.field("role") == str(Role.PRIMARY))
    return found


def exploratory(fleet: FleetFolder, tuning: str, hosts: Collection[str]) -> list[HostRow]:
    """Return a tuning's effects other than the primary ones, for some hosts that were added."""
    digests = {host: fleet.digest(host) for host in hosts}
    known = landed(pieces(fleet.data, EFFECTS), digests)
    where = (pc.field("role") == str(Role.EXPLORATORY)) & (pc.field("tuning") == tuning)
    return list(_read(known, where))


def _present(fleet: FleetFolder) -> tuple[list[HostState], dict[str, str]]:
    """Return each host's progress, and the digests of the runs of those that are done."""
    states, digests = [], {}
    for host in fleet.hosts():
        state = fleet.state(host)
        if state.status == Status.DONE:
            try:
                digests[host] = fleet.digest(host)
            except LabctlError as error:
                state = _unread(state, error)
        states.append(state)
    return states, digests


def _unread(state: HostState, error: LabctlError) -> HostState:
    return HostState(host=state.host, status="failed", reason=error.message, run=state.run)


def _day(run: LoadedRun) -> str:
    """Return the day on which a run began, in UTC; "unknown" if it has no start time."""
    try:
        began = datetime.fromisoformat(run.run.started_at or "")
        return began.astimezone(UTC).date().isoformat()
    except (ValueError, OverflowError):
        return "unknown"


def _effects_table(run: LoadedRun) -> Any:
    about = asdict(host_facts(run)) | {
        "run": run.name,
        "started": run.run.started_at,
        "study_digest": run.plan.study_digest,
    }
    effects = host_effects(run)
    columns = {name: pa.array([about[name]] * len(effects), pa.string()) for name in about}
    for name in _EFFECT:
        values = [getattr(one, name) for one in effects]
        columns[name] = pa.array(values, _TYPES.get(name, pa.string()))
    return pa.table({name: columns[name] for name in (*_OF_RUN, *_FACTS, *_EFFECT)})


def _read(known: Mapping[str, Piece], where: Any) -> Iterator[HostRow]:
    texts: dict[Any, Any] = {}
    for batch in read(known, ("host", *_FACTS, *_EFFECT), where):
        yield from _rows(batch, texts)


def _rows(batch: Any, texts: dict[Any, Any]) -> Iterator[HostRow]:
    """Yield a batch's rows; hosts of equal facts share them, and all rows equal texts."""
    known: dict[tuple[str, ...], HostFacts] = {}
    # A column that a later version adds is missing from earlier files.
    there = frozenset(batch.schema.names)
    columns = [
        _shared(batch.column(name).to_pylist(), texts) if name in there else [None] * len(batch)
        for name in ("host", *_FACTS, *_EFFECT)
    ]
    facts_end = 1 + len(_FACTS)
    for host, *others in zip(*columns, strict=True):
        told = tuple(others[: facts_end - 1])
        facts = known.get(told)
        if facts is None:
            facts = known[told] = HostFacts(**dict(zip(_FACTS, told, strict=True)))
        values = dict(zip(_EFFECT, others[facts_end - 1 :], strict=True))
        yield HostRow(host=host, facts=facts, effect=HostEffect(**values))


def _shared(values: list[Any], texts: dict[Any, Any]) -> list[Any]:
    """Return values with one object for equal texts: a fleet has few, and each in many rows."""
    return [texts.setdefault(of, of) if isinstance(of, str) else of for of in values]
