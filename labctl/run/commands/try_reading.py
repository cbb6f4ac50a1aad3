"""Read the output of one try: each metric by itself, so that one's error hides no other's value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labctl.base.errors import LabctlError
from labctl.run.trials.parse import believable
from labctl.store.samples import Sample
from labctl.store.trial import TrialFolder
from labctl.workloads.declared import DeclaredWorkload
from labctl.workloads.declared_metrics import check_outputs, stored_runs
from labctl.workloads.marked import Output
from labctl.workloads.metric_file import Explained, explain_run
from labctl.workloads.workload import Parameters, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Hold what was read. `metrics`: of the first run, by metric; `values`: what a trial would
    have, as text with its unit; `error`: why it would have none."""

    metrics: Mapping[str, Explained] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    runs: int = 1
    error: str | None = None

    @property
    def problem(self) -> str | None:
        """Return the first reason for which a trial with this output would be invalid."""
        wrong = (f"metric '{n}': {m.error}" for n, m in self.metrics.items() if m.error)
        return next(wrong, self.error)


def read_output(program: Workload, folder: TrialFolder, parameters: Parameters) -> Read:
    """Return what a stored output says."""
    metrics: Mapping[str, Explained] = {}
    runs: list[Any] = []
    try:
        with believable("the output"):
            if isinstance(program, DeclaredWorkload):
                runs = list(stored_runs(program.declared, folder))
                metrics = explained(program, runs[0])
            found = list(program.with_parameters(parameters).parse(folder))
    except LabctlError as error:
        said = "\n".join(filter(None, (error.message, error.hint)))
        return Read(metrics=metrics, runs=max(1, len(runs)), error=said)
    values = {one.key: f"{one.value:g} {one.unit}" for one in found if isinstance(one, Sample)}
    return Read(metrics=metrics, values=values, runs=max(1, len(runs)))


def read_recorded(program: DeclaredWorkload, output: Output) -> Read:
    """Return the same of one run's output that somebody recorded."""
    try:
        check_outputs(program.declared, [output], "the recorded output")
    except LabctlError as error:
        return Read(metrics=explained(program, output), error=error.message)
    return Read(metrics=explained(program, output))


def explained(program: DeclaredWorkload, output: Output) -> dict[str, Explained]:
    """Return how each metric is read of one run."""
    declared = program.declared
    return explain_run(declared.metrics, output, skip_s=declared.trial.skip_s)
