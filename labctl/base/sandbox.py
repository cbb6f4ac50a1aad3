"""Render templates that users write in a sandbox."""

from __future__ import annotations

from typing import Any, NoReturn

from jinja2 import Template
from jinja2.exceptions import TemplateError, TemplateRuntimeError
from jinja2.runtime import BlockReference, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner

from labctl.base.errors import LabctlError

_PLAIN = (str, int, float, list, tuple, dict, set, frozenset)
_OF_JINJA = (BlockReference, LoopContext, Macro, Cycler, Joiner)


class Sandbox(ImmutableSandboxedEnvironment):
    """Narrow Jinja's sandbox: templates get values whose methods have effects (a Path writes to its
    file), so only methods of plain values and Jinja's own are called."""

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
        except (TemplateError, LabctlError):
            raise
        except Exception as error:
            raise TemplateRuntimeError(f"{type(error).__name__}: {error}") from error

    def get_template(self, *args: Any, **kwargs: Any) -> Template:
        """Raise TemplateError for a file that can't be read as text, too."""
        try:
            return super().get_template(*args, **kwargs)
        except TemplateError:
            raise  # TemplateNotFound is an OSError as well
        except (OSError, ValueError) as error:
            raise TemplateRuntimeError(f"the template cannot be read: {error}") from error
