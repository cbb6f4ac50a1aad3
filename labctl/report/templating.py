"""Fill in the templates of pages. Everything except our own markup is escaped."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, Template
from markupsafe import Markup

from labctl.analysis.verdicts.table import Tone, classes_of
from labctl.base.notation import share
from labctl.base.templates import template_environment
from labctl.base.wording import counted, printable


def template(name: str) -> Template:
    """Return the template `report/NAME`."""
    return _environment().get_template(f"report/{name}")


@cache
def _environment() -> Environment:
    """Return the environment, which is kept: compiling templates takes longer than filling them."""
    environment = template_environment(
        "", escapes=True, auto_reload=False, keep_trailing_newline=False, finalize=_clean
    )
    environment.filters |= {"counted": counted, "share": share}
    environment.globals["tones"] = {tone: classes_of(tone) for tone in Tone}
    return environment


def _clean(value: Any) -> Any:
    """Replace control characters in a text; our own markup stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
