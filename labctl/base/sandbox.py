"""Render templates that users write in a sandbox, with an end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn

from jinja2 import Template
from jinja2.exceptions import TemplateError, TemplateRuntimeError, TemplateSyntaxError
from jinja2.runtime import BlockReference, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner

from labctl.base.errors import LabctlError

_PLAIN = (str, int, float, list, tuple, dict, set, frozenset)
_OF_JINJA = (BlockReference, LoopContext, Macro, Cycler, Joiner)

CPU_S = 5.0
"""CPU time for one template; the largest of labctl's own takes milliseconds."""
MOST_CHARACTERS = 1 << 20
"""In what a template becomes."""


class _Bounded(Template):
    """A template whose rendering ends: one of a lab folder's may have a loop that doesn't."""

    def render(self, *args: Any, **kwargs: Any) -> str:
        """Raise TemplateRuntimeError beyond the limits, too."""
        chunks: list[str] = []
        length = 0
        with _cpu_time_limited():
            for chunk in self.generate(*args, **kwargs):
                chunks.append(chunk)
                length += len(chunk)
                if length > MOST_CHARACTERS:
                    name = self.filename or self.name
                    raise TemplateRuntimeError(
                        f"it becomes more than {MOST_CHARACTERS:,} characters ({name})"
                    )
        return "".join(chunks)


@contextmanager
def _cpu_time_limited() -> Iterator[None]:
    """Only the main thread gets signals (signal(2)); labctl renders in no other."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(*_: object) -> NoReturn:
        raise TemplateRuntimeError(f"it takes more than {CPU_S:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class Sandbox(ImmutableSandboxedEnvironment):
    """Narrow Jinja's sandbox: templates get values whose methods have effects (a Path writes to its
    file), so only methods of plain values and Jinja's own are called."""

    template_class = _Bounded

    def is_safe_callable(self, obj: Any) -> bool:
        owner = getattr(obj, "__self__", None)
        is_known = (
            isinstance(obj, _OF_JINJA)
            or isinstance(owner, (*_PLAIN, *_OF_JINJA))
            or any(obj is brought for brought in self.globals.values())
        )
        return is_known and super().is_safe_callable(obj)

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Raise TemplateError for whatever a template's own expressions raise (`1/0`)."""
        try:
            super().handle_exception(source)
        except (TemplateSyntaxError, LabctlError):
            raise
        except Exception as error:
            name = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise TemplateRuntimeError(f"{name}{error}{_place(error.__traceback__)}") from error

    def get_template(self, *args: Any, **kwargs: Any) -> Template:
        """Raise TemplateError for a file that can't be read as text, too."""
        try:
            return super().get_template(*args, **kwargs)
        except TemplateError:
            raise  # TemplateNotFound is an OSError as well
        except (OSError, ValueError) as error:
            raise TemplateRuntimeError(f"the template cannot be read: {error}") from error


def _place(traceback: TracebackType | None) -> str:
    """Return the file and line of the innermost template that an error came from, in brackets."""
    place = ""
    while traceback is not None:
        # Jinja puts frames of the template in the place of those of its compiled code.
        if "__jinja_exception__" in traceback.tb_frame.f_globals:
            place = f" ({traceback.tb_frame.f_code.co_filename}, line {traceback.tb_lineno})"
        traceback = traceback.tb_next
    return place
