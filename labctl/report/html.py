"""The report as one page that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from labctl.analysis.model import Comparison, Judgement, Level
from labctl.analysis.words import effect_text, interval_text
from labctl.base.places import data_folders
from labctl.base.wording import counted, metric_title, printable, quantity, share
from labctl.report import appendix, sentences
from labctl.report.forest import Forest, forest
from labctl.report.published import published_part
from labctl.report.view import (
    Price,
    Scene,
    View,
    mapping,
    sequence,
    verdict_text,
)
from labctl.store.run_folder import LoadedRun

# All that the template may ask for: a key that an old or broken run lacks is None there.
_PLAN_KEYS = ("title", "study", "study_digest", "digest", "seed")
_RECORD_KEYS = (
    "accelerator",
    "accelerator_reason",
    "command",
    "connection",
    "ended_at",
    "kernel_sentence",
    "labctl",
    "memory_mib",
    "quick",
    "seed",
    "started_at",
    "status",
    "study",
    "vcpus",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A comparison as text."""

    tuning: str
    against: str
    metric: str
    effect: str
    interval: str
    confidence: str
    verdict: str
    verdict_class: str
    role: str
    source: str
    blocks: int


@dataclass(frozen=True, slots=True)
class _Level:
    """A metric's typical value in each arm; "" where there is none."""

    metric: str
    source: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """All of one workload and condition."""

    number: int
    title: str
    direction: str
    forest: Forest | None
    pictured: tuple[_Change, ...]
    changes: tuple[_Change, ...]
    arms: tuple[str, ...]
    levels: tuple[_Level, ...]
    sentences: tuple[str, ...]
    bills: tuple[tuple[str, tuple[Price, ...]], ...]


@dataclass(frozen=True, slots=True)
class _MatrixRow:
    tuning: str
    description: str
    cells: tuple[_Change | None, ...]


def page(run: LoadedRun, judgement: Judgement, folder: Path) -> str:
    """The page's HTML. `folder` is the run's: the domain XML is read from there."""
    view = View(run, judgement)
    pin_plan = mapping(run.run.get("pin_plan"))
    return (
        _environment()
        .get_template("report/page.html.j2")
        .render(
            run=run,
            record={key: run.run.get(key) for key in _RECORD_KEYS},
            plan={key: run.plan.get(key) for key in _PLAN_KEYS},
            judgement=judgement,
            view=view,
            native_gap=sentences.native_gap(view),
            matrix=_matrix(view),
            sections=[_section(view, scene, n) for n, scene in enumerate(view.scenes, start=1)],
            published=published_part(run),
            invalid=appendix.invalid_trials(run),
            facts=appendix.facts(run),
            binaries=appendix.flat(run.run.get("binaries")),
            skipped=appendix.flat(run.run.get("skipped")),
            xml=appendix.xml_differences(run, folder, view.baseline),
            picture=str(pin_plan.get("picture") or ""),
            pin_reasons=[str(reason) for reason in sequence(pin_plan.get("reasons"))],
            notes=[str(note) for note in sequence(run.run.get("notes"))],
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(data_folders("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    environment.filters["counted"] = counted
    environment.filters["title"] = metric_title
    return environment


def _clean(value: Any) -> Any:
    """No control characters from guest or tools in the page; markup of our own stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _matrix(view: View) -> list[_MatrixRow]:
    rows = []
    for tuning in view.candidates:
        judged = [next(iter(view.judged(scene, tuning)), None) for scene in view.scenes]
        cells = tuple(_change(item) if item is not None else None for item in judged)
        rows.append(_MatrixRow(tuning, view.description(tuning), cells))
    return rows


def _section(view: View, scene: Scene, number: int) -> _Section:
    levels = [
        level for level in view.judgement.levels if Scene(level.workload, level.condition) == scene
    ]
    there = {level.tuning for level in levels}
    arms = tuple(name for name in view.tunings if name in there)
    said = [
        *sentences.calibrated(view, scene),
        *sentences.inconclusive(view, scene),
        *sentences.left_out(view, scene),
    ]
    said += [check.sentence for check in view.checks(scene)]
    return _Section(
        number=number,
        title=scene.title,
        direction=sentences.direction(view, scene),
        forest=forest(view, scene),
        pictured=tuple(map(_change, view.pictured(scene))),
        changes=tuple(map(_change, view.comparisons(scene))),
        arms=arms,
        levels=tuple(_levels(view, levels, arms, scene)),
        sentences=tuple(said),
        bills=tuple(
            (tuning, tuple(prices))
            for tuning in view.candidates
            if (prices := view.bill(tuning, scene))
        ),
    )


def _levels(view: View, levels: list[Level], arms: tuple[str, ...], scene: Scene) -> list[_Level]:
    by_metric: dict[str, dict[str, Level]] = {}
    primary = view.primary(scene.workload)
    for level in sorted(levels, key=lambda level: (level.metric != primary, level.metric)):
        by_metric.setdefault(level.metric, {})[level.tuning] = level
    return [
        _Level(
            metric_title(metric),
            ", ".join(sorted({level.source for level in found.values()})),
            tuple(
                quantity(found[arm].typical, found[arm].unit) if arm in found else ""
                for arm in arms
            ),
        )
        for metric, found in by_metric.items()
    ]


def _change(item: Comparison) -> _Change:
    return _Change(
        tuning=item.tuning,
        against=item.against,
        metric=metric_title(item.metric),
        effect=effect_text(item),
        interval=interval_text(item) or "none",
        confidence=share(item.confidence),
        verdict=verdict_text(item.verdict),
        verdict_class=item.verdict.name.lower() if item.verdict is not None else "",
        role=str(item.role),
        source=item.source,
        blocks=len(item.blocks),
    )
