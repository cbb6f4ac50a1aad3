"""Read the output of one try: each metric by itself, so that one's error hides no other's value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labctl.base.errors import LabctlError
from labctl.run.trials.parse import believable
from labctl.store.samples import Sample
from labctl.store.trial import TrialFolder
from labctl.workloads.declared_metrics import check_outputs, stored_runs
from labctl.workloads.loops import Output
from labctl.workloads.metric_file import Explained, explain_run, told_with
from labctl.workloads.setting import Parameters
from labctl.workloads.workload import Workload


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
            runs = list(stored_runs(program.file, folder))
            metrics = explained(program, runs[0], parameters)
            found = list(program.with_parameters(parameters).parse(folder))
    except LabctlError as error:
        said = "\n".join(filter(None, (error.message, error.hint)))
        return Read(metrics=metrics, runs=max(1, len(runs)), error=said)
    values = {one.key: f"{one.value:g} {one.unit}" for one in found if isinstance(one, Sample)}
    return Read(metrics=metrics, values=values, runs=max(1, len(runs)))


def read_recorded(program: Workload, output: Output, parameters: Parameters) -> Read:
    """Return the same of one run's output that somebody recorded."""
    try:
        check_outputs(program.file, [output])
    except LabctlError as error:
        return Read(metrics=explained(program, output, parameters), error=error.message)
    return Read(metrics=explained(program, output, parameters))


def explained(program: Workload, output: Output, parameters: Parameters) -> dict[str, Explained]:
    """Return how each metric is read of one run."""
    metrics = told_with(program.file.metrics, parameters)
    return explain_run(metrics, output, skip_s=program.file.trial.skip_s)
