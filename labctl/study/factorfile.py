"""Define the keys of a study's factors: what a file may say, before any name in it is checked."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, StringConstraints

from labctl.base.yamlfile import FileModel

FactorName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$")]

LEVEL = r"[A-Za-z0-9+._-]{1,60}"
"""A level's name, which is a part of workloads' names: no bracket, no comma, no equals sign."""
LevelName = Annotated[str, StringConstraints(pattern=rf"^{LEVEL}$")]

Value = int | float | bool | str

_MOST_LEVELS = 100
_MOST_PAIRS = 100

# The text below a key is its line in docs/studies.md (`make docs`).


class LevelFile(FileModel):
    parameters: dict[str, Value] = {}
    """Parameters of each workload that has them all."""
    condition: str | None = None
    """The condition of its trials."""
    tuning: str | None = None
    """A tuning that is combined with each guest's."""
    workload: str | None = None
    """The workload of its trials, one of the study's."""


def level_name(value: Value) -> str:
    """Return a value as its level is called: as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _named(levels: object) -> object:
    """Return levels by name: YAML has 10 and true as they are."""
    if not isinstance(levels, dict):
        return levels
    return {
        level_name(key) if isinstance(key, (bool, int, float)) else key: level
        for key, level in levels.items()
    }


class FactorFile(FileModel):
    levels: Annotated[
        Annotated[list[Value], Field(min_length=1, max_length=_MOST_LEVELS)]
        | Annotated[dict[LevelName, LevelFile], Field(min_length=1, max_length=_MOST_LEVELS)],
        BeforeValidator(_named),
    ]
    """Values of the parameter that has the factor's name; or levels by name, each with what it
    sets. Effects are against the first."""


Factors = dict[FactorName, FactorFile]
Exclude = Annotated[
    list[Annotated[dict[FactorName, Value], Field(min_length=1)]], Field(max_length=1000)
]
Interactions = Annotated[
    list[Annotated[list[FactorName], Field(min_length=2, max_length=2)]],
    Field(max_length=_MOST_PAIRS),
]
Chosen = dict[FactorName, Annotated[list[Value], Field(min_length=1, max_length=_MOST_LEVELS)]]
