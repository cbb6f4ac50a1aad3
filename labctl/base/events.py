"""Define the engine's events. The engine never prints; a listener does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Serve as the base of all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Event):
    """Tell the user about host, accelerator, or progress of a build, in a sentence."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """Warn of something that may change the answer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    """Report the run's progress. Never sent while a trial is being measured.

    `at_most`: a rule may end it before `planned` trials are done."""

    done: int
    planned: int
    invalid: int
    doing: str
    left_s: float | None
    at_most: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """Report that the run waits for an idle host, for `left_s` seconds at most."""

    text: str
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded(Event):
    number: int
    valid: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBegun(Event):
    """Report that the run's folder exists, and the file in it with the run's progress."""

    folder: Path
    progress: Path


Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """Ignore an event: a listener for callers that want none."""
