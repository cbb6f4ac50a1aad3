"""Show chosen metrics of a run: each arm's typical value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from rich.console import Console, RenderableType
from rich.text import Text

from labctl.analysis.answer.view import of_workloads
from labctl.analysis.effects.cells import scenario_of
from labctl.analysis.factors import explore
from labctl.analysis.model import Judgement, Level
from labctl.analysis.verdicts.decide import decide
from labctl.base.errors import UsageError, nearest
from labctl.base.notation import quantity
from labctl.base.wording import metric_title
from labctl.report.parts import bare_table, small, text
from labctl.report.terminal.factor_tables import factors_explored
from labctl.store.records.factor_record import base_of
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Unavailable

_MOST_COLUMNS = 4
"""Most metrics that stand side by side; if there are more, they are rows and the arms columns."""

_MOST_REASONS = 3
"""Limit on reasons shown for a metric that some arms lack."""


def print_metrics(
    console: Console,
    run: LoadedRun,
    judgement: Judgement,
    metrics: Sequence[str],
    workloads: Collection[str],
) -> None:
    """Print for each workload and condition a table of arms and `metrics`.

    A metric's labels may be left out, and may be in any order. `workloads`: only these; all if
    empty. Raises UsageError with the nearest name if the run lacks a metric.
    """
    reasons = _reasons(run)
    known = dict.fromkeys([*(level.metric for level in judgement.levels), *reasons])
    keys = [key for asked in metrics for key in _found(asked, known)]
    places: dict[str, list[Level]] = {}
    for level in of_workloads(run, judgement, workloads).levels:
        places.setdefault(scenario_of(level).title, []).append(level)
    for title, levels in places.items():
        for part in _table(title, levels, run.plan.tunings, dict.fromkeys(keys), reasons):
            console.print(part)
    if run.plan.factorial is not None:
        decided = decide(run)
        parts = (run.plan.factorial, decided.design, decided.cells)
        for key in dict.fromkeys(keys):
            found = [
                one
                for one in explore(*parts, key)
                if not workloads or one.workload in {*workloads, *map(base_of, workloads)}
            ]
            for part in factors_explored(found):
                console.print(part)


def _found(asked: str, known: Iterable[str]) -> list[str]:
    """Return the metrics that `asked` names. Raises UsageError if the run has none of them."""
    base, labels = _parts(asked)
    found = [
        key
        for key in known
        if (parts := _parts(key))[0] == base and (not labels or parts[1] == labels)
    ]
    if not found:
        bases = {_parts(key)[0] for key in known}
        same = [key for key in known if _parts(key)[0] == base]
        raise UsageError(
            f"the run has no metric '{asked}'",
            hint=nearest(asked, same) if same else nearest(base, bases),
        )
    return found


def _parts(key: str) -> tuple[str, frozenset[str]]:
    base, _, labels = key.partition("{")
    return base, frozenset(filter(None, labels.rstrip("}").split(",")))


def _reasons(run: LoadedRun) -> Mapping[str, Mapping[str, None]]:
    """Return by metric the reasons why trials lack it, each once."""
    found: dict[str, dict[str, None]] = {}
    for trial in run.trials:
        for reading in trial.readings:
            if isinstance(reading, Unavailable):
                found.setdefault(reading.metric, {})[reading.reason] = None
    return found


def _table(
    title: str,
    levels: Sequence[Level],
    arms: Iterable[str],
    keys: Collection[str],
    reasons: Mapping[str, Iterable[str]],
) -> Iterator[RenderableType]:
    by_cell = {(level.tuning, level.metric): level for level in levels}
    measured = {level.tuning for level in levels}
    rows = [arm for arm in arms if arm in measured]
    values = {
        (arm, key): "–" if level is None else quantity(level.typical, level.unit)
        for arm in rows
        for key in keys
        for level in [by_cell.get((arm, key))]
    }
    titles = {key: metric_title(key) for key in keys}
    yield text(f"Typical values in {title}", style="bold")
    table = bare_table()
    if len(keys) <= _MOST_COLUMNS:
        table.add_column("arm", min_width=9, overflow="fold")
        for key in keys:
            table.add_column(titles[key], justify="right", overflow="fold")
        for arm in rows:
            table.add_row(text(arm), *(text(values[arm, key]) for key in keys))
    else:
        table.add_column("metric", overflow="fold")
        for arm in rows:
            table.add_column(text(arm), justify="right", overflow="fold")
        for key in keys:
            table.add_row(text(titles[key]), *(text(values[arm, key]) for arm in rows))
    yield table
    for key in keys:
        if any((arm, key) not in by_cell for arm in rows):
            for reason in islice(reasons.get(key, ()), _MOST_REASONS):
                yield small(f"–  {titles[key]}: {reason}")
    yield Text()
