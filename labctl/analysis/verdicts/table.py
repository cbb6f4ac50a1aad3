"""List the verdicts, a row each: name, meaning, look and consequences.

`verdicts.decide` chooses among them. The rows define words and colours of reports, the end of runs,
recommendations, and the tables of README.md and docs/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from labctl.base.stopping import FEWEST_BLOCKS


class Verdict(StrEnum):
    """Name the verdicts as in JSON."""

    IMPROVES = "improves"
    REGRESSES = "regresses"
    SMALL = "real but small"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    DIFFERENT_DURABILITY = "different durability"
    SUSPENDED = "suspended"
    BEFORE_LOOK = "before the first look"
    DEMONSTRATION = "demonstration, no verdict"

    @property
    def row(self) -> VerdictRow:
        return VERDICTS[self]

    @property
    def shown(self) -> str:
        """Return the verdict's words in tables."""
        return self.row.shown or str(self)

    @property
    def css_class(self) -> str:
        return self.name.lower()


class Says(StrEnum):
    """Name the kinds of statements of verdicts about a tuning's effect."""

    EFFECT = "there is a relevant effect"
    NO_EFFECT = "there is no relevant effect"
    OPEN = "the run leaves it open"
    NOTHING = "it was not judged"


class Tone(StrEnum):
    """Name the colours of templates/report/style.css.j2."""

    BETTER = "better"
    WORSE = "worse"
    EQUAL = "equal"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """Describe a verdict. `symbol` distinguishes verdicts in black and white; `tone` is the colour
    on a page, `style` that in a terminal. `shown`: the words in tables, if they differ from the
    verdict's name. `means`: its entry in the glossary.

    Texts for missing evidence, "" if the verdict itself says it: `clause`, of the answer, as a
    predicate with the `places`; `advice`: why a tuning is not advised; `unshown`: why harm is not
    excluded.
    """

    symbol: str
    means: str
    says: Says
    tone: Tone | None = None
    style: str = ""
    shown: str = ""
    clause: str = ""
    advice: str = ""
    unshown: str = ""
    forbids: bool = False
    """True if a tuning with this verdict in any place is not recommended."""
    is_final: bool = False
    """True if more blocks are not needed. A suspended verdict may resolve with more, because the
    control's interval also gets narrower."""
    rests_on_checks: bool = True
    """True if control and known loss affect it."""


VERDICTS: Mapping[Verdict, VerdictRow] = {
    Verdict.IMPROVES: VerdictRow(
        symbol="▲",
        means="A verdict: the interval excludes no change, and the estimate is better by at least "
        "the threshold.",
        says=Says.EFFECT,
        tone=Tone.BETTER,
        style="bold green",
        is_final=True,
    ),
    Verdict.REGRESSES: VerdictRow(
        symbol="▼",
        means="A verdict: the interval excludes no change, and the estimate is worse by at least "
        "the threshold.",
        says=Says.EFFECT,
        tone=Tone.WORSE,
        style="bold red",
        forbids=True,
        is_final=True,
    ),
    Verdict.EQUIVALENT: VerdictRow(
        symbol="=",
        means="A verdict: the whole interval lies within the threshold, and the run has shown that "
        "it can see a loss of about that size.",
        says=Says.NO_EFFECT,
        tone=Tone.EQUAL,
        advice="equals baseline within the threshold",
        is_final=True,
    ),
    Verdict.SMALL: VerdictRow(
        symbol="~",
        means="A verdict: the interval excludes no change, and all of it lies within the "
        "threshold.",
        says=Says.NO_EFFECT,
        tone=Tone.EQUAL,
        advice="changes less than matters",
        is_final=True,
    ),
    Verdict.SUSPENDED: VerdictRow(
        symbol="!",
        means="No verdict, since this run did not show that the baseline equals itself there: "
        "the A/A control failed, is missing or cannot exclude a bias as large as the "
        "effect.",
        says=Says.OPEN,
        tone=Tone.UNSURE,
        style="yellow",
        clause="gets no verdict in {places}: the A/A control failed, is missing or cannot exclude "
        "a bias that large",
        advice="no verdict: this run did not show that baseline equals itself",
    ),
    Verdict.DEMONSTRATION: VerdictRow(
        symbol="–",
        means="The run has fewer than ten blocks. It shows estimates but makes no claim.",
        says=Says.NOTHING,
        tone=Tone.UNSURE,
        shown="no verdict",
        clause=f"has fewer than {FEWEST_BLOCKS} blocks in {{places}}",
        advice="no verdict: too few blocks",
        unshown=f"it has fewer than {FEWEST_BLOCKS} blocks",
        rests_on_checks=False,
    ),
    Verdict.INCONCLUSIVE: VerdictRow(
        symbol="?",
        means="A verdict: the interval includes both changes that matter and changes that do "
        "not. The report says why (it is too wide, there are too few blocks, or a "
        "significant effect may be below the threshold) and how to decide it.",
        says=Says.OPEN,
        tone=Tone.UNSURE,
        advice="inconclusive",
    ),
    Verdict.DIFFERENT_DURABILITY: VerdictRow(
        symbol="≠",
        shown="different durability guarantee",
        means="No verdict, since a completed write to the tuning's disk is more or less durable "
        "than with the baseline's.",
        says=Says.NOTHING,
        tone=Tone.UNSURE,
        style="yellow",
        clause="gets no verdict in {places}: its disk has a different durability guarantee",
        advice="no verdict: its disk has a different durability guarantee",
        unshown="its disk has a different durability guarantee",
        forbids=True,
        is_final=True,
        rests_on_checks=False,
    ),
    Verdict.BEFORE_LOOK: VerdictRow(
        symbol="…",
        means="No verdict yet: the plan declares looks, and none of them is reached.",
        says=Says.NOTHING,
        shown="no verdict",
        clause="gets no verdict in {places} before the first declared look",
        advice="no verdict: the run reached none of its plan's looks",
        unshown="the run reached none of its plan's looks",
    ),
}
"""Rows by verdict. Rows of one tone stand side by side, in the order of the page's style."""


def classes_of(tone: Tone) -> list[str]:
    """Return the CSS classes of the verdicts with one colour on a page."""
    return [verdict.css_class for verdict, row in VERDICTS.items() if row.tone is tone]


def verdict_text(verdict: Verdict | None) -> str:
    """Return the verdict in one or two words; "" for a comparison without one."""
    return "" if verdict is None else verdict.shown


def says(verdict: Verdict | None, *wanted: Says) -> bool:
    """Return whether a verdict makes one of these statements; None makes no statement."""
    return verdict is not None and verdict.row.says in wanted
