"""Read a run from Python: its samples, comparisons, answer and pictures.

docs/api.md documents this module. All other modules of labctl are private: they change without
notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from labctl.analysis.answer.json import answer_json
from labctl.analysis.judge import judge
from labctl.analysis.model import Judgement
from labctl.base.errors import HostError, LabctlError
from labctl.base.paths import StatePaths, results_folder
from labctl.report.export.samples import (
    OF_KIND,
    OF_TRIAL,
    factors_of,
    levels_of,
    of_factors,
    of_kind,
    of_trial,
    packed,
)
from labctl.report.page.picture_files import picture_files
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.store.run_places import find_run, fresh_runs
from labctl.store.samples import Unavailable

__all__ = [
    "Comparison",
    "Decision",
    "LabctlError",
    "Picture",
    "Run",
    "SampleRow",
    "Table",
    "load",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """Hold one reading of one trial. `value` is None where the metric is unavailable, and
    `unavailable` says why. `levels`: the trial's level of each factor of the study."""

    run: str
    study: str | None
    trial: int
    attempt: int
    status: str
    block: int
    boot: int | None
    position: int | None
    tuning: str | None
    workload: str | None
    condition: str | None
    metric: str
    labels: str
    value: float | None
    unit: str | None
    better: str | None
    unavailable: str | None
    levels: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Compare one tuning with baseline or a native arm, for one workload, condition and metric.

    `estimate`, `low` and `high` are ratios or differences, as `kind` says. `low` and `high` are
    None without a confidence interval, `verdict` is None for exploratory comparisons. `blocks` has
    the effect of each block.
    """

    tuning: str
    against: str
    workload: str
    condition: str
    metric: str
    unit: str
    better: str
    kind: str
    estimate: float
    low: float | None
    high: float | None
    confidence: float
    verdict: str | None
    role: str
    margin: float | None
    blocks: Mapping[int, float]


Row = TypeVar("Row", bound=SampleRow | Comparison)


class Table(Sequence[Row], Generic[Row]):
    """Hold a sequence of typed rows, which converts to a data frame."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: tuple[Row, ...] = tuple(rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Table[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | Table[Row]:
        if isinstance(place, slice):
            return Table(self._rows[place])
        return self._rows[place]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<Table of {len(self)} rows>"

    def records(self) -> list[dict[str, Any]]:
        """Return each row as a dict. The levels of factors are keys of their own."""
        found = []
        for row in self._rows:
            values = asdict(row)
            levels = values.pop("levels", {})
            found.append({**levels, **values})
        return found

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame. Raises LabctlError if pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise _lacking("pandas") from error
        return pandas.DataFrame.from_records(self.records())

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table. Raises LabctlError if pyarrow is not installed."""
        try:
            import pyarrow
        except ImportError as error:
            raise _lacking("pyarrow") from error
        types = {"blocks": pyarrow.map_(pyarrow.int64(), pyarrow.float64())}
        rows = self.records()
        columns = {
            name: pyarrow.array([_for_arrow(row[name]) for row in rows], types.get(name))
            for name in (rows[0] if rows else ())
        }
        return pyarrow.table(columns)


def _lacking(library: str) -> LabctlError:
    return HostError(
        f"{library} is not installed",
        hint=f"Install it where labctl is installed: pip install {library}.",
    )


def _for_arrow(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Hold the answer of a run. `tuning` is None if no tuning is advised; `grade` is "confirmed",
    "candidate" or "not shown". `text` is the whole answer in sentences, `record` the answer as
    `labctl report RUN --json` has it."""

    tuning: str | None
    grade: str
    text: str
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Hold a picture of the report, as SVG that stands alone. Notebooks show it."""

    name: str
    svg: str

    def _repr_svg_(self) -> str:
        return self.svg


class Run:
    """Hold a run that was loaded."""

    def __init__(self, run: LoadedRun, fresh: Sequence[LoadedRun] = ()) -> None:
        self._run, self._fresh = run, fresh

    def __repr__(self) -> str:
        return f"<Run {self.name}>"

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return self._run.name

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the damaged or missing parts of the run, as sentences."""
        return self._run.problems

    @cached_property
    def _judgement(self) -> Judgement:
        return judge(self._run, self._fresh)

    def samples(self) -> Table[SampleRow]:
        """Return every reading of every attempt, invalid attempts too (`status`)."""
        return Table(_sample_rows(self._run))

    def comparisons(self) -> Table[Comparison]:
        """Return all comparisons with their intervals and verdicts."""
        return Table(
            Comparison(
                tuning=one.tuning,
                against=one.against,
                workload=one.workload,
                condition=one.condition,
                metric=one.metric,
                unit=str(one.unit),
                better=str(one.better),
                kind=str(one.kind),
                estimate=one.estimate,
                low=one.low,
                high=one.high,
                confidence=one.confidence,
                verdict=None if one.verdict is None else str(one.verdict),
                role=str(one.role),
                margin=one.margin,
                blocks=dict(sorted(one.blocks.items())),
            )
            for one in self._judgement.comparisons
        )

    def decision(self) -> Decision:
        """Return the answer."""
        found = self._judgement.decision
        return Decision(
            tuning=found.tuning,
            grade=str(found.grade),
            text=found.text,
            record=answer_json(found),
        )

    def plot(self, name: str = "") -> tuple[Picture, ...]:
        """Return the pictures of the report whose name contains `name`, in its order."""
        found = picture_files(self._run, self._judgement)
        return tuple(Picture(name=one.name, svg=one.svg) for one in found if name in one.name)


def load(run: str | Path, *, results: str | Path | None = None) -> Run:
    """Return a run by its name, its number, "latest", or the path of its folder or archive.

    `results`: the folder of runs (default: that of the command). Raises LabctlError for a run that
    does not exist or can't be judged.
    """
    place = results_folder(StatePaths.default()) if results is None else Path(results).resolve()
    # A name without a slash is never a path.
    name = str(run.absolute()) if isinstance(run, Path) else run
    folder: RunFolder = find_run(place, name)
    return Run(folder.load_planned(), fresh_runs(folder, place))


def _sample_rows(run: LoadedRun) -> Iterator[SampleRow]:
    factors, levels = factors_of(run), levels_of(run)
    for trial, readings in packed(run):
        of: dict[str, Any] = dict(zip(OF_TRIAL, of_trial(run, trial), strict=True))
        at = dict(zip(factors, of_factors(trial, factors, levels), strict=True))
        for kind, value in zip(readings.kinds, readings.values, strict=True):
            about: dict[str, Any] = dict(zip(OF_KIND, of_kind(kind), strict=True))
            yield SampleRow(
                **of,
                **about,
                value=None if isinstance(kind, Unavailable) else value,
                levels=at,
            )
