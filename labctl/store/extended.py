"""A plan as a run carried it out: ended before its last block, or extended after it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def carried_out(
    plan: Mapping[str, Any], run: Mapping[str, Any], extensions: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """The plan with the trials that the run had to carry out, and with `extensions`: first and
    last block of each. What isn't whole of them was left out, so every key may be missing."""
    trials = list(plan.get("trials") or [])
    stopped = run.get("stopped")
    if not plan or not (stopped or any(extensions)):
        return plan
    if stopped:
        trials = [trial for trial in trials if (trial.get("block") or 0) <= stopped["blocks"]]
    whole = [extension for extension in extensions if extension]
    for extension in whole:
        trials += extension["trials"]
    added = [{key: item[key] for key in ("first_block", "last_block")} for item in whole]
    return {**plan, "trials": trials, "extensions": added}


def unlike(plan: Mapping[str, Any], extensions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for each extension that was made for something else than what is before it."""
    before = plan.get("digest")
    for number, extension in enumerate(extensions, start=2):
        extends = extension.get("extends")
        if None not in (before, extends) and extends != before:
            yield (
                f"plan.{number}.json extends another plan than the one before it: the blocks that "
                "it adds need not be what was planned"
            )
        before = extension.get("digest")
