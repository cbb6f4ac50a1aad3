"""Print what `labctl doctor --since` says: a run's verdicts, and what voids them by now.

It needs what a run found (analysis) and what the host is now (host), which know nothing of each
other; only a command may know both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from labctl.analysis.judge import judge
from labctl.analysis.model import Comparison
from labctl.analysis.verdict_table import Says, Verdict, says
from labctl.base.errors import LabctlError, UsageError
from labctl.base.hostfacts import Fact
from labctl.base.paths import StatePaths
from labctl.cli.common import recorded_words
from labctl.host.accelerator import Requested
from labctl.host.doctor.since import FactChange, compare, rests_on, voided_by
from labctl.host.facts import host_facts
from labctl.run.planning.guest_image import IMAGE, accelerator_here
from labctl.store.run_folder import LoadedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictStanding:
    """Hold a verdict of the run; `voided_by`: the changes that void it, () if it stands."""

    tuning: str
    workload: str
    condition: str
    metric: str
    verdict: Verdict
    voided_by: tuple[FactChange, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "tuning": self.tuning,
            "workload": self.workload,
            "condition": self.condition,
            "metric": self.metric,
            "verdict": str(self.verdict),
            "void": bool(self.voided_by),
            "because": [change.fact.key for change in self.voided_by],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    run: str
    ended: str
    command: str
    """Command that made the run."""
    changes: tuple[FactChange, ...]
    same: tuple[Fact, ...]
    not_recorded: tuple[Fact, ...]
    verdicts: tuple[VerdictStanding, ...]

    @property
    def void(self) -> tuple[VerdictStanding, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.voided_by)

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "changes": [
                {
                    "fact": change.fact.key,
                    "name": change.fact.name,
                    "then": change.then,
                    "now": change.now,
                    "voids": sorted(change.fact.voids),
                }
                for change in self.changes
            ],
            "same": [fact.key for fact in self.same],
            "not_recorded": [fact.key for fact in self.not_recorded],
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
        }


def since(run: LoadedRun, places: StatePaths) -> Since:
    """Return the run's facts against this host's, and what is left of its verdicts.

    Raises UsageError when the run has recorded nothing of its host.
    """
    recorded = run.run.host
    if not recorded:
        raise UsageError(
            f"run '{run.name}' has recorded nothing of its host",
            hint=(
                "It was imported: nothing is known of its host."
                if run.run.imported
                else "It ended before its first boot: run it again."
            ),
        )
    now = {**host_facts(places), "accelerator": _accelerator(run, places)}
    compared = compare({**recorded, "accelerator": run.run.accelerator}, now)
    return Since(
        run=run.name,
        ended=str(run.run.ended_at or "an unknown time"),
        command=str(run.run.command or "labctl sweep STUDY"),
        changes=compared.changes,
        same=compared.same,
        not_recorded=compared.not_recorded,
        verdicts=tuple(
            _standing(item, run, compared.changes)
            for item in judge(run).comparisons
            if says(item.verdict, Says.EFFECT, Says.NO_EFFECT)
        ),
    )


def _standing(item: Comparison, run: LoadedRun, changes: tuple[FactChange, ...]) -> VerdictStanding:
    assert item.verdict is not None
    tunings = {name: tuning.to_json() for name, tuning in run.run.tunings.items()}
    rests = rests_on(tunings.get(item.tuning), tunings.get(run.plan.baseline or ""))
    return VerdictStanding(
        tuning=item.tuning,
        workload=item.workload,
        condition=item.condition,
        metric=item.metric,
        verdict=item.verdict,
        voided_by=tuple(voided_by(rests, changes)),
    )


def _accelerator(run: LoadedRun, places: StatePaths) -> str | None:
    """Return what the run's guests would run under now; None where that can't be told."""
    image = run.plan.guest.image or IMAGE
    try:
        return accelerator_here(image, places, _requested(run)).name
    except LabctlError:
        return None


def _requested(run: LoadedRun) -> Requested:
    """Return what the run's command line asked for."""
    words = recorded_words(run)
    asked = words[words.index("--accel") + 1 :][:1] if "--accel" in words else []
    choices: dict[str, Requested] = {choice: choice for choice in get_args(Requested)}
    return choices.get("".join(asked), "auto")
