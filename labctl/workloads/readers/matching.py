"""Find all regular expressions of a trial with one child process, within limits."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from labctl.base import process
from labctl.base.errors import BrokenError
from labctl.base.json import parse_json
from labctl.base.process import Deadline
from labctl.workloads.readers import match_child
from labctl.workloads.readers.output import STDERR, STDOUT, Output, decoded

_WALL_S = 60.0
"""Limit on real time: a busy host gives the child its CPU seconds late."""
_MOST_CHARACTERS = 32 << 20
"""Limit for the texts of several jobs: one child holds each twice."""


@dataclass(frozen=True, slots=True)
class Match:
    """Hold where a match begins, the text of it, and its groups that took part."""

    start: int
    text: str
    groups: dict[str, str]


class Matches:
    """Hold a pattern's matches in a text, for all pairs that were requested at once."""

    def __init__(self, asked: Iterable[tuple[str, str]]) -> None:
        jobs = list(dict.fromkeys(asked))
        self._found: dict[tuple[str, str], list[Match] | str] = {}
        while jobs:
            done = _ask(_at_once(jobs))
            self._found.update(done)
            jobs = jobs[len(done) :]

    def of(self, pattern: str, text: str) -> list[Match]:
        """Return all matches, in order. Raises BrokenError for a pattern beyond its limits."""
        found = self._found[pattern, text]
        if isinstance(found, str):
            raise BrokenError(f"the pattern '{pattern}': {found}")
        return found


def _at_once(jobs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the first jobs, as many as one child has memory for; at least one."""
    texts: set[str] = set()
    size = 0
    for number, (_, text) in enumerate(jobs):
        if text not in texts:
            texts.add(text)
            size += len(text)
            if number and size > _MOST_CHARACTERS:
                return jobs[:number]
    return jobs


def _ask(jobs: list[tuple[str, str]]) -> dict[tuple[str, str], list[Match] | str]:
    """Return the answers up to the job at which the child ran out of time or memory. Only a first
    job can be the cause itself; a later one is tried again, as the first."""
    texts = list(dict.fromkeys(text for _, text in jobs))
    places = {text: number for number, text in enumerate(texts)}
    request = {"texts": texts, "jobs": [[pattern, places[text]] for pattern, text in jobs]}
    child = process.run(
        [sys.executable, "-I", "-S", match_child.__file__],
        deadline=Deadline.after(_WALL_S, "reading the metrics' regular expressions"),
        check=False,
        cwd=Path("/"),
        stdin=json.dumps(request),
    )
    lines = [line for line in child.stdout.splitlines() if line.endswith("}")]
    answers: dict[tuple[str, str], list[Match] | str] = {}
    for job, line in zip(jobs, lines, strict=False):
        answer = parse_json(line)
        answers[job] = answer["error"] if "error" in answer else _matches(answer["matches"])
    if not answers:
        took = f"{match_child.CPU_S} s of CPU time or {match_child.MEMORY >> 20} MiB of memory"
        answers[jobs[0]] = f"it needs more than {took} on {_size(jobs[0][1])}"
    return answers


def _size(text: str) -> str:
    return f"a text of {len(text)} characters"


def _matches(raw: list[tuple[int, str, dict[str, str]]]) -> list[Match]:
    return [Match(start, text, groups) for start, text, groups in raw]


# Find the line of an output that is nearest to a regular expression that matches nothing.


_MOST_LINES = 2000
"""Last lines of a text that are compared."""
_LONGEST = 500
_SHOWN = 160

_NOT_LITERAL = re.compile(r"\\[A-Za-z]|\(\?P?<\w+>|\[[^\]]*\]|[(){}|^$*+?.]|\\")
_WORD = re.compile(r"[^\W_]{2,}|%")


def nearest_line(pattern: str, output: Output, source: str) -> str | None:
    """Return a sentence with the line that has most of a pattern's own words, preferably of the
    text that it is searched in; None if no line has any."""
    words = {word.lower() for word in _WORD.findall(_NOT_LITERAL.sub(" ", pattern))}
    best, found = 0, None
    for name, text in _texts(output, source):
        for line in reversed(text.splitlines()[-_MOST_LINES:]):
            there = line[:_LONGEST].lower()
            score = sum(len(word) for word in words if word in there)
            if score > best:
                best, found = score, (name, line)
    if found is None:
        return None
    name, line = found
    shown = line.strip()
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    is_elsewhere = not (name == source or fnmatchcase(name, source))
    how = f" ('{name}:' before the pattern searches it)" if is_elsewhere else ""
    return f"The nearest line of {name} is '{shown}'{how}."


def _texts(output: Output, source: str) -> Iterator[tuple[str, str]]:
    """Yield names and texts of an output, those of `source` first."""
    texts: Mapping[str, str | bytes] = {
        STDOUT: output.stdout,
        STDERR: output.stderr,
        **output.files,
    }
    names = sorted(texts, key=lambda name: not (name == source or fnmatchcase(name, source)))
    for name in names:
        yield name, decoded(texts[name])
