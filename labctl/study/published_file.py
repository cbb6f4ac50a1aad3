"""Load published results that a study repeats: ratios or directions in a file beside the study's.

Facts alone, never absolute values: hardware, kernels and loads differ.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from labctl.base.errors import UsageError, nearest
from labctl.base.yaml import FileModel, line_of, load_mapping, validate
from labctl.store.records.factor_record import base_of
from labctl.store.records.plan_record import PublishedResult, PublishedSource


class Direction(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"


METRIC = r"^[a-z][a-z0-9_]*(\{[a-z_]+=[^,{}=]+(,[a-z_]+=[^,{}=]+)*\})?$"
"""Pattern of a metric's name, with labels or without."""


class _Result(FileModel):
    tuning: str
    against: str
    workload: str | None = None
    against_workload: str | None = None
    """A cell of factors that `workload`, another one, is compared with."""
    condition: str | None = None
    metric: Annotated[str, StringConstraints(pattern=METRIC)]
    ratio: Annotated[float, Field(gt=0, lt=1e6)] | None = None
    direction: Direction | None = Field(default=None, strict=False)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.ratio is None) is (self.direction is None):
            raise ValueError("exactly one of 'ratio' and 'direction'")
        if self.ratio == 1:
            raise ValueError("a ratio of 1 has no direction")
        if self.against_workload is not None and self.workload is None:
            raise ValueError("'against_workload' needs 'workload', the cell that is compared")
        return self


class PublishedFile(FileModel):
    source: Annotated[str, Field(min_length=1, max_length=500)]
    results: Annotated[list[_Result], Field(min_length=1, max_length=10_000)]


def read_published(
    path: Path,
    *,
    tunings: Collection[str],
    workloads: Collection[str],
    conditions: Collection[str],
) -> PublishedSource:
    """Return the published results in a file; raises UsageError naming file, line and key, also for
    an arm, a workload or a condition that the study does not have."""
    mapping = load_mapping(path)
    file = validate(PublishedFile, mapping, path)
    seen: set[tuple[object, ...]] = set()
    for index, result in enumerate(file.results):
        for key, allowed in (
            ("tuning", tunings),
            ("against", tunings),
            ("workload", workloads),
            ("against_workload", workloads),
            ("condition", conditions),
        ):
            name = getattr(result, key)
            if name is not None and key.endswith("workload"):
                # Of a cell of factors the workload that they are of.
                name = base_of(name)
            if name is not None and name not in allowed:
                place = f"{path}:{line_of(mapping, ('results', index, key))}"
                raise UsageError(
                    f"{place}: '{key}': the study has no '{name}'", hint=nearest(name, allowed)
                )
        what = (
            *(result.tuning, result.against, result.workload, result.against_workload),
            *(result.condition, result.metric),
        )
        if what in seen:
            place = f"{path}:{line_of(mapping, ('results', index))}"
            raise UsageError(f"{place}: the same result appears twice")
        seen.add(what)
    return PublishedSource(
        source=file.source.strip(),
        results=tuple(_frozen(result) for result in file.results),
    )


def _frozen(result: _Result) -> PublishedResult:
    direction = result.direction
    if direction is None:
        rises = result.ratio is not None and result.ratio > 1
        direction = Direction.HIGHER if rises else Direction.LOWER
    return PublishedResult(
        tuning=result.tuning,
        against=result.against,
        workload=result.workload,
        against_workload=result.against_workload,
        condition=result.condition,
        metric=result.metric,
        ratio=result.ratio,
        direction=str(direction),
    )
