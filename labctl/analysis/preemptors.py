"""Name who had the CPUs that a machine's threads waited for, by the same names in all trials of a
run.

A trial tells of all who ran, so that a name it lacks had nothing there: its trace knows. Which of
them are worth a line can only be said over all trials. With those that had most in each of them a
name would be missing wherever it had little, and what it had elsewhere would compare with nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from labctl.store.readings import Kinds
from labctl.store.run_folder import LoadedTrial
from labctl.store.samples import Reading, Sample, sample

METRIC = "preempted_time"
OTHERS = "others"
MOST = 10
"""Names that are told of in a run."""

_UNKNOWN = "unknown"
_MOST_UNKNOWN = 0.05
"""Share of the waits; who else ran in more than that may be anybody, and no name is known to have
had nothing."""

_WITNESS = "sched_delay"
"""A trial that has it knows who ran meanwhile, if anybody did."""

_Of = tuple[tuple[str, str], ...]
"""All labels but the name."""


@dataclass(slots=True)
class _Told:
    witness: Sample | None = None
    by: dict[str, float] = field(default_factory=dict)


def by_same_names(trials: Collection[LoadedTrial]) -> list[LoadedTrial]:
    """Return the same trials; in those that were traced, `preempted_time` is of the ten names that
    had most in any of them, with 0 where one had nothing, and of `others`, all the rest.

    A trial that doesn't tell of all who ran keeps what it has.
    """
    kinds = Kinds()
    is_traced: dict[int, bool] = {}
    told: dict[int, Mapping[_Of, _Told]] = {}
    for number, trial in enumerate(trials):
        packed = kinds.pack(trial.readings)
        # Their tuple of kinds lives as long as `trials` or `kinds`, so its id is its own.
        key = id(packed.kinds)
        if key not in is_traced:
            is_traced[key] = any(kind.metric == _WITNESS for kind in packed.kinds)
        if is_traced[key]:
            told[number] = _told(packed)
    names = _names(told.values())
    if not names:
        return list(trials)
    return [
        replace(trial, readings=tuple(_renamed(trial.readings, told[number], names)))
        if number in told
        else trial
        for number, trial in enumerate(trials)
    ]


def _told(readings: Iterable[Reading]) -> dict[_Of, _Told]:
    """Return those that know of all who ran: who isn't named had nothing."""
    found: defaultdict[_Of, _Told] = defaultdict(_Told)
    for one in readings:
        if isinstance(one, Sample) and one.metric == _WITNESS:
            found[_of(one)].witness = one
        elif isinstance(one, Sample) and one.metric == METRIC:
            found[_of(one)].by[one.labels.get("by", OTHERS)] = one.value
    return {of: one for of, one in found.items() if one.witness and _knows_all(one.by)}


def _knows_all(by: Mapping[str, float]) -> bool:
    return OTHERS not in by and by.get(_UNKNOWN, 0.0) <= _MOST_UNKNOWN * math.fsum(by.values())


def _of(sample: Sample) -> _Of:
    return tuple(sorted(label for label in sample.labels.items() if label[0] != "by"))


def _names(told: Iterable[Mapping[_Of, _Told]]) -> dict[_Of, list[str]]:
    largest: defaultdict[_Of, dict[str, float]] = defaultdict(dict)
    for trial in told:
        for of, one in trial.items():
            for name, value in one.by.items():
                largest[of][name] = max(largest[of].get(name, 0.0), value)
    return {
        of: sorted(sorted(own, key=lambda name: (-own[name], name))[:MOST])
        for of, own in largest.items()
    }


def _renamed(
    readings: Iterable[Reading], told: Mapping[_Of, _Told], names: Mapping[_Of, Collection[str]]
) -> Iterator[Reading]:
    for one in readings:
        if not (isinstance(one, Sample) and one.metric == METRIC and _of(one) in told):
            yield one
    for of, known in told.items():
        if known.witness is None or of not in names:
            continue
        values = {name: known.by.get(name, 0.0) for name in names[of]}
        values[OTHERS] = math.fsum(v for name, v in known.by.items() if name not in values)
        for name, value in values.items():
            labels = {"by": name, **dict(of)}
            yield sample(METRIC, value, source=known.witness.source, labels=labels)
