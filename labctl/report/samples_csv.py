"""Every sample of a run as CSV (RFC 4180), one row each, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io

from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Sample

COLUMNS = (
    *("run", "study", "trial", "attempt", "status", "block", "boot", "position"),
    *("tuning", "workload", "condition"),
    *("metric", "labels", "value", "unit", "better", "unavailable"),
)
"""docs/report-schema.md says what each is."""


def samples_csv(run: LoadedRun) -> str:
    """All attempts, invalid ones too (`status` tells). A metric that can't be had has no value,
    and the reason in `unavailable`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    for trial in run.trials:
        record = trial.record
        about = {
            "run": run.name,
            "study": run.run.get("study"),
            "trial": record.number,
            "attempt": record.attempt,
            "status": str(record.status),
            "block": record.block,
            "boot": record.boot,
            "position": record.position,
            **{name: record.cell.get(name) for name in ("tuning", "workload", "condition")},
        }
        for reading in trial.readings:
            row = {**about, "metric": reading.metric}
            if isinstance(reading, Sample):
                row["labels"] = ";".join(f"{k}={v}" for k, v in sorted(reading.labels.items()))
                # repr: the shortest text that is this float again.
                row |= {
                    "value": repr(reading.value),
                    "unit": reading.unit,
                    "better": reading.better,
                }
            else:
                row["unavailable"] = reading.reason
            writer.writerow({name: _harmless(value) for name, value in row.items()})
    return text.getvalue()


def _harmless(value: object) -> object:
    """Texts of a run folder may come from anywhere, and a spreadsheet computes what begins with
    one of these (OWASP, "CSV injection")."""
    if isinstance(value, str) and value.startswith(("=", "+", "@")):
        return f"'{value}"
    return value
