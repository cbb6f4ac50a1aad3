"""Export the results of a run or a fleet for Prometheus and other readers of its formats.

All values are those at the run's end: gauges and states, without counters and without timestamps
(the node exporter refuses them). docs/report-schema.md lists the families.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, StateSetMetricFamily
from prometheus_client.exposition import generate_latest as plain_text
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text

from labctl.analysis.effects.effects import ratio_of
from labctl.analysis.hosts.fleet import FleetJudgement, Place, Take
from labctl.analysis.model import Comparison, EffectKind, Judgement, Level, RunCheck
from labctl.analysis.verdicts.table import Verdict
from labctl.base.units import Unit
from labctl.base.wording import printable
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import base_name, labels_of

_UNITS: Mapping[Unit, tuple[str, float, tuple[str, ...]]] = {
    Unit.SECONDS: ("seconds", 1.0, ("_s",)),
    Unit.MICROSECONDS: ("seconds", 1e-6, ("_us",)),
    Unit.PER_SECOND: ("per_second", 1.0, ("_per_s",)),
    Unit.PER_OPERATION: ("per_operation", 1.0, ("_per_op",)),
    Unit.OPERATIONS_PER_CPU_SECOND: ("per_cpu_second", 1.0, ("_per_cpu_s",)),
    Unit.BYTES_PER_SECOND: ("bytes_per_second", 1.0, ()),
    Unit.BITS_PER_SECOND: ("bits_per_second", 1.0, ()),
    Unit.CPUS: ("cpus", 1.0, ("_cpu",)),
    Unit.INSTRUCTIONS_PER_CYCLE: ("instructions_per_cycle", 1.0, ()),
    Unit.PER_1000_INSTRUCTIONS: ("per_1000_instructions", 1.0, ()),
    Unit.HERTZ: ("hertz", 1.0, ()),
    Unit.FRACTION: ("ratio", 1.0, ()),
    Unit.COUNT: ("", 1.0, ()),
}
"""Names of units in OpenMetrics (base units, spelt out: prometheus.io/docs/practices/naming), the
factors to them, and the words of our names that they replace."""


_EFFECTS = {
    "effect": "Tuning divided by its reference.",
    "effect_low": "The lower end of its interval.",
    "effect_high": "The upper end of its interval.",
    "effect_difference": "Tuning minus its reference.",
    "effect_difference_low": "The lower end of its interval.",
    "effect_difference_high": "The upper end of its interval.",
}

_Values = dict[tuple[tuple[str, str], ...], float]
"""The values of a family by their labels."""


def openmetrics(run: LoadedRun, judgement: Judgement) -> bytes:
    """Return the run as OpenMetrics 1.0 text."""
    return _openmetrics(_Families(run, judgement))


def prometheus(run: LoadedRun, judgement: Judgement) -> bytes:
    """Return the run in Prometheus's text format, for the node exporter's textfile collector. The
    format has neither info nor states, so these are gauges."""
    return _prometheus(_Families(run, judgement))


def fleet_openmetrics(name: str, study: str, judged: FleetJudgement) -> bytes:
    """Return a fleet's results as OpenMetrics 1.0 text."""
    return _openmetrics(_FleetFamilies(name, study, judged))


def fleet_prometheus(name: str, study: str, judged: FleetJudgement) -> bytes:
    """Return a fleet's results in Prometheus's text format."""
    return _prometheus(_FleetFamilies(name, study, judged))


def _openmetrics(families: _Families | _FleetFamilies) -> bytes:
    text: bytes = openmetrics_text(families)  # type: ignore[no-untyped-call]
    return printable(text.decode()).encode()


def _prometheus(families: _Families | _FleetFamilies) -> bytes:
    return printable(plain_text(families).decode()).encode()


