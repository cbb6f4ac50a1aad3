"""The templates of pages, filled in: everything escaped that isn't markup of our own."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from labctl.base.places import data_folders
from labctl.base.wording import counted, printable


def template(name: str) -> Template:
    """The template `report/NAME`."""
    return _environment(tuple(map(str, data_folders("templates")))).get_template(f"report/{name}")


@cache
def _environment(folders: tuple[str, ...]) -> Environment:
    """Kept, since compiling the templates takes longer than filling them in."""
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    environment.filters["counted"] = counted
    return environment


def _clean(value: Any) -> Any:
    """No control characters from guest or tools in the page; markup of our own stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
