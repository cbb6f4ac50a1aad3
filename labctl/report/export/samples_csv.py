"""Write every sample of a run as CSV (RFC 4180), one row each, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from labctl.base.wording import printable
from labctl.report.export.samples import (
    COLUMNS,
    SCHEMA,
    factors_of,
    levels_of,
    of_factors,
    of_kind,
    of_trial,
    packed,
)
from labctl.store.readings import Kind
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Unavailable


def samples_csv(run: LoadedRun) -> Iterator[str]:
    """Yield the header, then the rows of one attempt after the other. A metric that can't be had
    has no value, and the reason in `unavailable`."""
    text = io.StringIO()
    writer = csv.writer(text)
    factors, levels = factors_of(run), levels_of(run)
    writer.writerow([*COLUMNS, *factors])
    known: dict[Kind | Unavailable, list[object]] = {}
    for trial, readings in packed(run):
        about = _harmless(of_trial(run, trial))
        at = _harmless(of_factors(trial, factors, levels))
        for kind, value in zip(readings.kinds, readings.values, strict=True):
            if (named := known.get(kind)) is None:
                named = known[kind] = _harmless(of_kind(kind))
            metric, labels, *rest = named
            # repr: the shortest text that is this float again.
            shown = "" if isinstance(kind, Unavailable) else repr(value)
            writer.writerow([*about, metric, labels, shown, *rest, SCHEMA, *at])
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def _harmless(values: tuple[object, ...]) -> list[object]:
    """Texts of a run folder may come from anywhere: a spreadsheet computes what begins with one of
    these (OWASP, "CSV injection"), and a terminal obeys control characters."""
    return [_as_text(value) if isinstance(value, str) else value for value in values]


def _as_text(value: str) -> str:
    shown = printable(value)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@", "\t")) else shown