class _Families:
    """Collect the families of a run, as a registry for prometheus_client."""

    def __init__(self, run: LoadedRun, judgement: Judgement) -> None:
        self._run = run
        self._judgement = judgement
        self._about = {"run": run.name, "study": _text(run.run.study)}

    def collect(self) -> Iterator[Metric]:
        yield from self._of_run()
        yield from self._levels()
        yield from self._effects()
        yield from self._verdicts()
        yield from self._checks()

    def _of_run(self) -> Iterator[Metric]:
        run, judgement = self._run.run, self._judgement
        info = InfoMetricFamily("labctl_run", "Facts of the run.")
        keys = ("status", "labctl", "accelerator")
        info.add_metric([], {**self._about, **{key: _text(getattr(run, key)) for key in keys}})
        yield info
        for name, words, number in (
            ("labctl_blocks", "Blocks with a valid trial.", judgement.blocks),
            ("labctl_boots", "Boots that the blocks shared.", judgement.boots),
            ("labctl_warnings", "Caveats of the answer.", len(judgement.warnings)),
        ):
            yield self._numbers(name, words, {(): number})
        trials: _Values = {
            (("state", "planned"),): judgement.planned,
            (("state", "done"),): judgement.done,
            (("state", "invalid"),): judgement.invalid,
        }
        words = "Trials planned and done (with a valid attempt); attempts that were invalid."
        yield self._numbers("labctl_trials", words, trials)
        moments: _Values = {
            (("moment", key),): at
            for key in ("started", "ended")
            if (at := _seconds(getattr(run, f"{key}_at"))) is not None
        }
        words = "When the run started and ended, in Unix time."
        yield self._numbers("labctl_run_timestamp_seconds", words, moments, "seconds")

    def _levels(self) -> Iterator[Metric]:
        found: dict[str, _Values] = {}
        units: dict[str, str] = {}
        for level in self._judgement.levels:
            name, unit, factor = _family(level.metric, level.unit)
            units[name] = unit
            labels = tuple({**_cell(level), **_labels(level.metric)}.items())
            found.setdefault(name, {})[labels] = level.typical * factor
        for name, values in found.items():
            yield self._numbers(
                name, "Typical value of an arm over the blocks.", values, units[name]
            )

    def _effects(self) -> Iterator[Metric]:
        """Write estimates and both ends of their intervals, each as a separate family."""
        found: dict[tuple[str, str], _Values] = {}
        for item in self._judgement.comparisons:
            labels = tuple(_pair(item).items())
            if item.kind is EffectKind.RATIO:
                base, unit, factor = "labctl_effect", "ratio", 1.0
            else:
                base, (unit, factor, _) = "labctl_effect_difference", _spelt(item.unit)
            for end, value in (("", item.estimate), ("_low", item.low), ("_high", item.high)):
                if value is not None:
                    found.setdefault((f"{base}{end}", unit), {})[labels] = value * factor
        for (name, unit), values in found.items():
            yield self._numbers(
                f"{name}_{unit}".rstrip("_"), _EFFECTS[name.removeprefix("labctl_")], values, unit
            )

    def _verdicts(self) -> Iterator[Metric]:
        family = StateSetMetricFamily("labctl_verdict", "The verdict on a tuning.")
        for item in self._judgement.comparisons:
            if item.verdict is not None:
                labels = {**self._about, **_pair(item)}
                for verdict in Verdict:
                    family.add_sample(
                        "labctl_verdict",
                        {**labels, "labctl_verdict": str(verdict)},
                        float(verdict is item.verdict),
                    )
        yield family

    def _checks(self) -> Iterator[Metric]:
        """Write the checks. A check that could not be made has no number: it neither passed nor
        failed.
        """
        judgement = self._judgement
        checks: Iterable[RunCheck] = (
            *judgement.control,
            *judgement.known_loss,
            *judgement.restored,
        )
        values: _Values = {
            (
                ("check", check.name),
                ("workload", check.workload),
                ("condition", check.condition),
                ("metric", check.metric),
            ): float(check.passed)
            for check in checks
            if check.passed is not None
        }
        yield self._numbers("labctl_check_passed", "A check of the run: 1 if it passed.", values)

    def _numbers(self, name: str, words: str, values: _Values, unit: str = "") -> Metric:
        return _gauge(self._about, name, words, values, unit)


def _gauge(
    about: Mapping[str, str], name: str, words: str, values: _Values, unit: str = ""
) -> Metric:
    """Return a family of gauges; `about`: labels of all of them."""
    family = GaugeMetricFamily(name, words, unit=unit)
    for labels, value in values.items():
        if math.isfinite(value):
            family.add_sample(name, {**about, **dict(labels)}, value)
    return family


