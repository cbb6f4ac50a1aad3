"""Compare the facts of a run's host with those of another run's."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from labctl.analysis.run_compare.run_facts import OF_THE_RUN, fact_of_run, fact_words
from labctl.analysis.words import listed
from labctl.base.hostfacts import FACT_NAMES
from labctl.store.run_folder import LoadedRun

ALL = "all"
GUEST = "guest."

FACTS = (*FACT_NAMES, *(f"{GUEST}{name}" for name in FACT_NAMES), *OF_THE_RUN)
"""Names for a rule: facts of the host, of the guest, of the run."""


def hold_facts(names: Collection[str], run: LoadedRun, other: LoadedRun) -> tuple[bool | None, str]:
    """Return whether both runs recorded the same; False beats None (one of them recorded nothing).

    With `ALL`, every fact that either recorded. The second value says which facts, in words.
    """
    every = ALL in names
    chosen = FACTS if every else tuple(names)
    differing, unknown, same = [], [], 0
    for name in chosen:
        ours, theirs = _fact(run, name), _fact(other, name)
        if ours is None and theirs is None and every:
            continue
        if ours is None or theirs is None:
            who = " and ".join(r.name for r, f in ((run, ours), (other, theirs)) if f is None)
            unknown.append(f"{_title(name)} is not known of {who}")
        elif ours != theirs:
            differing.append(f"{_title(name)} is {_short(ours)}, there {_short(theirs)}")
        else:
            same += 1
    if differing:
        return False, listed(differing)
    if unknown or not same:
        return None, listed(unknown) or "neither run recorded a fact"
    return True, ""


def _fact(run: LoadedRun, name: str) -> Any:
    """Return None where it isn't recorded, or could not be had."""
    if name in OF_THE_RUN:
        found = fact_of_run(run.run, name)
    elif name.startswith(GUEST):
        found = run.run.guest.get(name.removeprefix(GUEST))
    else:
        found = run.run.host.get(name)
    unavailable = isinstance(found, dict) and "unavailable" in found
    return None if unavailable else found


def _title(name: str) -> str:
    if name in OF_THE_RUN:
        return OF_THE_RUN[name]
    if name.startswith(GUEST):
        return f"the guest's {FACT_NAMES[name.removeprefix(GUEST)]}"
    return FACT_NAMES[name]


def _short(value: Any) -> str:
    words = fact_words(value) or "nothing"
    return words if len(words) <= 60 else f"{words[:59]}…"
