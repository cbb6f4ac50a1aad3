"""Decide which of a run's trials are those that its plan has. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from labctl.base.wording import counted
from labctl.store.records.plan_record import ExtensionRecord, PlannedTrial, PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.trial import TrialRecord, TrialStatus

_GUEST, _NATIVE = "guest", "native"

_SHOWN = 10
"""Numbers of trials in one sentence."""


class Fits:
    """Check trials against the plan, its spares and its extensions.

    A run that its rule ended has no spares: it may have been extended over their numbers. Of an
    imported run the plan may be that of the run which its trials were exported from: a file without
    their numbers and positions is whole, and cell and block are all that it is held against.
    """

    def __init__(
        self,
        plan: PlanRecord,
        run: RunRecord,
        extensions: Sequence[ExtensionRecord | None],
    ) -> None:
        self._tunings = plan.tunings
        self._imported = bool(run.imported)
        trials = list(plan.trials)
        if stopped := run.stopped:
            trials = [one for one in trials if one.block <= stopped.blocks]
        else:
            trials += plan.spares
        for extension in extensions:
            trials += extension.trials if extension else ()
        # Without a plan, which is a problem of its own, nothing can be told from anything.
        self._is_known = bool(plan.trials)
        self._planned = {one.number or at: one for at, one in enumerate(trials, start=1)}
        self._places = {(_cell(one.cell), one.block) for one in trials}
        self._done: set[int] = set()
        self._boots: dict[int, Any] = {}

    def problem(self, folder: str, record: TrialRecord) -> str | None:
        """Return why the trial in `folder` is not one of the plan's; None when it is. To be asked
        in the order of the trials: of two that can't both be, the second is the one too many."""
        if not self._is_known:
            return None
        suffix = "" if record.attempt == 1 else f".{record.attempt}"
        if folder != (own := f"{record.number:04d}{suffix}"):
            return f"it says that it is {own}"
        if self._imported:
            known = (_cell(record.cell), record.block) in self._places
            return None if known else "the plan has no such cell in that block"
        planned = self._planned.get(record.number)
        if planned is None:
            return "the plan has no trial of that number"
        for key, found, wanted in (
            ("cell", dict(record.cell), planned.cell),
            ("block", record.block, planned.block),
            ("position", record.position, planned.position),
        ):
            if wanted and found != wanted:
                return f"its {key} is {_shown(found)}, and the plan's is {_shown(wanted)}"
        if record.status is TrialStatus.DONE and record.number in self._done:
            return "another attempt at it was done before, and what is done is not repeated"
        if (wrong := self._boot_problem(record, planned)) is not None:
            return wrong
        if record.status is TrialStatus.DONE:
            self._done.add(record.number)
        return None

    def _boot_problem(self, record: TrialRecord, planned: PlannedTrial) -> str | None:
        """Number a guest's boots by those that were made: a resumed run makes the plan's anew, and
        tunings that boot for themselves are between them. But no boot stands for two of the plan's.
        """
        wanted = planned.boot
        if not wanted or record.status is not TrialStatus.DONE:
            return None
        arm = self._tunings.get(record.cell.get("tuning", ""))
        kind = arm.kind if arm else _GUEST
        if kind == _NATIVE and record.boot != wanted:
            return f"its boot is {record.boot}, and the plan's is {wanted}"
        if kind == _GUEST and record.restored:
            first = self._boots.setdefault(record.boot, wanted)
            if first != wanted:
                return (
                    f"its boot, {record.boot}, is that of trials of the plan's boot {first}, and "
                    f"the plan has it in boot {wanted}"
                )
        return None


def without_digests(records: Iterable[TrialRecord]) -> Iterator[str]:
    """Name the trials whose samples can't be checked although labctl took digests by then. A run
    that an older labctl began and a newer one went on with has others before them."""
    done = [one for one in records if one.status is TrialStatus.DONE and one.started_at]
    first = min(
        (str(one.started_at) for one in done if one.digests and not one.reparsed), default=""
    )
    bare = [one.number for one in done if not one.digests and str(one.started_at) > first]
    if first and bare:
        shown = ", ".join(map(str, bare[:_SHOWN])) + (", …" if len(bare) > _SHOWN else "")
        yield (
            f"labctl can't tell whether the samples of {counted(len(bare), 'trial')} were changed "
            f"({shown}): the digests that labctl took were removed"
        )


def _cell(cell: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    # A file of trials may have no conditions.
    return frozenset((k, v) for k, v in cell.items() if k in ("tuning", "workload"))


def _shown(value: object) -> str:
    return " · ".join(value.values()) if isinstance(value, dict) else str(value)
