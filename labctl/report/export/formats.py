"""List the formats in which `labctl report` exports a run, a row each, and those of plug-ins.

The command's options, its help, docs/report-schema.md and the tests of every format read the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labctl.base import plugins
from labctl.base.errors import UsageError

if TYPE_CHECKING:
    from labctl.analysis.model import Judgement
    from labctl.store.run_folder import LoadedRun


@dataclass(frozen=True, slots=True)
class Format:
    """Describe an export format.

    `pieces` yields the bytes of a run; its second argument is the runs that verified the run's
    advice. It imports its module only when called, because `--help` must load none of them.
    `gives`: the format's contents, for the page of all exports.
    """

    name: str
    help: str
    gives: str
    pieces: Callable[[LoadedRun, Sequence[LoadedRun]], Iterable[bytes]]
    is_text: bool = True
    needs_pyarrow: bool = False

    @property
    def option(self) -> str:
        return f"--{self.name}"


def _json(run: LoadedRun, fresh: Sequence[LoadedRun]) -> Iterable[bytes]:
    from labctl.report.export.json_report import report_pieces

    return report_pieces(run, _judged(run, fresh))


def _csv(run: LoadedRun, _: Sequence[LoadedRun]) -> Iterable[bytes]:
    from labctl.report.export.samples import samples_csv

    return map(str.encode, samples_csv(run))


def _parquet(run: LoadedRun, _: Sequence[LoadedRun]) -> Iterable[bytes]:
    from labctl.report.export.samples_parquet import samples_parquet

    return [samples_parquet(run)]


def _openmetrics(run: LoadedRun, fresh: Sequence[LoadedRun]) -> Iterable[bytes]:
    from labctl.report.export.openmetrics import openmetrics

    return [openmetrics(run, _judged(run, fresh))]


def _prometheus(run: LoadedRun, fresh: Sequence[LoadedRun]) -> Iterable[bytes]:
    from labctl.report.export.openmetrics import prometheus

    return [prometheus(run, _judged(run, fresh))]


def _judged(run: LoadedRun, fresh: Sequence[LoadedRun]) -> Judgement:
    from labctl.analysis.judge import judge

    return judge(run, fresh)


_SAMPLES = "[every sample](#samples-csv-and-parquet), a row each"
_LEVELS = "[levels, effects and verdicts](#openmetrics-and-prometheus) for a monitoring system"

FORMATS = (
    Format(
        "json",
        "Print JSON (docs/report-schema.md).",
        "the results, as [one JSON object](#json); `labctl sweep STUDY --json` prints the same",
        _json,
    ),
    Format("csv", "Print every sample as CSV.", _SAMPLES, _csv),
    Format(
        "parquet",
        "Print every sample as a Parquet file.",
        _SAMPLES,
        _parquet,
        is_text=False,
        needs_pyarrow=True,
    ),
    Format("openmetrics", "Print levels, effects and verdicts as metrics.", _LEVELS, _openmetrics),
    Format("prometheus", "The same, for node_exporter's textfile collector.", _LEVELS, _prometheus),
)


def plugin_names() -> list[str]:
    """Return the formats of plug-ins. Imports none of them."""
    return plugins.names(plugins.Group.EXPORTS)


def plugin_format(name: str) -> Format:
    """Return a plug-in's format. Raises UsageError if it was left out."""
    found = plugins.rows(plugins.Group.EXPORTS, Format, [one.name for one in FORMATS])
    if name not in found:
        raise UsageError(f"no format '{name}': the plug-in that has it was left out")
    return found[name]
