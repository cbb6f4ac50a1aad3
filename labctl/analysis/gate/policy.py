"""Load and check a gate's policy: the rules that a run must keep."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from labctl.analysis.answer.words import listed
from labctl.analysis.compare.two_runs import OF_THE_RUN, fact_of_run, fact_words
from labctl.base.errors import nearest
from labctl.base.hostfacts import FACT_NAMES
from labctl.base.quantities import quantity
from labctl.base.units import Unit
from labctl.base.yaml import FileModel, load
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import base_name

# Compare the facts of a run's host with those of another run's.


ALL = "all"
GUEST = "guest."

FACTS = (*FACT_NAMES, *(f"{GUEST}{name}" for name in FACT_NAMES), *OF_THE_RUN)
"""Names for a rule: facts of the host, of the guest, of the run."""


def hold_facts(names: Collection[str], run: LoadedRun, other: LoadedRun) -> tuple[bool | None, str]:
    """Return whether both runs recorded the same; False outweighs None (one recorded nothing).

    `ALL` compares every fact that either run recorded. The second value names the facts.
    """
    every = ALL in names
    chosen = FACTS if every else tuple(names)
    differing, unknown, same = [], [], 0
    for name in chosen:
        ours, theirs = _fact_of(run, name), _fact_of(other, name)
        if ours is None and theirs is None and every:
            continue
        if ours is None or theirs is None:
            who = " and ".join(r.name for r, f in ((run, ours), (other, theirs)) if f is None)
            unknown.append(f"{_title(name)} is unknown for {who}")
        elif ours != theirs:
            differing.append(f"{_title(name)} is {_short(ours)}, there {_short(theirs)}")
        else:
            same += 1
    if differing:
        return False, listed(differing)
    if unknown or not same:
        return None, listed(unknown) or "neither run recorded a fact"
    return True, ""


def _fact_of(run: LoadedRun, name: str) -> Any:
    """Return None if the fact is not recorded, or was unavailable."""
    if name in OF_THE_RUN:
        found = fact_of_run(run.run, name)
    elif name.startswith(GUEST):
        found = run.run.guest.get(name.removeprefix(GUEST))
    else:
        found = run.run.host.get(name)
    unavailable = isinstance(found, dict) and "unavailable" in found
    return None if unavailable else found


def _title(name: str) -> str:
    if name in OF_THE_RUN:
        return OF_THE_RUN[name]
    if name.startswith(GUEST):
        return f"the guest's {FACT_NAMES[name.removeprefix(GUEST)]}"
    return FACT_NAMES[name]


def _short(value: Any) -> str:
    words = fact_words(value) or "nothing"
    return words if len(words) <= 60 else f"{words[:59]}…"


class Undecided(StrEnum):
    """Name what a rule counts as where the run can't decide it."""

    FAIL = "fail"
    PASS = "pass"  # noqa: S105 - a verdict, not a password
    OPEN = "open"
    """Counts as neither: the gate's exit status reports insufficient data."""


def _amount(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)?\s*%", text):
        raise ValueError("a share such as '5 %'")
    if float(text.rstrip("% ")) >= 1000:
        raise ValueError("a share below 1000 %")
    return text


def _quantity(text: str) -> str:
    """Check a number with a unit, such as '3 ms'."""
    try:
        scale = quantity(text)[1]
    except ValueError:
        scale = None
    if scale is None or scale.unit.is_own:
        raise ValueError(
            "expected a number in the metric's own unit (of times seconds), or one with its unit, "
            "such as '3 ms' or '5 %'"
        )
    return text


def _share_or_quantity(text: str) -> str:
    return _amount(text) if "%" in text or not re.search("[a-z]", text) else _quantity(text)


def _part(text: str) -> str:
    if not 0 < float(_amount(text).rstrip("% ")) <= 100:
        raise ValueError("a share above 0 % and up to 100 %")
    return text


_LeastHosts = Annotated[str, AfterValidator(_part)]
_Share = Annotated[str, AfterValidator(_share_or_quantity)]
_Quantity = Annotated[str, AfterValidator(_quantity)]
_Pattern = Annotated[str, Field(min_length=1, max_length=200)]
_Number = Annotated[float, Field(allow_inf_nan=False)]


def _known_fact(name: str) -> str:
    if name != ALL and name not in FACTS:
        raise ValueError(f"no such fact. {nearest(name, [ALL, *FACTS])}")
    return name


_Fact = Annotated[str, AfterValidator(_known_fact)]


def _listed(value: object) -> object:
    return [value] if value == ALL else value


