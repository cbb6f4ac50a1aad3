"""docs/glossary.md explains each word that labctl itself puts into a report."""

from __future__ import annotations

import re

import pytest

from labctl.analysis.gate.rules import Outcome
from labctl.analysis.model import AnswerCode, DiagnosticKind, EffectKind, Role
from labctl.analysis.studies import Agreement
from labctl.analysis.verdicts.table import Verdict
from labctl.base.tuning import Level
from labctl.collect.threads.host_threads import ROLES
from labctl.study.conditions import condition_names
from labctl.trace.timeline.lanes import State
from tools.pages import GLOSSARY, alphabetical, glossary

TEXT = GLOSSARY.read_text()
ENTRIES = dict(re.findall(r"^\*\*(.+?)\*\*: (.+)$", TEXT, re.MULTILINE))
ARMS = ("baseline", "control", "handicap", "native")
WORDS = {
    *Verdict,
    *AnswerCode,
    *DiagnosticKind,
    *EffectKind,
    *Role,
    *Agreement,
    *Outcome,
    *Level,
    *State,
    *ROLES,
    *condition_names(),
    *ARMS,
}


@pytest.mark.parametrize("word", sorted(map(str, WORDS)))
def test_every_word_of_a_report_has_an_entry(word: str) -> None:
    assert word in ENTRIES


def test_verdicts_have_the_entries_that_their_rows_make() -> None:
    assert glossary(TEXT) == TEXT, "run: make docs"


def test_entries_are_in_alphabetical_order_and_of_one_to_three_sentences() -> None:
    assert list(ENTRIES) == sorted(ENTRIES, key=alphabetical)
    long = [term for term, text in ENTRIES.items() if len(re.findall(r"[.?](?: |$)", text)) > 3]
    assert long == []


def test_what_an_entry_refers_to_is_one() -> None:
    seen = [
        name
        for text in ENTRIES.values()
        for name in re.findall(r"[Ss]ee (?:also )?\*(.+?)\*", text)
    ]
    assert seen
    assert [name for name in seen if name not in ENTRIES] == []
