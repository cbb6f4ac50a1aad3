"""Describe a plan as a run carried it out: ended early, with spares, or extended. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any


def carried_out(
    plan: Mapping[str, Any],
    run: Mapping[str, Any],
    extensions: Sequence[Mapping[str, Any]],
    begun: Collection[int],
) -> Mapping[str, Any]:
    """Return the plan with the trials that the run had to carry out, those of its spares that ran
    included, and with `extensions`: first and last block of each. What isn't whole of them was left
    out, so every key may be missing.

    `begun`: blocks of which a trial was tried. A run that its rule ended has no spares: it may have
    been extended over their numbers.
    """
    stopped = run.get("stopped")
    spares = plan.get("spares") or []
    if not plan or not (stopped or spares or any(extensions)):
        return plan
    trials = list(plan.get("trials") or [])
    if stopped:
        trials = [trial for trial in trials if (trial.get("block") or 0) <= stopped["blocks"]]
        spares = []
    trials += [trial for trial in spares if trial.get("block") in begun]
    whole = [extension for extension in extensions if extension]
    for extension in whole:
        trials += extension["trials"]
    added = [{key: item[key] for key in ("first_block", "last_block")} for item in whole]
    return {
        **plan,
        "trials": trials,
        **({"spares": spares} if "spares" in plan else {}),
        **({"extensions": added} if stopped or whole else {}),
    }


def unlike(plan: Mapping[str, Any], extensions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each extension that was made for something else than what is before
    it."""
    before = plan.get("digest")
    for number, extension in enumerate(extensions, start=2):
        extends = extension.get("extends")
        if None not in (before, extends) and extends != before:
            yield (
                f"plan.{number}.json extends another plan than the one before it: the blocks that "
                "it adds need not be what was planned"
            )
        before = extension.get("digest")