class _FleetFamilies:
    """Collect the families of a fleet, as a registry for prometheus_client."""

    def __init__(self, name: str, study: str, judged: FleetJudgement) -> None:
        self._judged = judged
        self._about = {"fleet": name, "study": study}

    def collect(self) -> Iterator[Metric]:
        judged = self._judged
        states = Counter(state.status for state in judged.states)
        families: Sequence[tuple[str, str, _Values]] = (
            ("hosts", "Hosts by the state of their sweep.",
             {(("status", status),): number for status, number in states.items()}),
            ("measured_hosts", "Hosts with a run.", {(): judged.measured}),
            ("controls", "Hosts by the worst state of their A/A control.",
             {(("control", str(of)),): number for of, number in judged.controls.items()}),
            ("outlier", "Hosts apart from the others, in an effect or a level (against \"\").",
             dict(self._outliers())),
        )  # fmt: skip
        for name, words, values in families:
            yield _gauge(self._about, f"labctl_fleet_{name}", words, values)
        yield from self._effects()
        yield self._answers()

    def _outliers(self) -> Iterator[tuple[tuple[tuple[str, str], ...], float]]:
        for place, point in self._judged.all_points():
            if point.is_apart:
                yield (("host", point.host), *_place(place).items()), 1.0

    def _effects(self) -> Iterator[Metric]:
        found: dict[tuple[str, str], _Values] = {}
        for one in self._judged.effects:
            if (of := one.whole.pooled) is None:
                continue
            if one.place.is_log:
                base, unit, factor = "effect", "ratio", 1.0
            else:
                base, (unit, factor, _) = "effect_difference", _spelt(Unit(one.place.unit))
            labels = tuple(_place(one.place).items())
            for end, value in (
                ("", of.mean),
                ("_low", of.low),
                ("_high", of.high),
                ("_prediction_low", of.new_low),
                ("_prediction_high", of.new_high),
            ):
                shown = ratio_of(value) if one.place.is_log else value * factor
                found.setdefault((f"{base}{end}", unit), {})[labels] = shown
        for (name, unit), values in found.items():
            full = f"labctl_fleet_{name}_{unit}".rstrip("_")
            yield _gauge(self._about, full, _fleet_words(name), values, unit)

    def _answers(self) -> Metric:
        family = StateSetMetricFamily("labctl_fleet_answer", "Whether hosts may take a tuning.")
        for of in self._judged.answers:
            labels = {**self._about, "tuning": of.tuning, "accelerator": of.accelerator}
            labels |= {"group": of.group, "by": of.by}
            for code in Take:
                family.add_sample(
                    "labctl_fleet_answer",
                    {**labels, "labctl_fleet_answer": str(code)},
                    float(code is of.code),
                )
        return family


def _place(place: Place) -> dict[str, str]:
    names = ("tuning", "against", "workload", "condition", "accelerator")
    own = {name: str(getattr(place, name)) for name in names}
    return {**own, "metric": base_name(place.metric), **_labels(place.metric)}


def _fleet_words(name: str) -> str:
    """Return the help of a family by the end of its name."""
    what = "difference" if "difference" in name else "ratio"
    if "prediction" in name:
        return f"End of the prediction interval of a host's {what}."
    return f"Mean {what} over the hosts, or an end of its interval."


def _family(metric: str, unit: Unit) -> tuple[str, str, float]:
    """Return the family of a metric's levels, its unit's name and the factor to that unit."""
    base = re.sub(r"[^a-zA-Z0-9_]", "_", base_name(metric))
    spelt, factor, short = _spelt(unit)
    for ending in short:
        base = base.removesuffix(ending)
    name = f"labctl_{base}"
    return (f"{name}_{spelt}" if spelt else name), spelt, factor


def _spelt(unit: Unit) -> tuple[str, float, tuple[str, ...]]:
    """Return the row of `_UNITS` for a unit. A unit that only a program uses keeps its letters and
    their case: `Mops/s` becomes `Mops_per_s`."""
    if unit in _UNITS:
        return _UNITS[unit]
    words = str(unit).replace("/", "_per_").replace(" ", "_")
    return re.sub(r"[^a-zA-Z0-9_]", lambda found: f"u{ord(found[0]):x}", words), 1.0, ()


def _cell(of: Level | Comparison) -> dict[str, str]:
    return {
        "tuning": of.tuning,
        "workload": of.workload,
        "condition": of.condition,
        "metric": base_name(of.metric),
    }


def _pair(item: Comparison) -> dict[str, str]:
    return {
        **_cell(item),
        **_labels(item.metric),
        "against": item.against,
        "role": str(item.role),
    }


def _labels(metric: str) -> dict[str, str]:
    """Return the labels in a metric's key; ours keep their names."""
    return {_label_name(name): value for name, value in labels_of(metric).items()}


def _label_name(name: str) -> str:
    clean = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return f"metric_{clean}" if clean in _OURS or not clean[:1].isalpha() else clean


_OURS = frozenset(
    ("run", "study", "tuning", "workload", "condition", "metric", "against", "role")
    + ("fleet", "host", "accelerator")
)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "unknown"


def _seconds(moment: Any) -> float | None:
    try:
        return datetime.fromisoformat(moment).timestamp()
    except (TypeError, ValueError):
        return None
