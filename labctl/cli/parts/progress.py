"""Show what a user sees while a run goes on."""

from __future__ import annotations

import re
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING

from labctl.base.events import Event, Note, Progress, TrialEnded, Waiting, Warned
from labctl.base.wording import counted, duration, printable

if TYPE_CHECKING:
    from rich.console import Console

_LINES = 10
"""Steps without a terminal: a line each time another tenth of the trials is done."""


class ProgressView:
    """Show a bar on a terminal, plain lines elsewhere. `listen` is for the engine.

    The bar is drawn when an event comes and never by a timer: no event comes while a trial is
    being measured, so nothing is redrawn then.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self._console = console
        self._bar = Bar(
            TextColumn("{task.fields[left]:>12}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None, left="")
        self._next_line = 0
        self._invalid: Counter[str] = Counter()
        self._waiting = False
        # A dumb terminal can't be drawn on: rich would show nothing at all.
        self._draws = console.is_terminal and not console.is_dumb_terminal

    def __enter__(self) -> ProgressView:
        if self._draws:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A bar that was never drawn would still print its closing line.
        if self._draws:
            self._bar.stop()
        for reason, times in self._invalid.items():
            if times > 1:
                self._print(f"Invalid: {counted(times, 'attempt')} with '{reason}'")

    def listen(self, event: Event) -> None:
        if not isinstance(event, Waiting):
            self._waiting = False
        match event:
            case Note(text=text):
                self._print(text)
            case Warned(text=text):
                self._print(f"Warning: {text}")
            case TrialEnded(valid=False, text=text):
                self._ended(text)
            case Waiting():
                self._wait(event)
            case Progress():
                self._progress(event)

    def _progress(self, event: Progress) -> None:
        most = "at most " if event.at_most else ""
        left = "" if event.left_s is None else f"{most}{duration(event.left_s)} left"
        if self._draws:
            self._bar.update(
                self._task,
                total=event.planned,
                completed=event.done,
                description=event.doing,
                left=left,
            )
            self._bar.refresh()
        elif (tenth := event.done * _LINES // event.planned) >= self._next_line:
            self._next_line = tenth + 1
            invalid = f", {event.invalid} invalid" if event.invalid else ""
            told = ", ".join(part for part in (event.doing, left) if part)
            self._print(f"{event.done} of {most}{event.planned} trials{invalid}: {told}")

    def _ended(self, text: str) -> None:
        """Print the first attempt that is invalid for a reason, and count those like it."""
        # Numbers differ, and lines below the first are logs.
        reason = re.sub(r"\d+(\.\d+)?", "…", text.partition("): ")[2].partition("\n")[0])
        self._invalid[reason] += 1
        if self._invalid[reason] == 1:
            self._print(f"Invalid: {text}")

    def _wait(self, event: Waiting) -> None:
        left = f"{duration(event.left_s)} left"
        if self._draws:
            self._bar.update(self._task, description=event.text, left=left)
            self._bar.refresh()
        elif not self._waiting:
            self._print(f"The run {event.text}, {left} for that.")
        self._waiting = True

    def _print(self, text: str) -> None:
        # What a guest said may be in it.
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
