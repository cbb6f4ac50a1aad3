"""Fill in `{{ }}` and evaluate bare expressions that users write in workload files.

Nothing but expressions: no statements, no globals (`random` or `lipsum` would give two sides two
commands), and only filters whose result is a small value. Jinja's sandbox alone lets
`'a' * 10**8` through; labctl's (`sandbox.py`) bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template
from jinja2.compiler import has_safe_repr
from jinja2.exceptions import TemplateError

from labctl.base.errors import UsageError
from labctl.base.sandbox import Sandbox

Scalar = int | float | str | bool
Variables = Mapping[str, Any]

_FILTERS = ("int", "float", "round", "min", "max", "replace", "join")
_EXACT = 2.0**53
"""Limit for whole numbers that a float holds exactly."""
_KEPT = 512
"""Compiled templates that are kept: those of some dozens of workloads."""


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
    """Return the value of a bare expression. Raises UsageError that names `where`, for a value that
    is no number, text or truth value as well."""
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
    """Return the variables that a text (or, `bare`, an expression) uses. Raises UsageError for what
    is no template."""
    from jinja2.meta import find_undeclared_variables

    try:
        parsed = _environment().parse(f"{{{{ {text} }}}}" if bare else text)
    except TemplateError as error:
        raise UsageError(f"{text!r}: {error.message}") from error
    return set(find_undeclared_variables(parsed))


def plain(value: Any) -> Any:
    """Return what a filled-in value stands as: a whole number without a point, `16 / 2` as `8`."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


def _hint(variables: Variables) -> str:
    return f"Known here: {', '.join(sorted(variables))}."


@lru_cache(maxsize=1)
def _environment() -> Sandbox:
    environment = Sandbox(
        undefined=StrictUndefined,
        # No statements and no comments: these delimiters stand in no file.
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
