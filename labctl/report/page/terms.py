"""Mark the first use of words that the glossary explains."""

from __future__ import annotations

import re
from functools import cache

from markupsafe import Markup, escape

from labctl.base.wording import Glossary, Term, glossary, printable

IN_SENTENCES = (
    "added blocks",
    "baseline",
    "block",
    "boot",
    "calibrated IPC",
    "confidence",
    "A/A control",
    "coordinated omission",
    "cost to others",
    "different durability",
    "drift",
    "equivalent",
    "exploratory",
    "foreign CPU time",
    "forest plot",
    "half-width",
    "housekeeping CPU",
    "improves",
    "inconclusive",
    "interval",
    "invalid",
    "iothread",
    "known loss",
    "known-loss arm",
    "KVM",
    "maximum",
    "minimum detectable effect",
    "native twin",
    "native",
    "neighbour",
    "noise floor",
    "outlier",
    "p95",
    "pin plan",
    "real but small",
    "regresses",
    "restored state",
    "run delay",
    "SCHED_FIFO",
    "simultaneous",
    "spare block",
    "stack difference",
    "steal",
    "suspended",
    "TCG",
    "threshold",
    "trial",
    "typical value",
    "VM exit",
    "work per host CPU-second",
)
"""Words that are marked in any sentence. Other words, such as "open" and "run", often have their
everyday meaning: templates mark those one by one."""

_OTHER_FORMS = {"open-loop": "open loop", "closed-loop": "closed loop"}
"""Forms of words in sentences that differ from the glossary's."""


class Terms:
    """Mark words, each once in a part of the page, and remember them for the page's own glossary.
    A template fills in from the top, so the first use is marked."""

    def __init__(self) -> None:
        self._glossary = glossary()
        self._here: set[str] = set()
        self._used: dict[str, Term] = {}

    def begin(self) -> str:
        """Begin a part of the page, in which words are marked again; returns an empty text."""
        self._here = set()
        return ""

    def term(self, text: str, name: str = "") -> Markup:
        """Return the text, marked as the term `name` (default: the text itself), even if it was
        marked before. Raises KeyError for a term that the glossary lacks."""
        found = self._glossary.find(name or text)
        if not found:
            raise KeyError(name or text)
        return self._marked(printable(text), found)

    def explained(self, text: str) -> Markup:
        """Return a sentence with those words marked that were not marked before in this part."""
        text = printable(text)
        parts: list[Markup] = []
        done = 0
        for match in _pattern().finditer(text):
            found = self._glossary.find(_OTHER_FORMS.get(match[0].casefold(), match[0]))
            if not found or found[-1].name in self._here:
                continue
            parts += [escape(text[done : match.start()]), self._marked(match[0], found)]
            done = match.end()
        return Markup().join([*parts, escape(text[done:])])

    @property
    def used(self) -> list[Term]:
        """Return the terms that were marked, and those that their entries refer to, in the
        glossary's order."""
        names = {*self._used}
        for term in self._used.values():
            names.update(name for name in term.sees if name in self._glossary)
        return [term for name, term in self._glossary.items() if name in names]

    def entry(self, term: Term) -> Markup:
        """Return an entry's text, with links to the entries that it refers to."""
        known = {found.name for found in self.used}
        return _as_html(term.text, self._glossary, known)

    def _marked(self, text: str, found: tuple[Term, ...]) -> Markup:
        first, last = found[0], found[-1]
        self._here.add(last.name)
        self._used[first.name] = first
        self._used[last.name] = last
        return Markup(
            '<span class="term" tabindex="0" aria-describedby="{}" data-means="{}">{}</span>'
        ).format(last.anchor, last.plain, text)


@cache
def _pattern() -> re.Pattern[str]:
    """Return a pattern of the words, the longest first, that does not match in longer names."""
    words = sorted({*IN_SENTENCES, *_OTHER_FORMS}, key=len, reverse=True)
    choice = "|".join(re.escape(word).replace(r"\ ", r"\s") for word in words)
    return re.compile(rf"(?<![\w+'{{=.-])(?:{choice})s?(?![\w+=}}-]|'(?!s\b))", re.IGNORECASE)


_PARTS = re.compile(r"`([^`]+)`|\[([^\]]+)\]\([^)]+\)|(?<!\*)\*([^*\n]+)\*(?!\*)")


def _as_html(markdown: str, terms: Glossary, known: set[str]) -> Markup:
    out: list[Markup] = []
    done = 0
    for match in _PARTS.finditer(markdown):
        out.append(escape(markdown[done : match.start()]))
        code, link, other = match.groups()
        if code is not None:
            out.append(Markup("<code>{}</code>").format(code))
        elif other is not None and other in known:
            out.append(Markup('<a href="#{}">{}</a>').format(terms[other].anchor, other))
        else:
            out.append(Markup("<em>{}</em>").format(link or other))
        done = match.end()
    return Markup().join([*out, escape(markdown[done:])])
