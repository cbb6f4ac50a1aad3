"""Fill in templates: labctl's own, and users' expressions and templates in a sandbox."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import StrictUndefined, Template
from jinja2.compiler import has_safe_repr
from jinja2.exceptions import TemplateError, TemplateRuntimeError, TemplateSyntaxError
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner

from labctl.base.errors import LabctlError, UsageError
from labctl.base.paths import data_folders, shipped_data

if TYPE_CHECKING:
    from jinja2 import Environment


# Find and fill in templates of any kind: domain XML, pages, scripts, seeds, profiles of tuned.
#
# Templates of pages and of scripts are labctl's own. Those that a lab folder may shadow (domain
# XML, seeds, profiles) are filled in by Jinja's sandbox, which calls only methods of plain values.


_USUAL: dict[str, Any] = {
    "trim_blocks": True,
    "lstrip_blocks": True,
    "keep_trailing_newline": True,
}


def template_environment(kind: str, *, escapes: bool, **options: Any) -> Environment:
    """Return an environment for labctl's own templates in the folder `kind` of `templates/`, or in
    all of it (""). Undefined names are errors. `escapes`: whether values are text in XML or HTML;
    `options`: others of Jinja's."""
    # Loaded here, so that commands without templates start quickly.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(shipped_data() / "templates" / kind),
        autoescape=escapes,  # noqa: S701  # what isn't markup has escapes of its own
        undefined=StrictUndefined,
        **(_USUAL | options),
    )


def lab_template_environment(kind: str, *, escapes: bool) -> Environment:
    """Return the same for templates that a lab folder may shadow, in a sandbox. Raises UsageError
    for a lab folder that cannot be trusted."""
    from jinja2 import FileSystemLoader, StrictUndefined

    return Sandbox(
        loader=FileSystemLoader([folder / kind for folder in data_folders("templates")]),
        autoescape=escapes,
        undefined=StrictUndefined,
        **_USUAL,
    )


# Render users' templates in a sandbox, within limits.


_PLAIN = (str, int, float, list, tuple, dict, set, frozenset)
_WITH_WIDTHS = ("center", "indent", "wordwrap", "truncate", "format", "batch", "slice")
"""Filters whose result is as large as a number says."""
_OF_JINJA = (BlockReference, LoopContext, Macro, Cycler, Joiner)

CPU_S = 5.0
"""CPU time for one template; labctl's largest takes milliseconds."""
MOST_CHARACTERS = 1 << 20
"""Limit on a rendered template."""


class _Bounded(Template):
    """Bound a template's rendering: one of a lab folder may loop for ever."""

    def render(self, *args: Any, **kwargs: Any) -> str:
        """Render; raises TemplateRuntimeError also beyond the limits."""
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


