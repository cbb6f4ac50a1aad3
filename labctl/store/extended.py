"""Describe a plan as a run carried it out: ended early, with spares, or extended. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from labctl.store.records.plan_record import AddedBlocks, ExtensionRecord, PlanRecord
from labctl.store.records.run_record import RunRecord


def carried_out(
    plan: PlanRecord,
    run: RunRecord,
    extensions: Sequence[ExtensionRecord | None],
    begun: Collection[int],
) -> PlanRecord:
    """Return the plan with the trials that the run had to carry out, those of its spares that ran
    included, and with `extensions`: first and last block of each. None: one that can't be read.

    `begun`: blocks of which a trial was tried. A run that its rule ended has no spares: it may have
    been extended over their numbers.
    """
    stopped = run.stopped
    whole = [extension for extension in extensions if extension]
    if plan.is_lost or not (stopped or plan.spares or whole):
        return plan
    trials, spares = plan.trials, plan.spares
    if stopped:
        trials = tuple(trial for trial in trials if trial.block <= stopped.blocks)
        spares = ()
    trials += tuple(trial for trial in spares if trial.block in begun)
    for extension in whole:
        trials += extension.trials
    added = tuple(
        AddedBlocks(first_block=one.first_block, last_block=one.last_block) for one in whole
    )
    return plan.but(trials=trials, spares=spares, extensions=added)


def unlike(plan: PlanRecord, extensions: Sequence[ExtensionRecord | None]) -> Iterator[str]:
    """Yield a sentence for each extension that was made for something else than what is before
    it."""
    before = plan.digest
    for number, extension in enumerate(extensions, start=2):
        extends = extension.extends if extension else None
        if None not in (before, extends) and extends != before:
            yield (
                f"plan.{number}.json extends another plan than the one before it: the blocks that "
                "it adds need not be what was planned"
            )
        before = extension.digest if extension else None
