"""Define the keys of a study's factors, check their names and values, and freeze them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import BeforeValidator, Field, StringConstraints

from labctl.base.errors import UsageError, nearest
from labctl.base.yaml import FileModel
from labctl.store.trial_csv import NEEDED, OPTIONAL
from labctl.study.factors import Declared, Factor, Level

# Define the keys of a study's factors: what a file may say, before any name in it is checked.


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


# Check the names and values of a study's factors, and freeze them.


RESERVED = frozenset({*NEEDED, *OPTIONAL, "arm", "levels"})
"""Columns of exports: a factor has one of its own."""

Place = Callable[..., str]
"""Return the file and the line of a key, of the keys that lead to it."""


class Checker(Protocol):
    """Check a workload's parameters; raises UsageError."""

    def check_parameters(
        self, given: Mapping[str, object], /
    ) -> Mapping[str, int | float | str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Hold the names that levels may use. `workloads`: what checks the parameters of each, and
    those that the study gives it; `primaries`: the metric that decides under each."""

    tunings: Collection[str]
    conditions: Collection[str]
    workloads: Mapping[str, tuple[Checker, Mapping[str, object]]]
    primaries: Mapping[str, str]


def declared_factors(
    factors: Mapping[str, FactorFile],
    exclude: Iterable[Mapping[str, Value]],
    interactions: Iterable[Sequence[str]],
) -> Declared:
    """Return what a checked file declares."""
    return Declared(
        factors=tuple(_frozen(name, factor) for name, factor in factors.items()),
        excluded=tuple(
            {name: level_name(value) for name, value in item.items()} for item in exclude
        ),
        interactions=tuple((pair[0], pair[1]) for pair in interactions),
    )


def _frozen(name: str, factor: FactorFile) -> Factor:
    if isinstance(factor.levels, list):
        levels = {level_name(value): Level(parameters={name: value}) for value in factor.levels}
    else:
        levels = {
            key: Level(
                parameters=dict(level.parameters),
                condition=level.condition,
                tuning=level.tuning,
                workload=level.workload,
            )
            for key, level in factor.levels.items()
        }
    return Factor(name=name, levels=levels, chosen=tuple(levels))


def check_factors(
    factors: Mapping[str, FactorFile],
    exclude: Sequence[Mapping[str, Value]],
    interactions: Sequence[Sequence[str]],
    known: Known,
    place: Place,
) -> None:
    """Check what a study's file says of factors. Raises UsageError naming file, line and key, what
    is allowed and the nearest name."""
    for name, factor in factors.items():
        if name in RESERVED:
            raise UsageError(
                f"{place('factors', name)}: 'factors': '{name}' is not a valid name for a "
                "factor, because exports have a column of that name",
                hint="Give it another name, and its levels as a mapping: 'cold: {parameters: …}'.",
            )
        _check_levels(name, factor, known, place)
    declared = declared_factors(factors, exclude, interactions)
    by_name = {factor.name: factor for factor in declared.factors}
    for what in ("condition", "workload"):
        _check_setting(declared, what, place)
    for index, item in enumerate(declared.excluded):
        for name, level in item.items():
            _known("factor", name, by_name, place, "exclude", index, name)
            _known(f"level of '{name}'", level, by_name[name].levels, place, "exclude", index, name)
    for index, pair in enumerate(declared.interactions):
        for at, name in enumerate(pair):
            _known("factor", name, by_name, place, "interactions", index, at)
        if pair[0] == pair[1] or {*pair} in [{*one} for one in declared.interactions[:index]]:
            raise UsageError(
                f"{place('interactions', index)}: 'interactions': expected two different "
                f"factors, listed once, got {pair[0]} and {pair[1]}"
            )


def check_heatmaps(
    heatmaps: Sequence[tuple[str, str]], factors: Mapping[str, FactorFile], place: Place
) -> None:
    """Check that pictures are over two factors of the study, as (across, down). Raises UsageError
    naming file, line and key."""
    for index, (across, down) in enumerate(heatmaps):
        for key, name in (("across", across), ("down", down)):
            _known("factor", name, factors, place, "heatmaps", index, key)
        if across == down:
            raise UsageError(
                f"{place('heatmaps', index)}: 'heatmaps': '{across}' is both 'across' and 'down'",
                hint="Name two factors.",
            )


def _check_levels(name: str, factor: FactorFile, known: Known, place: Place) -> None:
    keys = ("factors", name, "levels")
    if isinstance(factor.levels, list):
        _check_values(name, factor.levels, known, place)
        return
    frozen = _frozen(name, factor)
    for key, level in factor.levels.items():
        for what, named, allowed in (
            ("tuning", level.tuning, known.tunings),
            ("condition", level.condition, known.conditions),
            ("workload of the study", level.workload, known.workloads),
        ):
            if named is not None:
                _known(what, named, allowed, place, *keys, key, what.partition(" ")[0])
        _check_parameters(level, frozen.parameters, known, place, *keys, key)
        metrics = {
            other.workload: known.primaries[other.workload]
            for other in frozen.levels.values()
            if other.workload is not None and other.workload in known.primaries
        }
        if level.workload is not None and len({*metrics.values()}) > 1:
            said = ", ".join(f"{metric} of '{name}'" for name, metric in metrics.items())
            raise UsageError(
                f"{place(*keys, key, 'workload')}: levels of '{name}' need the same primary "
                f"metric, got several: {said}",
                hint="Give the workloads the same 'primary', or remove the factor that chooses "
                "among them.",
            )
        before = list(frozen.levels)[: list(frozen.levels).index(key)]
        same = next((one for one in before if frozen.levels[one] == frozen.levels[key]), None)
        if same is not None:
            raise UsageError(f"{place(*keys, key)}: levels '{same}' and '{key}' set the same")


def _check_values(name: str, values: Sequence[Value], known: Known, place: Place) -> None:
    keys = ("factors", name, "levels")
    names = [level_name(value) for value in values]
    for index, (level, value) in enumerate(zip(names, values, strict=True)):
        if not re.fullmatch(LEVEL, level):
            raise UsageError(
                f"{place(*keys, index)}: 'factors.{name}.levels': '{level[:60]}' is not "
                "valid in a workload's name",
                hint=f"Name the level: '{name}: {{levels: {{one: {{parameters: {{{name}: …}}}}}}}}'"
                " with letters, digits and + . _ -.",
            )
        if level in names[:index]:
            raise UsageError(f"{place(*keys, index)}: level '{level}' appears twice")
        level_file = LevelFile(parameters={name: value})
        _check_parameters(level_file, frozenset({name}), known, place, *keys, index)


def _check_parameters(
    level: LevelFile, every: Collection[str], known: Known, place: Place, *keys: str | int
) -> None:
    """Check a level's parameters with each workload that has all of the factor's."""
    if not level.parameters:
        return
    taken = False
    others: dict[str, None] = {}
    for checker, given in known.workloads.values():
        has = checker.check_parameters(given)
        others |= dict.fromkeys(has)
        if set(every) <= has.keys():
            taken = True
            try:
                checker.check_parameters({**given, **level.parameters})
            except UsageError as error:
                raise UsageError(f"{place(*keys)}: {error.message}", hint=error.hint) from error
    if not taken:
        lacking = sorted(set(every) - others.keys()) or sorted(every)
        said = " and ".join(f"'{name}'" for name in lacking)
        raise UsageError(
            f"{place(*keys)}: 'factors.{keys[1]}': no workload of the study has the "
            f"{'parameter' if len(lacking) == 1 else 'parameters'} {said}",
            hint=nearest(lacking[0], others),
        )


def _check_setting(declared: Declared, what: str, place: Place) -> None:
    """Check that one factor at most chooses the condition or the workload, and in all levels."""
    setting = [
        factor
        for factor in declared.factors
        if any(getattr(level, what) for level in factor.levels.values())
    ]
    for factor in setting[1:]:
        raise UsageError(
            f"{place('factors', factor.name)}: factors '{setting[0].name}' and "
            f"'{factor.name}' both set the {what}; a trial has only one"
        )
    for factor in setting:
        for name, level in factor.levels.items():
            if not getattr(level, what):
                raise UsageError(
                    f"{place('factors', factor.name, 'levels', name)}: level '{name}' has "
                    f"no {what}, but other levels of '{factor.name}' do",
                    hint=f"Give it '{what}: NAME'.",
                )


def _known(what: str, name: str, allowed: Iterable[str], place: Place, *keys: str | int) -> None:
    choices = list(allowed)
    if name not in choices:
        key = ".".join(str(part) for part in keys if isinstance(part, str))
        raise UsageError(
            f"{place(*keys)}: '{key}': no {what} '{name}'", hint=nearest(name, choices)
        )
