"""Find where it is unknown how much others used an arm's CPUs (METHOD 24)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from labctl.analysis.cells import cell_of
from labctl.analysis.words import listed
from labctl.base.cpus import CpuSet, parse_cpus
from labctl.base.wording import counted
from labctl.store.readings import Kind, Kinds
from labctl.store.records.run_record import RecordedTuning
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Unavailable, sample_key
from labctl.store.trial import TrialStatus

OTHER = sample_key("host_cpu", {"thread": "other"})
_ROAMED = frozenset(sample_key("host_cpu", {"thread": role}) for role in ("neighbour", "peer"))
_BY_CPU = "host_busy"
"""Reading that trials have since foreign CPU time is counted per CPU."""


def unseen_disturbance(run: LoadedRun) -> Iterator[str]:
    """Warn that valid trials of arms with fewer CPUs than their neighbours may have been disturbed:
    they were recorded before foreign CPU time was counted per CPU."""
    narrow = {name for name, tuning in run.run.tunings.items() if _has_fewer_cpus(run, tuning)}
    kinds = Kinds()
    blind: Counter[str] = Counter()
    for trial in run.trials:
        cell = cell_of(trial.record.cell)
        if cell is None or trial.record.status is not TrialStatus.DONE:
            continue
        if cell.tuning in narrow and _is_blind(kinds.pack(trial.readings).kinds):
            blind[cell.tuning] += 1
    if blind:
        total = counted(sum(blind.values()), "valid trial")
        arms = listed([f"'{arm}'" for arm in blind], 8)
        yield (
            f"How much others disturbed {total} of {arms} can't be estimated: the labctl that "
            "measured them took what neighbours and peers used anywhere from what was busy on the "
            f"arm's own CPUs. '{OTHER}' can't be trusted there: what makes trials of other arms "
            "invalid goes unseen in these, which may bias comparisons with them."
        )


def _is_blind(readings: Iterable[Kind | Unavailable]) -> bool:
    """Return whether something ran beside it that may have been elsewhere, and wasn't counted by
    CPU."""
    keys = {one.key if isinstance(one, Kind) else one.metric: one for one in readings}
    other = keys.get(OTHER)
    if other is None or not keys.keys() & _ROAMED:
        return False
    return not isinstance(other, Kind) or _BY_CPU not in keys


def _has_fewer_cpus(run: LoadedRun, tuning: RecordedTuning) -> bool:
    """Return whether the pin plan gave an arm less than all CPUs that a neighbour might use."""
    plan = run.run.pins_of(tuning.pin.strategy).data
    pinned = ["vcpus"]
    if tuning.kind != "native":
        pinned += ["emulator", *(["iothreads"] if tuning.iothreads else [])]
    asked = {what: getattr(tuning.pin, what) for what in pinned}
    if None in asked.values():
        return False
    own = [_cpus(getattr(plan, what) if of == "plan" else of) for what, of in asked.items()]
    return frozenset().union(*own) < _cpus(plan.usable)


def _cpus(value: Any) -> CpuSet:
    """Return the CPUs of a number, a CPU list, a list of numbers, or any of these by number; empty
    of the rest."""
    if isinstance(value, dict):
        return frozenset().union(*map(_cpus, value.values()))
    if isinstance(value, list):
        return frozenset().union(*map(_cpus, value))
    try:
        return parse_cpus(str(value))
    except ValueError:
        return frozenset()
