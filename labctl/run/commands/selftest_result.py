"""Decide what a self-test has shown, told from its run. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from labctl.host.accelerator import Accelerator
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Sample
from labctl.store.trial import TrialStatus

RAN, FAILED, NOT_HERE = "ran", "failed", "not here"

_NO_RUN = "no valid trial"

_CLAIMS = (
    ("native-pmu", "hardware counters of native runs", "native", "ipc{source=pmu}"),
    ("guest-pmu", "hardware counters of guests", "guest", "ipc{source=pmu}"),
    ("exits", "VM exits", "guest", "exits"),
    ("halt-poll", "halt polling", "guest", "halt_poll"),
    ("steal", "steal as guests see it", "guest", "steal"),
)
"""Name, in words, the machines that show it and the metric that it is shown by."""

_OF_PMU = ("native-pmu", "guest-pmu")
"""The claims that are the PMU's; all others are KVM's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Hold a claim that a host with KVM and a PMU can prove; `why`: the reason for its outcome."""

    name: str
    what: str
    shown: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """Hold a tuning's result. `state`: RAN, FAILED, or NOT_HERE where the host can't have it; `why`
    of the last two.
    """

    name: str
    state: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestResult:
    """Hold what a self-test has shown. `failure`: what ended the trials early, "" if nothing."""

    accelerator: Accelerator
    claims: tuple[Claim, ...]
    tunings: tuple[TuningResult, ...]
    failure: str

    @property
    def failed(self) -> bool:
        """Return whether something didn't work that this host can have."""
        return bool(self.failure) or any(tuning.state == FAILED for tuning in self.tunings)

    @property
    def verifies_kvm(self) -> bool:
        """Return whether all that labctl has of KVM worked, the PMU's counters apart."""
        return self._shows(claim for claim in self.claims if claim.name not in _OF_PMU)

    @property
    def verifies_pmu(self) -> bool:
        """Return whether hardware counters worked natively and in guests under KVM."""
        return self._shows(claim for claim in self.claims if claim.name in ("kvm", *_OF_PMU))

    @property
    def verifies_all(self) -> bool:
        """Return whether it shows KVM and the PMU, and so all that labctl claims of hardware."""
        return self.verifies_kvm and self.verifies_pmu

    @property
    def label(self) -> str:
        """Return what the bundle may be taken for."""
        if self.verifies_all:
            return "KVM and a PMU work here, and all of labctl that needs them ran."
        missing = ", ".join(claim.what for claim in self.claims if not claim.shown)
        if self.accelerator.name == "tcg":
            return f"Guests were emulated (accelerator tcg): this can't show {missing}."
        if missing:
            return f"Guests ran under KVM, but this does not show {missing}."
        return "Guests ran under KVM, but not all that this host can have worked."

    def to_json(self) -> dict[str, Any]:
        return {
            "accelerator": self.accelerator.name,
            "accelerator_reason": self.accelerator.reason,
            "label": self.label,
            "verifies_kvm": self.verifies_kvm,
            "verifies_pmu": self.verifies_pmu,
            "claims": [asdict(claim) for claim in self.claims],
            "tunings": [asdict(tuning) for tuning in self.tunings],
            "failure": self.failure,
        }

    def _shows(self, claims: Iterable[Claim]) -> bool:
        return not self.failed and all(claim.shown for claim in claims)


def outcome(
    accelerator: Accelerator,
    names: Collection[str],
    lacking: Mapping[str, str],
    run: LoadedRun,
    failure: str,
) -> SelftestResult:
    """Return what the run of these tunings shows; `lacking`: those that the host can't have, and
    why."""
    return SelftestResult(
        accelerator=accelerator,
        claims=tuple(_claims(accelerator, run)),
        tunings=tuple(_result(name, lacking, run) for name in names),
        failure=failure,
    )


def _claims(accelerator: Accelerator, run: LoadedRun) -> Iterator[Claim]:
    is_kvm = accelerator.name == "kvm"
    yield Claim(name="kvm", what="guests under KVM", shown=is_kvm, why=accelerator.reason)
    for name, what, kind, metric in _CLAIMS:
        missing = _why_missing(run, kind, metric)
        why = "measured in every trial" if missing is None else missing
        yield Claim(name=name, what=what, shown=missing is None, why=why)


def _why_missing(run: LoadedRun, kind: str, metric: str) -> str | None:
    """Return why a metric is not in every valid trial of a kind of machine; None when it is."""
    valid = [
        trial.readings
        for trial in run.trials
        if trial.record.status is TrialStatus.DONE and trial.record.parsed_with.get("kind") == kind
    ]
    for readings in valid:
        measured = {key for r in readings if isinstance(r, Sample) for key in (r.key, r.metric)}
        if metric not in measured:
            reasons = (
                r.reason for r in readings if not isinstance(r, Sample) and r.metric == metric
            )
            return next(reasons, "not measured")
    return None if valid else _NO_RUN


def unavailable(run: LoadedRun) -> dict[str, dict[str, str]]:
    """Return by kind of machine ("guest", "native") every unavailable metric, and why."""
    found: dict[str, dict[str, str]] = {}
    for trial in run.trials:
        kind = str(trial.record.parsed_with.get("kind", "unknown"))
        for reading in trial.readings:
            if not isinstance(reading, Sample):
                found.setdefault(kind, {})[reading.metric] = reading.reason
    return found


def _result(name: str, lacking: Mapping[str, str], run: LoadedRun) -> TuningResult:
    """Return the tunings that ran: each trial that was tried has a valid attempt."""
    if name in lacking:
        return TuningResult(name=name, state=NOT_HERE, why=lacking[name])
    tried = [trial.record for trial in run.trials if trial.record.cell.get("tuning") == name]
    done = {record.number for record in tried if record.status is TrialStatus.DONE}
    failed = [record for record in tried if record.number not in done]
    if tried and not failed:
        return TuningResult(name=name, state=RAN, why="")
    why = "; ".join(failed[-1].reasons) if failed else _NO_RUN
    return TuningResult(name=name, state=FAILED, why=why)