def _bounded(named: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that accepts no number beyond the limit."""

    @wraps(named)  # with Jinja's attributes on it
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_small(named, args[1:], kwargs)
        return named(*args, **kwargs)

    return checked


def _check_small(called: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    formatted = getattr(called, "__self__", None)
    texts = [formatted] if isinstance(formatted, str) else []
    if any(isinstance(n, int) and abs(n) > MOST_CHARACTERS for n in (*args, *kwargs.values())) or (
        getattr(called, "__name__", "") in ("format", "format_map") and any(map(_is_wide, texts))
    ):
        name = getattr(called, "__name__", "a call")
        raise TemplateRuntimeError(f"{name}: a number beyond {MOST_CHARACTERS:,}")


def _is_wide(text: str) -> bool:
    """Return whether a format requests more than five digits of width."""
    return re.search(r"[0-9]{6}", text) is not None


def _size_of(operator: str, left: Any, right: Any) -> int:
    """Return the approximate size of an operation's result in characters or bits, if it may be
    large."""
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * max(right, 0)
    if operator == "%" and isinstance(left, str):
        return MOST_CHARACTERS + 1 if _is_wide(left) or "*" in left else 0
    if operator == "*":
        sizes = (n.bit_length() if isinstance(n, int) else 0 for n in (left, right))
        for one, other in ((left, right), (right, left)):
            if isinstance(one, str | list | tuple) and isinstance(other, int):
                return len(one) * other
        return sum(sizes)
    return 0


@contextmanager
def _cpu_time_limited() -> Iterator[None]:
    """Limit the CPU time by a signal, which only the main thread gets (signal(2)); labctl renders
    only there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(*_: object) -> NoReturn:
        raise TemplateRuntimeError(f"it needs more than {CPU_S:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class Sandbox(ImmutableSandboxedEnvironment):
    """Restrict Jinja's sandbox: templates get values whose methods have effects (a Path writes to
    its file), so only methods of plain values and Jinja's own are called."""

    template_class = _Bounded
    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters |= {name: _bounded(self.filters[name]) for name in _WITH_WIDTHS}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse operations with too large a result: no signal can interrupt one."""
        if _size_of(operator, left, right) > MOST_CHARACTERS:
            raise TemplateRuntimeError(f"'{operator}' would exceed the limit")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function; refuse excessive widths and counts."""
        if isinstance(getattr(obj, "__self__", None), str):
            _check_small(obj, args, kwargs)
        return super().call(context, obj, *args, **kwargs)

    def is_safe_callable(self, obj: Any) -> bool:
        owner = getattr(obj, "__self__", None)
        is_known = (
            isinstance(obj, _OF_JINJA)
            or isinstance(owner, (*_PLAIN, *_OF_JINJA))
            or any(obj is brought for brought in self.globals.values())
        )
        return is_known and super().is_safe_callable(obj)

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Raise TemplateError for any error of a template's own expressions (`1/0`)."""
        try:
            super().handle_exception(source)
        except (TemplateSyntaxError, LabctlError):
            raise
        except Exception as error:
            name = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise TemplateRuntimeError(f"{name}{error}{_place(error.__traceback__)}") from error

    def get_template(self, *args: Any, **kwargs: Any) -> Template:
        """Return a template; raises TemplateError also for a file that cannot be read as text."""
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
        # Jinja replaces the frames of its compiled code with the template's.
        if "__jinja_exception__" in traceback.tb_frame.f_globals:
            place = f" ({traceback.tb_frame.f_code.co_filename}, line {traceback.tb_lineno})"
        traceback = traceback.tb_next
    return place


# Fill in `{{ }}` and evaluate bare expressions of users in workload files.
#
# Only expressions: no statements, no globals (`random` or `lipsum` would give the two sides
# different commands), and only filters whose result is a small value. Jinja's sandbox alone allows
# `'a' * 10**8`; `Sandbox` above bounds it.


Scalar = int | float | str | bool
Variables = Mapping[str, Any]

_FILTERS = ("int", "float", "round", "min", "max", "replace", "join")
_EXACT = 2.0**53
"""Limit on whole numbers that a float holds exactly."""
_KEPT = 512
"""Number of compiled templates to keep: those of some dozens of workloads."""


def floor_pow2(number: float) -> int:
    """Return the largest power of two that is not above `number`; 1 for anything below 2."""
    return 1 << max(0, int(number).bit_length() - 1)


def fill_in(text: str, variables: Variables, where: str) -> str:
    """Return a text with its `{{ }}` filled in. Raises UsageError that names `where`."""
    if "{" not in text:
        return text
    try:
        return _compiled(text).render(variables)
    except TemplateError as error:
        raise UsageError(f"{where}: {text!r}: {error.message}", hint=_hint(variables)) from error


def evaluate(expression: str, variables: Variables, where: str) -> Scalar:
    """Return the value of a bare expression. Raises UsageError that names `where`, also for a value
    that is not a number, text or truth value."""
    try:
        value = _expression(expression)(**variables)
    except TemplateError as error:
        said = f"{where}: {expression!r}: {error.message}"
        raise UsageError(said, hint=_hint(variables)) from error
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: {expression!r}: {error}") from error
    if not isinstance(value, int | float | str) or not has_safe_repr(value):
        raise UsageError(f"{where}: {expression!r} has no value", hint=_hint(variables))
    return value


def names_in(text: str, *, bare: bool = False) -> set[str]:
    """Return the variables that a text (or, `bare`, an expression) uses. Raises UsageError for an
    invalid template."""
    from jinja2.meta import find_undeclared_variables

    try:
        parsed = _environment().parse(f"{{{{ {text} }}}}" if bare else text)
    except TemplateError as error:
        raise UsageError(f"{text!r}: {error.message}") from error
    return set(find_undeclared_variables(parsed))


def plain(value: Any) -> Any:
    """Return a filled-in value in plain form: a whole number without a point, `16 / 2` as `8`."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


def _hint(variables: Variables) -> str:
    return f"Known here: {', '.join(sorted(variables))}."


@lru_cache(maxsize=1)
def _environment() -> Sandbox:
    environment = Sandbox(
        undefined=StrictUndefined,
        # No statements and no comments: no file contains these delimiters.
        block_start_string="\x00%",
        block_end_string="%\x00",
        comment_start_string="\x00#",
        comment_end_string="#\x00",
        keep_trailing_newline=True,
        finalize=plain,
    )
    environment.globals.clear()
    kept = {name: environment.filters[name] for name in _FILTERS}
    environment.filters.clear()
    environment.filters.update(kept | {"floor_pow2": floor_pow2})
    environment.tests.clear()
    return environment


@lru_cache(maxsize=_KEPT)
def _compiled(text: str) -> Template:
    return _environment().from_string(text)


@lru_cache(maxsize=_KEPT)
def _expression(text: str) -> Any:
    return _environment().compile_expression(text, undefined_to_none=False)
