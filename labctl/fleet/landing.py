"""Take hosts' runs into the fleet's tables with the next report, and read the effects back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from labctl.analysis.fleet.fleet_model import HostRow, HostState
from labctl.analysis.fleet.host_effects import HostEffect, HostFacts, host_effects, host_facts
from labctl.analysis.model import Role
from labctl.base.errors import LabctlError
from labctl.fleet.dataset import EFFECTS, SAMPLES, Piece, compact, landed, pieces, read, write_host
from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.sweep_folder import Status
from labctl.report.export.samples_parquet import samples_table
from labctl.store.records.plan_record import PlanRecord
from labctl.store.run_folder import LoadedRun

_TYPES = {
    "estimate": pa.float64(),
    "error": pa.float64(),
    "margin": pa.float64(),
    "no_worse_than": pa.float64(),
    "units": pa.int64(),
    "boots": pa.int64(),
    "blocks": pa.int64(),
}
"""Types of the columns of effects that are no text."""
_OF_RUN = ("run", "started", "study_digest")
_FACTS = tuple(one.name for one in fields(HostFacts))
_EFFECT = tuple(one.name for one in fields(HostEffect))


@dataclass(slots=True)
class Taken:
    """Hold what of a fleet can be pooled: the rows, and how far each host came."""

    rows: list[HostRow] = field(default_factory=list)
    states: list[HostState] = field(default_factory=list)


def take_in(fleet: FleetFolder, host: str) -> None:
    """Take in a host's run. Raises LabctlError where it can't be read, or is of another study."""
    run = fleet.run(host).load()
    check_study(fleet, run.plan)
    # An archive has the name of its file; the state has the run's own.
    write_run(fleet, host, replace(run, name=fleet.state(host).run or run.name))


def check_study(fleet: FleetFolder, plan: PlanRecord) -> None:
    """Raise LabctlError for the plan of another study than the fleet's."""
    wanted = fleet.record.study_digest
    if wanted and plan.study_digest != wanted:
        raise LabctlError(f"its run is of another study ({plan.study_digest or 'none'})")


def write_run(fleet: FleetFolder, host: str, run: LoadedRun) -> None:
    """Judge a run, and write its effects and samples as those of a host."""
    day, digest = _day(run), fleet.digest(host)
    write_host(fleet.data, SAMPLES, day, host, digest, samples_table(run))
    # Last, since it is what says that the host has been taken in.
    write_host(fleet.data, EFFECTS, day, host, digest, _effects_table(run))


def taken(fleet: FleetFolder, tell: Callable[[str], None] = lambda host: None) -> Taken:
    """Return the primary effects and levels of all hosts that are done. Runs that have arrived
    since are taken in first; `tell` gets each of those hosts."""
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
    """Return the effects of a tuning beside the primary ones, of some hosts that were taken in."""
    digests = {host: fleet.digest(host) for host in hosts}
    known = landed(pieces(fleet.data, EFFECTS), digests)
    where = (pc.field("role") == str(Role.EXPLORATORY)) & (pc.field("tuning") == tuning)
    return list(_read(known, where))


def compacted(fleet: FleetFolder) -> dict[str, dict[str, int]]:
    """Merge each day's files of both tables; return by table how many hosts each day has."""
    _, digests = _present(fleet)
    return {table: compact(fleet.data, table, digests) for table in (EFFECTS, SAMPLES)}


def _present(fleet: FleetFolder) -> tuple[list[HostState], dict[str, str]]:
    """Return how far each host came, and the digests of the runs of those that are done."""
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
    """Return the day on which a run began, in UTC; "unknown" of one that doesn't say."""
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
    for batch in read(known, ("host", *_FACTS, *_EFFECT), where):
        yield from _rows(batch)


def _rows(batch: Any) -> Iterator[HostRow]:
    """Yield a batch's rows; hosts of equal facts share them."""
    known: dict[tuple[str, ...], HostFacts] = {}
    # A column that a later version adds is absent from what earlier ones wrote.
    there = frozenset(batch.schema.names)
    columns = [
        batch.column(name).to_pylist() if name in there else [None] * len(batch)
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
