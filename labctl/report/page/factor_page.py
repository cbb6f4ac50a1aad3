"""Show on the page what factors did: tables of effects, and pictures of two factors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from labctl.analysis.factor_model import Finding
from labctl.analysis.factor_words import (
    change,
    factor_title,
    finding_words,
    group_title,
    levels_title,
    notes,
)
from labctl.analysis.view import View
from labctl.base.wording import counted
from labctl.report.page.factor_pictures import Heatmap, Interaction, heatmap, interaction
from labctl.report.page.study_heatmaps import StudyHeatmap, study_heatmaps


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRow:
    arm: str
    factor: str
    levels: str
    estimate: str
    interval: str
    finding: str
    is_real: bool
    values: str


@dataclass(frozen=True, slots=True)
class EffectTable:
    title: str
    rows: tuple[EffectRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorPart:
    factors: tuple[tuple[str, str, str], ...]
    """Each factor's name, its levels, and of what it gives one value each."""
    tables: tuple[EffectTable, ...]
    interaction: Interaction | None
    heatmap: Heatmap | None
    heatmaps: tuple[StudyHeatmap, ...]
    """Pictures that the study asks for."""
    notes: tuple[str, ...]


def factor_part(view: View) -> FactorPart | None:
    """Return the part for the page; None of a run without factors."""
    analysis = view.judgement.factors
    if analysis is None:
        return None
    tables = [
        EffectTable(
            title,
            tuple(
                EffectRow(
                    arm=one.arm,
                    factor=factor_title(one),
                    levels=levels_title(one),
                    estimate=change(one).estimate,
                    interval=change(one).interval,
                    finding=finding_words(one),
                    is_real=one.finding in (Finding.REAL, Finding.SMALL),
                    values=counted(len(one.values), one.per) if one.paired else "unpaired",
                )
                for one in found
            ),
        )
        for title, found in groupby(sorted(analysis.contrasts, key=group_title), key=group_title)
    ]
    return FactorPart(
        factors=tuple(
            (name, ", ".join(of.levels), "boot" if of.own_boot else "block")
            for name, of in analysis.factors.items()
        ),
        tables=tuple(tables),
        interaction=interaction(analysis),
        heatmap=heatmap(analysis),
        heatmaps=tuple(study_heatmaps(view)),
        notes=tuple(notes(analysis)),
    )
