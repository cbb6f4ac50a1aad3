"""How templates are found and filled in, whatever they become: domain XML, pages, scripts, seeds,
profiles of tuned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labctl.base.places import data_folders

if TYPE_CHECKING:
    from jinja2 import Environment


def template_environment(kind: str, *, escapes: bool, **options: Any) -> Environment:
    """For the templates in the folder `kind` of `templates/`, or in all of it (""). A user's own
    shadow labctl's, and names that a template isn't given are errors. `escapes`: whether values
    are text in XML or HTML; `options`: others of Jinja's."""
    # Loaded here: commands that fill in none must not take as long to start as a report.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    usual = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    return Environment(
        loader=FileSystemLoader([folder / kind for folder in data_folders("templates")]),
        autoescape=escapes,  # noqa: S701  # what isn't markup has escapes of its own
        undefined=StrictUndefined,
        **(usual | options),
    )
