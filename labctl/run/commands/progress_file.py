"""Write how far a run is into its folder, for whoever waits for it: progress.json.

It is written when the engine tells how far the run is, which is never while a trial is being
measured, and at the run's end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from labctl.base.errors import LabctlError
from labctl.base.events import Event, Listener, Progress, RunBegun
from labctl.base.signals import cleaning_up
from labctl.store.content_digest import PROGRESS, folder_digest
from labctl.store.jsonfile import write_json
from labctl.store.run_folder import RunFolder

SCHEMA: Final = 1
"""Raised when a key goes or changes its meaning; new keys leave it as it is."""


class Telling:
    """Keep progress.json up to date with the events of a run, and pass them on."""

    def __init__(self, folder: RunFolder, listener: Listener) -> None:
        self._folder = folder
        self._listener = listener
        self._counts: dict[str, int] = {}
        self._doing = "starting"

    def begin(self) -> None:
        """Write the file for the first time, and tell the listener where it is."""
        self._write("running", doing=self._doing)
        progress = self._folder.path / PROGRESS
        self._listener(RunBegun(folder=self._folder.path, progress=progress))

    def listen(self, event: Event) -> None:
        """Take an event of the engine."""
        if isinstance(event, Progress):
            self._counts = {
                "done": event.done,
                "planned": event.planned,
                "invalid": event.invalid,
            }
            self._write("running", doing=event.doing, left_s=event.left_s)
        self._listener(event)

    def end(self, failure: BaseException | None) -> None:
        """Write how the run ended: its status and, where it is done, the digest of its files."""
        with suppress(LabctlError):  # how it ended is told all the same
            if counts := self._folder.read_run().trials:
                self._counts |= counts.to_json()
        match failure:
            case None:
                self._write("done", digest=folder_digest(self._folder.path))
            case KeyboardInterrupt():
                self._write("interrupted")
            case _:
                self._write("failed", failure=str(failure))

    def _write(self, status: str, **more: Any) -> None:
        path = self._folder.path
        content = {
            "schema": SCHEMA,
            "run": self._folder.name,
            "status": status,
            "pid": os.getpid(),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            **self._counts,
            **more,
        }
        write_json(path / PROGRESS, content, below=path)


@contextmanager
def told(folder: RunFolder, listener: Listener) -> Iterator[Telling]:
    """Yield what keeps the run's progress.json; it says how the block ended."""
    telling = Telling(folder, listener)
    try:
        yield telling
        telling.end(None)
    except BaseException as error:
        with cleaning_up(), suppress(LabctlError):
            telling.end(error)
        raise
