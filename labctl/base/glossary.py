"""Read the glossary: docs/glossary.md, which the page of a report and `labctl explain` share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from labctl.base.paths import shipped_data

_ENTRY = re.compile(r"^\*\*(.+?)\*\*: (.+)$", re.MULTILINE)
_SEE = re.compile(r"\b[Ss]ee (?:also )?\*(.+?)\*")
_ANOTHER = re.compile(r"(?<!\*)\*([^*\n]+)\*(?!\*)")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_ALIKE = re.compile(r"[\s_-]+")


@dataclass(frozen=True, slots=True)
class Term:
    """Hold an entry: `text` is Markdown with `code`, *another term* and links."""

    name: str
    text: str

    @property
    def plain(self) -> str:
        """Return the text without marks, and what was code in quotes."""
        return plain(self.text)

    @property
    def sees(self) -> tuple[str, ...]:
        """Return the names of the terms that a reader is sent to."""
        return tuple(_SEE.findall(self.text))

    @property
    def anchor(self) -> str:
        """Return what identifies the entry in a page."""
        words = re.sub(r"[^\w]+", "-", self.name.casefold()).strip("-")
        return f"term-{words}"


class Glossary(Mapping[str, Term]):
    """Hold terms by name, in the glossary's order."""

    def __init__(self, markdown: str) -> None:
        self._terms = {name: Term(name, text) for name, text in _ENTRY.findall(markdown)}

    def __getitem__(self, name: str) -> Term:
        return self._terms[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._terms)

    def __len__(self) -> int:
        return len(self._terms)

    def find(self, word: str) -> tuple[Term, ...]:
        """Return the term of a word, whatever its case, its hyphens and its plural are, and those
        that its entry sends to; () where it is none."""
        found = self._alike.get(_folded(word)) or self._alike.get(_singular(_folded(word)))
        if found is None:
            return ()
        return (found, *(self[name] for name in found.sees if name in self))

    @cached_property
    def _alike(self) -> Mapping[str, Term]:
        terms = {_singular(_folded(name)): term for name, term in self._terms.items()}
        return terms | {_folded(name): term for name, term in self._terms.items()}


@cache
def glossary() -> Glossary:
    """Return the glossary that labctl brings."""
    return Glossary((shipped_data() / "docs" / "glossary.md").read_text(encoding="utf-8"))


def plain(markdown: str) -> str:
    """Return a sentence without the marks of Markdown, and what was code in quotes."""
    text = _ANOTHER.sub(r"\1", _LINK.sub(r"\1", markdown))
    return re.sub(r"`([^`]+)`", r"'\1'", text)


def _folded(word: str) -> str:
    return _ALIKE.sub(" ", word).strip().casefold()


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
