"""Outputs of runs and declarations, for tests of readers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from labctl.workloads.metric_file import MetricsFile, read_run
from labctl.workloads.readers.declaration import MetricFile
from labctl.workloads.readers.value import Value, Values

METRICS: TypeAdapter[dict[str, MetricFile]] = TypeAdapter(MetricsFile)


@dataclass(frozen=True)
class Left:
    """What a run left."""

    stdout: str = ""
    stderr: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)


def metrics(**declared: Mapping[str, Any]) -> dict[str, MetricFile]:
    return METRICS.validate_python(declared)


def metric(**keys: Any) -> dict[str, MetricFile]:
    """One metric `it`, a rate unless it says otherwise."""
    keys = {"unit": "1/s", "better": "higher"} | {k.rstrip("_"): v for k, v in keys.items()}
    return metrics(it={key: value for key, value in keys.items() if value is not None})


def numbers(values: Values) -> dict[str, float]:
    return {name: one.value for name, one in values.items() if isinstance(one, Value)}


def reasons(values: Values) -> dict[str, str]:
    return {name: one for name, one in values.items() if isinstance(one, str)}


def read(declared: Mapping[str, MetricFile], stdout: str = "", **files: str) -> dict[str, float]:
    """The numbers of a run that printed `stdout` and left `files`, as `a_csv` for a.csv."""
    left = {name.replace("_", "."): text.encode() for name, text in files.items()}
    return numbers(read_run(declared, Left(stdout=stdout, files=left)))
