"""Compare what two runs recorded of their hosts, guests and themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labctl.analysis.collecting import LEAST
from labctl.base.hostfacts import FACT_NAMES
from labctl.store.records.run_record import RunRecord
from labctl.store.records.tolerant import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class FactDifference:
    """Hold a fact that the runs recorded differently; None where one recorded nothing."""

    name: str
    a: str | None
    b: str | None


def fact_differences(a: RunRecord, b: RunRecord) -> Iterator[FactDifference]:
    """Yield what two run.json say otherwise of host, guest and run, in the order of FACT_NAMES:
    what every figure is made by comes first."""
    for section, title in (("host", ""), ("guest", "guest's ")):
        ours, theirs = getattr(a, section), getattr(b, section)
        for key, name in FACT_NAMES.items():
            if ours.get(key) != theirs.get(key):
                yield FactDifference(
                    name=f"{title}{name}",
                    a=fact_words(ours.get(key)),
                    b=fact_words(theirs.get(key)),
                )
    for key, name in OF_THE_RUN.items():
        ours, theirs = (fact_of_run(run, key) for run in (a, b))
        if ours != theirs:
            yield FactDifference(name=name, a=fact_words(ours), b=fact_words(theirs))


OF_THE_RUN = {
    "accelerator": "accelerator",
    "vcpus": "vCPUs",
    "memory_mib": "guest's memory in MiB",
    "image": "image",
    "fresh_boots": "booted for each tuning",
    "collect": "level of collecting",
}

_BEFORE_IT_WAS_SAID = {"collect": LEAST}


def fact_of_run(record: RunRecord, key: str) -> Any:
    """Return one of OF_THE_RUN from a run.json; None where it isn't recorded."""
    found = getattr(record, key)
    if found is None:
        return _BEFORE_IT_WAS_SAID.get(key)
    return found.to_json() if isinstance(found, Record) else found


def fact_words(value: Any) -> str | None:
    """Return a recorded fact as people read it; None where there is none."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        if "unavailable" in value:
            return f"not available ({value['unavailable']})"
        return ", ".join(
            f"{item} {key}" if _is_number(item) else f"{key} {fact_words(item)}"
            for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "none"


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