class Rule(FileModel):
    """Hold one demand. Patterns are those of a shell (fnmatch(3)).

    Exactly one of the limits: with `against` (an arm of the run, or "twin") or `like` (another
    run) a share or, for what is compared by difference, a number in the metric's unit; `below`
    and `above` are of the value itself. A number may have a unit: '3 ms'. Or `facts`
    with `like`: what of hosts, guests and runs must be the same there. Or `grade`: what the
    run's answer must say of a tuning at least.
    """

    name: str | None = None
    workload: _Pattern = "*"
    condition: _Pattern = "*"
    tuning: _Pattern = "*"
    metric: _Pattern | None = None
    against: str | None = None
    like: str | None = None
    worse_by_at_most: _Share | _Number | None = None
    better_by_at_least: _Share | _Number | None = None
    within: _Share | _Number | None = None
    below: _Quantity | _Number | None = None
    above: _Quantity | _Number | None = None
    facts: (
        Annotated[
            list[_Fact],
            Field(min_length=1),
            BeforeValidator(_listed, json_schema_input_type=list[str] | Literal["all"]),
        ]
        | None
    ) = None
    grade: Literal["candidate", "confirmed"] | None = None
    undecided: Undecided | None = Field(default=None, strict=False)

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.facts is not None:
            self._check_facts()
            return self
        if self.grade is not None:
            self._check_grade()
            return self
        if self.metric is None:
            raise ValueError("a rule needs a 'metric', 'facts' or a 'grade'")
        given = [name for name in LIMITS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(LIMITS)}")
        if self.against is not None and self.like is not None:
            raise ValueError("'against' or 'like', not both")
        relative = given[0] not in ("below", "above")
        if relative and self.against is None and self.like is None:
            raise ValueError(f"'{given[0]}' needs something to compare with: 'against' or 'like'")
        if not relative and (self.against is not None or self.like is not None):
            raise ValueError(
                f"'{given[0]}' limits the value itself: leave out 'against' and 'like'"
            )
        if relative and not self.is_share and self.amount <= 0:
            raise ValueError(f"'{given[0]}' above 0")
        return self

    def _check_facts(self) -> None:
        others = [name for name in (*LIMITS, "metric", "against") if getattr(self, name)]
        others += [name for name in _OF_CELLS if name in self.model_fields_set]
        if others:
            raise ValueError(f"'facts' applies to a whole run: leave out '{others[0]}'")
        if self.like is None:
            raise ValueError("'facts' compares with another run: add 'like'")

    def _check_grade(self) -> None:
        others = [name for name in (*LIMITS, "metric", "against", "like") if getattr(self, name)]
        others += [name for name in ("workload", "condition") if name in self.model_fields_set]
        if others:
            raise ValueError(f"'grade' applies to a tuning in a whole run: leave out '{others[0]}'")
        if "tuning" not in self.model_fields_set or any(mark in self.tuning for mark in "*?["):
            raise ValueError("'grade' needs one 'tuning', named without a pattern")

    @property
    def limit(self) -> str:
        """Return the key of LIMITS that this rule has."""
        return next(name for name in LIMITS if getattr(self, name) is not None)

    @property
    def amount(self) -> float:
        """Return the limit as a share (0.05) or in the metric's unit."""
        value = getattr(self, self.limit)
        if not isinstance(value, str):
            return float(value)
        if value.rstrip().endswith("%"):
            return float(value.rstrip("% ")) / 100
        number, scale = quantity(value)
        return number * scale.factor if scale else number

    @property
    def unit(self) -> Unit | None:
        """Return the unit of a limit, which must be the metric's; None for a share or a number
        without a unit."""
        value = getattr(self, self.limit)
        scale = quantity(value)[1] if isinstance(value, str) and not self.is_share else None
        return scale.unit if scale else None

    @property
    def is_share(self) -> bool:
        value = getattr(self, self.limit)
        is_relative = self.limit not in ("below", "above")
        return is_relative and isinstance(value, str) and value.rstrip().endswith("%")

    @property
    def demand(self) -> str:
        """Return the rule's limit in words: "within 10 %"."""
        if self.facts is not None:
            return f"the same {', '.join(self.facts)}"
        if self.grade is not None:
            return f"graded {self.grade}" + (" or better" if self.grade == "candidate" else "")
        value = getattr(self, self.limit)
        number = value if isinstance(value, str) else f"{value:g}"
        return f"{self.limit.replace('_', ' ')} {number}"

    @property
    def title(self) -> str:
        """Return the rule's name, or its text."""
        if self.name:
            return self.name
        if self.facts is not None:
            return f"{self.demand} as {self.like}"
        if self.grade is not None:
            return f"{self.tuning}: {self.demand}"
        reference = f" than {self.against or self.like}" if self.against or self.like else ""
        if self.limit == "within" and reference:
            reference = reference.replace("than", "of", 1)
        return f"{self.tuning}: {self.metric} {self.demand}{reference}"

    def takes_metric(self, metric: str) -> bool:
        """Return whether the rule applies to this metric. Labels may be left out: `exits` also
        applies to `exits{reason=HLT}`."""
        asked = self.metric or ""
        return metric == asked or fnmatchcase(base_name(metric), asked)


_OF_CELLS = ("workload", "condition", "tuning")
LIMITS = ("worse_by_at_most", "better_by_at_least", "within", "below", "above")


class Policy(FileModel):
    """Hold a policy. `undecided` holds for the rules that don't say otherwise. It has no default: a
    gate must not pass or fail by accident. `least_hosts`: share of a group's measured hosts that
    must have a value in each place for a fleet's claim about the group."""

    undecided: Undecided = Field(strict=False)
    least_hosts: _LeastHosts | None = None
    rules: Annotated[list[Rule], Field(min_length=1, max_length=1000)]

    @property
    def least_share(self) -> float | None:
        """Return `least_hosts` as a share; None if it is not declared."""
        if self.least_hosts is None:
            return None
        return float(self.least_hosts.rstrip("% ")) / 100

    def counts_as(self, rule: Rule) -> Undecided:
        return rule.undecided or self.undecided


def load_policy(path: Path) -> Policy:
    """Raise UsageError naming file, line and key."""
    return load(Policy, path)
