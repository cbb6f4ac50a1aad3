"""Word counts, times and metrics for sentences, and read the glossary (docs/glossary.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from labctl.base.metrics.row import name_in_words
from labctl.base.metrics.table import metric_of
from labctl.base.paths import shipped_data
from labctl.base.units import CLOSED, LARGEST

# Word counts, times and names of metrics for sentences, tables and pictures.


def counted(number: int, noun: str) -> str:
    """Return "1 boot", "2 boots"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Return a duration in usual units: "40 s", "2 min 05 s", "1 h 30 min"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def roughly(seconds: float) -> str:
    """Return an estimate of a time in units for planning: "40 s", "20 min", "3 h 40 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    hours, minutes = divmod(10 * round(seconds / 600), 60)
    return f"{hours} h {minutes:02d} min" if minutes else f"{hours} h"


_CONDITIONS = {"neighbour": "with a noisy neighbour", "quiet": "on a quiet host"}


def place_in_words(workload: str, condition: str, quote: str = "") -> str:
    """Return the place of a comparison: "fio-randread with a noisy neighbour". A condition of an
    imported run keeps its name, in quotes within a sentence."""
    beside = _CONDITIONS.get(condition, f"under {quote}{condition}{quote}")
    return f"{cell_in_words(workload)} {beside}"


_CELL = re.compile(r"(?P<name>[^\[\]]+)\[(?P<levels>[^\[\]]+)\]")


def cell_in_words(workload: str) -> str:
    """Return a workload; for a cell of factors only with its levels: "frames (fifo, cgroup)" for
    "frames[scheduler=fifo,isolation=cgroup]"."""
    name = workload.partition("[")[0]
    levels = cell_levels(workload)
    return f"{name} ({', '.join(level for _, level in levels)})" if levels else workload


def cell_levels(workload: str) -> list[tuple[str, str]]:
    """Return factor and level of each factor that sets a cell's workload; [] if it is not a
    cell."""
    cell = _CELL.fullmatch(workload)
    pairs = [part.partition("=") for part in cell["levels"].split(",")] if cell else []
    if not all(name and is_level for name, is_level, _ in pairs):
        return []
    return [(name, level) for name, _, level in pairs]


def printable(text: str) -> str:
    """Return `text` without control and formatting characters (newlines and tabs stay).

    Facts come from a guest, which is hostile: an escape sequence would control the terminal, and a
    bidi override would reorder the text.
    """
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )


_SHORT = 60


def shortened(text: str) -> str:
    """Return a text of any length as one line of some 60 characters."""
    line = " ".join(text.split())
    return line if len(line) <= _SHORT else f"{line[:_SHORT]}…"


def without_logs(reason: str) -> tuple[str, str]:
    """Return a reason's sentence, and the lines of logs below it ("" if there are none): repeated
    failures for one reason have different logs."""
    sentence, _, logs = reason.partition("\n")
    return sentence, logs


def metric_title(metric: str, *, closed_loop: bool = False) -> str:
    """Return a metric's key in words: "latency_p95" is "p95 latency", "host_cpu{thread=vcpu}" is
    "host CPU (vcpu)", "exits{vcpu=0}" is "VM exits (vCPU 0)".

    `closed_loop`: mark a latency as such, if "open-loop p95 latency" stands beside it.
    """
    base, _, labels = metric.partition("{")
    row = metric_of(base)
    title = name_in_words(base) if row is None else row.title_of(base)
    if closed_loop and base.startswith(CLOSED) and base != LARGEST:
        title = f"closed-loop {title}"
    if not labels:
        return title
    values = map(_label_title, labels.rstrip("}").split(","))
    return f"{title} ({', '.join(values)})"


def _label_title(label: str) -> str:
    name, _, value = label.partition("=")
    return f"vCPU {value}" if name == "vcpu" else value or label


# Read the glossary, docs/glossary.md, which a report's page and `labctl explain` share.


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
        """Return the text without marks, with code in quotes."""
        return plain(self.text)

    @property
    def sees(self) -> tuple[str, ...]:
        """Return the names of the terms that the entry refers to."""
        return tuple(_SEE.findall(self.text))

    @property
    def anchor(self) -> str:
        """Return the entry's id in a page."""
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
        """Return the term of a word, ignoring case, hyphens and plural, and those that its entry
        refers to; () if there is none."""
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
    """Return a sentence without the marks of Markdown, with code in quotes."""
    text = _ANOTHER.sub(r"\1", _LINK.sub(r"\1", markdown))
    return re.sub(r"`([^`]+)`", r"'\1'", text)


def _folded(word: str) -> str:
    return _ALIKE.sub(" ", word).strip().casefold()


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
