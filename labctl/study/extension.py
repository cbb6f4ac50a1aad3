"""Add blocks to a finished run, in a file of their own beside its plan. Pure.

The plan stays as it was, byte for byte. `plan.2.json`, `plan.3.json` and so on each name the digest
of the file before them, so none can be left out, swapped or edited without being noticed; and what
an extension holds follows from the plan's seed, so it can be made again and compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from labctl.base.errors import FileError, UsageError
from labctl.base.stopping import MOST_BLOCKS
from labctl.store.jsonfile import canonical
from labctl.store.records.plan_record import ExtensionRecord, PlannedTrial
from labctl.store.records.run_record import LookTaken, still_to_run
from labctl.study.make_plan import trials_of
from labctl.study.plan import Plan

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """Describe added blocks. `extends`: the digest of the plan, or of the extension, before it."""

    extends: str
    first_block: int
    last_block: int
    trials: tuple[PlannedTrial, ...]

    @property
    def digest(self) -> str:
        return hashlib.sha256(canonical(self._content()).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return what its file holds."""
        return {"schema": SCHEMA, "digest": self.digest, **self._content()}

    def _content(self) -> dict[str, Any]:
        return {
            "extends": self.extends,
            "first_block": self.first_block,
            "last_block": self.last_block,
            "trials": [asdict(trial) for trial in self.trials],
        }


def extension(plan: Plan, blocks: int, *, extends: str) -> Extension:
    """Plan `blocks` more blocks for a run that has carried out `plan`.

    They are numbered on from the last one, spares included, whether those ran or not. The order of
    block k follows from the seed and k, so without spares they are the blocks that a longer plan
    would have had; but they have boots of their own, as the saved ones are gone. `extends`: the
    digest of the last file. Raises UsageError for a number that can't be.
    """
    first = plan.last_block + 1
    last = plan.last_block + blocks
    if not (blocks >= 1 and last <= MOST_BLOCKS):
        raise UsageError(
            f"cannot extend a run of {plan.blocks} blocks by {blocks}: expected at least 1, "
            f"and at most {MOST_BLOCKS} in total"
        )
    before = plan.trials + plan.spares
    boots = max((trial.boot for trial in before), default=0)
    number = 1 + max((trial.number for trial in before), default=0)
    to_a_boot = _blocks_per_boot(plan)
    added: list[PlannedTrial] = []
    for block in range(first, last + 1):
        boot = boots + 1 + (block - first) // to_a_boot
        added += trials_of(plan, block, boot=boot, first=number + len(added))
    # More of what is undecided; of everything where nothing is.
    added = list(still_to_run(added, plan.looks)) or added
    return Extension(
        extends=extends,
        first_block=first,
        last_block=last,
        trials=tuple(added),
    )


def as_carried_out(
    plan: Plan,
    ended_after: int | None,
    extensions: Sequence[ExtensionRecord],
    looks: Sequence[LookTaken] = (),
) -> Plan:
    """Return what of a plan a run carries out: its trials as far as they go, then those of its
    extensions.

    `ended_after`: the blocks after which the plan's rule ended the run, if it did; its
    `extensions` and its `looks` in order. Raises BrokenError for one that was changed since.
    """
    digest = plan.digest
    whole = plan if ended_after is None else _cut(plan, ended_after)
    whole = replace(
        whole,
        trials=still_to_run(whole.trials, looks),
        spares=still_to_run(whole.spares, looks),
        looks=tuple(looks),
    )
    for number, recorded in enumerate(extensions, start=2):
        try:
            blocks = recorded.last_block - recorded.first_block + 1
            made = extension(whole, blocks, extends=digest)
        except UsageError as error:
            raise FileError(f"plan.{number}.json can't be read: {error!r}") from error
        if made.to_json() != recorded.to_json():
            raise FileError(
                f"plan.{number}.json was changed after it was made: its content does not match "
                f"its digest {str(recorded.digest)[:12]}",
                hint="An extension can't be edited. Start a new run.",
            )
        whole, digest = extended(whole, made), made.digest
    return whole


def extended(plan: Plan, by: Extension) -> Plan:
    """Return what a run carries out then. Nothing ends it early: it is over already. `blocks` is
    the last block's number then: more than there are, where spares didn't run."""
    return replace(
        plan,
        blocks=by.last_block,
        blocks_per_boot=_blocks_per_boot(plan),
        trials=plan.trials + by.trials,
        stopping=None,
    )


def _blocks_per_boot(plan: Plan) -> int:
    """Return the blocks per boot of blocks that are added to a plan."""
    return plan.blocks_per_boot if plan.blocks > plan.blocks_per_boot else 1


def _cut(plan: Plan, blocks: int) -> Plan:
    """Return the plan's first blocks, where nothing more is decided and no spare runs. Raises
    UsageError for more than there are."""
    if not 1 <= blocks <= plan.blocks:
        raise UsageError(f"the plan has {plan.blocks} blocks, not {blocks}")
    return replace(
        plan,
        blocks=blocks,
        trials=tuple(trial for trial in plan.trials if trial.block <= blocks),
        spares=plan.spares if blocks == plan.blocks else (),
        stopping=plan.stopping if blocks == plan.blocks else None,
    )
